"""Upgrade check: judges all live plans against new code before anything is changed."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from plancast.app import App, load_app
from plancast.errors import CannotReplay
from plancast.plan.status import PlanStatus
from plancast.replay.fingerprint import Fingerprint
from plancast.replay.replay import ReplayOptions, replay
from plancast.replay.report import Outcome, Replay
from plancast.replay.stored import options_of, recorded_plan
from plancast.settings import Settings
from plancast.state_machine.machine import Machine
from plancast_actors.liveness.heartbeat import DETAILS
from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND
from plancast_bus.errors import BusUnavailable, PlancastError
from plancast_bus.events.codec import unpack
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

AT_ONCE: Final = 200
"""Checkpoints that are read concurrently; plans that a process replays in one call."""
REPLAY_SECONDS: Final = 30.0
"""Timeout of the replay of one plan; its handlers may wait for something that never comes."""
EXAMPLES: Final = 3
"""Plans that a report names for each finding."""
_NO_FINGERPRINT: Final = "the running release has registered no fingerprint of its code"


class Verdict(StrEnum):
    """Effects of new code on a live plan."""

    SAME = "same"
    """It continues as under the running code: all code and settings that it can use are the same."""
    DIFFERS = "differs"
    """The new code would have done something else already."""
    NEEDS_OLD = "needs the old planner"
    """The new app lacks a planner, version or goal that it needs; the upgrade is refused."""
    UNKNOWN = "unknown"
    """Code that it can use has changed, and its history does not tell; or its history cannot be replayed."""


@dataclass(frozen=True)
class Judged:
    """The verdict on one plan."""

    plan_id: str
    planner: str
    verdict: Verdict
    what: str = ""
    """The difference, need or unknown code; without ids and values of the plan, so that findings can be grouped."""
    example: str = ""
    """The values of a difference, in this plan."""


@dataclass(frozen=True)
class UpgradeReport:
    """The verdicts on all live plans."""

    plans: tuple[Judged, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if all plans continue the same."""
        return all(each.verdict is Verdict.SAME for each in self.plans)

    def to_dict(self) -> dict[str, Any]:
        """``{"same", "plans", "seconds", "counts": {verdict: n}, "findings": [{"verdict", "planner", ...}]}``"""
        groups: dict[tuple[Verdict, str, str], list[Judged]] = {}
        for each in sorted(self.plans, key=lambda each: each.plan_id):
            groups.setdefault((each.verdict, each.planner, each.what), []).append(each)
        order = list(Verdict)
        return {
            "same": self.ok,
            "plans": len(self.plans),
            "seconds": round(self.seconds, 3),
            "counts": {str(each): sum(one.verdict is each for one in self.plans) for each in Verdict},
            "findings": [
                {
                    "verdict": str(verdict),
                    "planner": planner,
                    "what": what,
                    "plans": len(found),
                    "examples": [each.plan_id for each in found[:EXAMPLES]],
                    "example": found[0].example,
                }
                for (verdict, planner, what), found in sorted(
                    groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0])
                )
            ],
        }


async def running_fingerprints(bus: Bus, namespace: str, now: float | None = None) -> list[Fingerprint] | None:
    """The fingerprints of the hosts that report in a namespace; None when one of them has registered none.

    Raises:
        BusUnavailable: the registrations cannot be read.
    """
    now = bus.clock.time() if now is None else now
    beats, details = await bus.registry.list(KIND), await bus.registry.list(DETAILS)
    hosts = {
        key: beat
        for key, beat in beats.items()
        if key.startswith(f"{namespace}/host-") and now - float(beat.get("at", 0.0)) < FRESH_SECONDS
    }
    found = [details.get(key) for key in hosts]
    # A host that was replaced meanwhile has another process id than the one that has registered.
    known = [each for each, beat in zip(found, hosts.values(), strict=True) if each and each["pid"] == beat["pid"]]
    if not known or len(known) < len(hosts):
        return None
    return [Fingerprint.read(each) for each in known]


class UpgradeCheck:
    """Judges live plans against a new app.

    A plan continues the same only if every part of the app that it can use has the same fingerprint as in each running
    host. All others are replayed: handlers run, models and workers are not called, nothing is sent.

    Args:
        app: The new app.
        settings: As in the deployment.
        running: Fingerprints of the running hosts; None: unknown.
    """

    def __init__(self, app: App, settings: Settings, running: Sequence[Fingerprint] | None) -> None:
        self._app = app
        self._running = list({repr(each): each for each in running or ()}.values())
        self._new = Fingerprint.of(app, settings.plans)
        self._machines: dict[str, Machine | None] = {}

    async def judge(self, bus: Bus, keys: Sequence[str]) -> tuple[list[Judged], dict[str, str]]:
        """Judge plans by their checkpoints; returns verdicts, and the rest by key with what has changed for them.

        Raises:
            BusUnavailable: the stores cannot be reached.
        """
        judged: list[Judged] = []
        rest: dict[str, str] = {}
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            for key, found in zip(some, await asyncio.gather(*(_load(bus, each) for each in some)), strict=True):
                if isinstance(found, Judged):
                    judged.append(found)
                elif found is not None:
                    verdict = await self._of_fingerprint(bus, found)
                    if isinstance(verdict, Judged):
                        judged.append(verdict)
                    else:
                        rest[key] = verdict
        return judged, rest

    async def _of_fingerprint(self, bus: Bus, checkpoint: Checkpoint) -> Judged | str:
        """The verdict, or what has changed for the plan."""
        state = unpack(checkpoint.state)
        plan_id, planner = checkpoint.summary.plan_id, _planner_of(state)
        digest = str(state.get("machine") or "")
        if digest and digest not in self._machines:
            encoded = await bus.checkpoints.get_machine(digest)
            self._machines[digest] = Machine.decode(encoded) if encoded is not None else None
        machine = self._machines.get(digest)
        if digest and machine is None:
            return Judged(plan_id, planner, Verdict.UNKNOWN, "its state machine is gone from the store")
        lacks = self._new.lacks(state, machine, self._running)
        if lacks:
            return Judged(plan_id, planner, Verdict.NEEDS_OLD, lacks)
        if not self._running:
            return _NO_FINGERPRINT
        changes = (each.changed(self._new, state, machine) for each in self._running)
        changed = next((each for each in changes if each), "")
        return changed or Judged(plan_id, planner, Verdict.SAME)


async def check_upgrade(
    bus: Bus, app: App, settings: Settings, *, address: str, import_paths: Sequence[str] = ()
) -> UpgradeReport:
    """Judge all live plans against a new app; changes nothing.

    Args:
        bus: Of the deployment.
        app: The new app.
        settings: Of the new release; must be those of the deployment for bus and NATS.
        address: ``module:attribute`` of the app, for the processes that replay.
        import_paths: Folders with its modules.

    Raises:
        BusUnavailable: the stores cannot be read.
    """
    began = time.monotonic()
    running = await running_fingerprints(bus, settings.ray.namespace)
    newest = {each.correlation_id: each.summary.status async for each in bus.checkpoints.committed_after(0)}
    live = sorted(key for key, status in newest.items() if not PlanStatus(status).finished)
    judged, rest = await UpgradeCheck(app, settings, running).judge(bus, live)
    if len(rest) <= AT_ONCE:
        judged += await replayed(bus, app, rest)
    else:
        judged += await _replayed_in_processes(rest, settings, address, tuple(import_paths))
    return UpgradeReport(tuple(judged), time.monotonic() - began)


async def replayed(bus: Bus, app: App, plans: dict[str, str]) -> list[Judged]:
    """Judge plans by replays; ``plans`` has what has changed for each, by key.

    Raises:
        BusUnavailable: the stores cannot be reached.
    """
    options = await options_of(bus, app)
    found = []
    with contextlib.redirect_stdout(sys.stderr):  # handlers print
        for key, changed in plans.items():
            checkpoint = await _load(bus, key)
            if isinstance(checkpoint, Checkpoint):
                found.append(await _of_replay(bus, checkpoint, options, changed))
            elif checkpoint is not None:
                found.append(checkpoint)
    return found


async def _of_replay(bus: Bus, checkpoint: Checkpoint, options: ReplayOptions, changed: str) -> Judged:
    plan_id, planner = checkpoint.summary.plan_id, _planner_of(unpack(checkpoint.state))
    try:
        async with asyncio.timeout(REPLAY_SECONDS):
            done = await replay(await recorded_plan(bus, checkpoint), options)
    except BusUnavailable:
        raise
    except TimeoutError:
        return Judged(plan_id, planner, Verdict.UNKNOWN, f"its replay takes more than {REPLAY_SECONDS:g} s")
    except CannotReplay as error:
        return Judged(plan_id, planner, Verdict.UNKNOWN, f"{changed}; {error.reason}")
    except Exception as error:  # the code of the app
        return Judged(plan_id, planner, Verdict.UNKNOWN, f"{changed}; its replay fails with {type(error).__name__}")
    if done.outcome is Outcome.DIFFERS:
        return Judged(plan_id, planner, Verdict.DIFFERS, *_first_difference(done, checkpoint.correlation_id))
    if done.outcome is Outcome.UNKNOWN:
        assert done.first is not None
        return Judged(plan_id, planner, Verdict.UNKNOWN, f"{changed}; {done.first.why}")
    return Judged(plan_id, planner, Verdict.UNKNOWN, f"{changed}; its turns so far are the same")


def _first_difference(done: Replay, key: str) -> tuple[str, str]:
    turn = next(each for each in done.turns if each.outcome is Outcome.DIFFERS)
    first = turn.differences[0]
    path = first.path.replace(done.plan_id, "PLAN").replace(key, "PLAN")
    return f"on {turn.event_type}: {path}", f"was {first.then!r:.80}, is {first.now!r:.80}"


async def _load(bus: Bus, key: str) -> Checkpoint | Judged | None:
    """The checkpoint of a live plan; None when it has ended, a verdict when it cannot be read."""
    try:
        found = await bus.checkpoints.load(key)
    except BusUnavailable:
        raise
    except PlancastError as error:
        return Judged(key, "", Verdict.UNKNOWN, f"its checkpoint cannot be read: {type(error).__name__}")
    return None if found is None or PlanStatus(found.summary.status).finished else found


def _planner_of(state: dict[str, Any]) -> str:
    name, version = state.get("decider") or state.get("planner") or "", state.get("planner_version")
    return f"{name} {version}" if version else str(name)


# Replays in processes of their own.


async def _replayed_in_processes(
    plans: dict[str, str], settings: Settings, address: str, import_paths: tuple[str, ...]
) -> list[Judged]:
    keys = list(plans)
    parts = [{key: plans[key] for key in keys[start : start + AT_ONCE]} for start in range(0, len(keys), AT_ONCE)]
    context = multiprocessing.get_context("spawn")  # the parent has threads and connections
    pool = ProcessPoolExecutor(min(os.cpu_count() or 1, len(parts)), mp_context=context)
    loop = asyncio.get_running_loop()
    try:
        done = [loop.run_in_executor(pool, _replay_part, part, settings, address, import_paths) for part in parts]
        found = await asyncio.gather(*done, return_exceptions=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [each for part, result in zip(parts, found, strict=True) for each in _of_part(part, result)]


def _of_part(part: dict[str, str], result: list[Judged] | BaseException) -> Iterable[Judged]:
    if isinstance(result, BrokenProcessPool):
        return [Judged(key, "", Verdict.UNKNOWN, "a process that replayed plans has ended") for key in part]
    if isinstance(result, BaseException):
        raise result
    return result


def _replay_part(
    plans: dict[str, str], settings: Settings, address: str, import_paths: tuple[str, ...]
) -> list[Judged]:
    async def run() -> list[Judged]:
        bus = await connect(settings.nats, settings.bus)
        try:
            return await replayed(bus, load_app(address, import_paths), plans)
        finally:
            await bus.close()

    return asyncio.run(run())
