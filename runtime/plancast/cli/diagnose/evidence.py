"""Gathers the evidence that `plancast doctor` checks."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plancast.cli.connection import actors_report, joined, open_bus
from plancast.cli.data_folder import find_running
from plancast.cli.diagnose.finding import NAMED
from plancast.cli.diagnose.schedules import ScheduleReport, read_schedules
from plancast.terminal.output import plural
from plancast_bus.errors import AccessDenied, BusError, InvalidEnvelope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from plancast.plan.context import PlanContext
    from plancast.settings import Settings
    from plancast_actors.maintenance.value_use import ValueReport
    from plancast_bus.jetstream.bus import JetStreamBus
    from plancast_bus.ports.bus import Bus
    from plancast_bus.ports.checkpoints import Committed

Health = dict[str, Any]
MAX_LOOKS = 500
"""Maximum number of plans to check for stalls when no dispatcher has reported."""
MAX_READ = 20_000
"""Maximum number of summaries to read for this."""
CHECK_BYTES = 64 << 20
"""Bytes of values that are read to find damaged ones; that all are there is seen without reading them."""
_RAY_PATIENCE = 3.0
_FINISHED = frozenset({"completed", "failed", "cancelled"})


class Skew(NamedTuple):
    """Difference of the clocks."""

    seconds: float
    """By how much the server's clock is ahead."""
    precision: float
    """Maximum error in seconds: half of the round trip."""


@dataclass(frozen=True)
class RayEvidence:
    """State of Ray."""

    address: str = ""
    """Address that was checked; empty when none is given."""
    error: str = ""
    """Reason why it cannot be used."""
    cluster: dict[str, Any] = field(default_factory=dict)
    """Version, nodes and resources; see :func:`plancast_actors.ray.connection.look`."""
    actors: dict[str, Any] | None = None
    """Reports of the deployment's actors; None when nothing is deployed."""
    mixed: str = ""
    """The code of each actor, when a killed upgrade has left several versions; else empty."""


@dataclass(frozen=True)
class Evidence:
    """Input of the checks."""

    settings: Settings
    health: Health
    apps: tuple[str, ...]
    dead_letters: int
    stalled: dict[str, Any] | None
    """The newest report on stalled plans (``stalled``, ``names``), and on those that are before people (``people``);
    None when there is none."""
    clock_skew: Skew | None
    """None when nothing is deployed."""
    refusal: str = ""
    """Reason why the server rejects writes; empty when it accepts them."""
    ray: RayEvidence = RayEvidence()
    disk: tuple[int, int] | None = None
    """Total and free bytes of an embedded server's disk; None when it is not local."""
    sync_interval: str = ""
    """Interval at which the server syncs to disk; empty when unknown."""
    values: ValueReport | str | None = None
    """The state of the store of values, or why it could not be scanned; None when it may not be read."""
    lost: tuple[str, ...] = ()
    """Plans that wait for the answer to a request that nothing has, with these requests, as texts."""
    schedules: ScheduleReport | None = None
    """None when nothing is deployed, or schedules may not be read."""
    loss: dict[str, Any] | None = None
    """The newest loss of turns (``plans``, ``names``, ``at``); None when there was none lately."""
    seen_here: bool = False
    """True if the report on stalled plans was made here, of a part of the plans."""


async def gather(settings: Settings, *, with_ray: bool = True) -> Evidence:
    """Query the server, and Ray where an address is given.

    Raises:
        BusUnavailable, UnsupportedServer: the server cannot be used.
    """
    from plancast_actors.maintenance.turn_journal import LOSS_KEY, LOSS_KIND

    async with open_bus(settings) as bus:
        health = await bus.health()
        present = [name for name, stream in health["streams"].items() if not stream.get("missing")]
        deployed = len(present) == len(health["streams"])
        stalled = await bus.registry.get("sweep", "plans") if deployed else None
        seen_here = stalled is None and deployed
        data = embedded_data(settings)
        return Evidence(
            settings=settings,
            health=health,
            apps=tuple(sorted(await bus.registry.list("app"))) if deployed else (),
            dead_letters=await bus.dead_letters.count() if deployed else 0,
            stalled=await _stalled(bus, settings) if seen_here else stalled,
            clock_skew=_clock_skew(bus),
            refusal=await _refusal(bus) if deployed else "",
            ray=await _ray(settings, bus if deployed else None) if with_ray else RayEvidence(),
            disk=shutil.disk_usage(data)[::2] if data is not None else None,
            sync_interval=_sync_interval(data) if data is not None else "",
            values=await _values(bus) if deployed else None,
            lost=await _lost(bus, settings) if deployed else (),
            schedules=await read_schedules(bus) if deployed else None,
            loss=await bus.registry.get(LOSS_KIND, LOSS_KEY) if deployed else None,
            seen_here=seen_here,
        )


async def _values(bus: Bus) -> ValueReport | str | None:
    import sqlite3

    from plancast_actors.maintenance.value_use import examine_values

    try:
        return await examine_values(bus, CHECK_BYTES)
    except AccessDenied:
        return None
    except sqlite3.Error as error:
        return str(error)


async def _refusal(bus: Bus) -> str:
    """Write a registration with a TTL of a second, and return the server's error: limits alone do not tell."""
    try:
        await bus.registry.put("doctor", "probe", {}, ttl=1.0)
    except AccessDenied:
        return ""
    except BusError as error:
        return str(error)
    return ""


def _clock_skew(bus: JetStreamBus) -> Skew | None:
    precision = bus.clock.precision
    return None if precision is None else Skew(bus.clock.time() - time.time(), precision)


async def _settled_plans(
    bus: Bus, settings: Settings, now: float
) -> AsyncGenerator[tuple[Committed, PlanContext | None]]:
    """Yield the least recently updated plans that have not ended; None for one that cannot be read."""
    from plancast.plan.context import PlanContext
    from plancast.plan_store.store import plan_fields

    looks = read = 0
    async with aclosing(bus.checkpoints.committed_after(0)) as commits:
        async for committed in commits:
            if committed.summary.updated_at > now - settings.plans.stalled_seconds or looks >= MAX_LOOKS:
                break
            read += 1
            if read > MAX_READ:
                break
            if committed.summary.status in _FINISHED:
                continue
            looks += 1
            plan = None
            try:
                checkpoint = await bus.checkpoints.load(committed.correlation_id)
                if checkpoint is None or checkpoint.version != committed.version:
                    continue
                plan = PlanContext.from_dict(await plan_fields(bus.checkpoints, checkpoint))
            except InvalidEnvelope:
                pass
            yield committed, plan


async def _stalled(bus: Bus, settings: Settings) -> dict[str, Any] | None:
    """Find stalled plans among the least recently updated ones, as a dispatcher would report them."""
    from plancast.turn.stall import find_stall

    now, found = bus.clock.time(), list[str]()
    async with aclosing(_settled_plans(bus, settings, now)) as plans:
        async for committed, plan in plans:
            if plan is None or find_stall(plan, now, settings.plans.stalled_seconds) is not None:
                found.append(committed.summary.plan_id)
    return {"stalled": len(found), "names": found[:NAMED], "time": now}


async def _lost(bus: Bus, settings: Settings) -> tuple[str, ...]:
    """Find plans that wait for what nothing has, among the least recently updated ones."""
    from plancast.plan_store.lost_requests import lost_requests

    found = list[str]()
    async with aclosing(_settled_plans(bus, settings, bus.clock.time())) as plans:
        async for committed, plan in plans:
            if plan is None or not (lost := await lost_requests(bus, plan)):
                continue
            newest = await bus.checkpoints.load(committed.correlation_id, folded=True)
            if newest is not None and newest.version == committed.version:
                requests = ", ".join(f"{plan.requests[each].event_type} ({each})" for each in lost)
                found.append(f"{committed.summary.plan_id} waits for {requests}")
    return tuple(found)


async def _ray(settings: Settings, bus: Bus | None) -> RayEvidence:
    """Join the cluster and query it; ``bus``: None when nothing is deployed.

    Ray is imported only when an address is given, since that takes a second.
    """
    address = settings.ray.address
    if not address:
        return RayEvidence()
    if unreachable := await asyncio.to_thread(_unreachable, address):
        return RayEvidence(address, f"nothing answers at {address}: {unreachable}")
    from plancast_actors.ray import connection
    from plancast_actors.release import RECORD, reported_mixture

    try:
        async with joined(settings):
            actors = await actors_report(settings)
            cluster = await asyncio.to_thread(connection.look)
            record = await bus.registry.get(RECORD, settings.ray.namespace) if bus is not None else None
            return RayEvidence(address, "", cluster, actors, reported_mixture(actors, (record or {}).get("code")))
    except BusError as error:
        return RayEvidence(address, str(error))


def lost_turns(loss: dict[str, Any]) -> tuple[str, str, str]:
    """Return the text, the remedy and the effect of a loss of turns."""
    plans, names = loss["plans"], loss["names"]
    more = f" and {plans - len(names):,} more" if plans > len(names) else ""
    at = datetime.fromtimestamp(loss["at"], UTC).isoformat(timespec="seconds")
    return (
        f"{plural(plans, 'plan')} lost turns before the server's start at {at}: {', '.join(names)}{more}",
        "The log of `plancast run` names all of them, and `plancast plans history PLAN` shows what is left. Compare it "
        "with what their tasks did outside; submit the goals of plans that are gone again.",
        "The machine lost power before the server had synced them; with --sync-always it syncs every write.",
    )


def _unreachable(address: str) -> str:
    """The error of connecting to an address, which Ray would retry for minutes; empty when it answers."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return ""  # such as `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), _RAY_PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


def embedded_data(settings: Settings) -> Path | None:
    """Data folder of the embedded server of a local `plancast run`."""
    running = find_running(settings.data_dir)
    folder = settings.data_dir / "nats"
    return folder if running is not None and running.is_on(settings) and folder.is_dir() else None


def _sync_interval(data: Path) -> str:
    """Read it from the embedded server's configuration; NATS shows it to its system account only."""
    try:
        config = json.loads((data / "nats-server.conf").read_text(encoding="utf-8"))
        return str(config["jetstream"].get("sync_interval") or "2m")
    except (OSError, ValueError, KeyError, AttributeError):
        return ""
