"""Four kinds of plan deployed in memory, with faults injected at crash points."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bus.stored_plans import stored_plans

from plancast import Settings
from plancast.app import load_app
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.models.response_cache import Key, ResponseCache
from plancast.settings import ReasonerSettings
from plancast.testing import PlancastTest
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.reasoning.pool import ReasonerPool
from plancast_actors.reasoning.response_store import ResponseStore
from plancast_actors.reasoning.serialization import AnyRequest
from plancast_bus import fault_injection
from plancast_bus.clock import ManualClock
from plancast_bus.events import codec
from plancast_bus.fault_injection import MESSAGES, CrashPoint, Passage
from plancast_bus.memory import MemoryBus

APP = load_app("kinds_app:app", [str(Path(__file__).parent.parent / "apps")])
kinds = sys.modules["kinds_app"]
KINDS: tuple[str, ...] = kinds.KINDS
ACK_WAIT = 5.0
PATIENCE = 20.0
HOST = ("turn.", "effect.", "timer.")
"""Prefixes of the points that a plan host passes."""


@dataclass(frozen=True)
class Strike:
    """A fault at the nth pass of a point."""

    point: CrashPoint
    action: str
    nth: int

    def __str__(self) -> str:
        return f"{self.action} at {self.point} #{self.nth}"


def strikes_at(point: CrashPoint) -> list[str]:
    """The possible faults at a point. ``overlap``: the host counts as dead, and runs on beside its successor."""
    of_message = ["drop", "duplicate"] if point in MESSAGES else []
    of_host = ["overlap"] if point.startswith(HOST) else []
    return ["kill", "delay", *of_message, *of_host]


# The model: a pool whose process can be lost, and a reasoner that lives on.


class Model:
    """A reasoner's process: replies as scripted by the app, and counts each reply as paid once."""

    name = "reasoner-0"

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.recent_keys: list[Key] = []
        self._answers: defaultdict[str, ResponseCache] = defaultdict(ResponseCache)

    async def forward(self, request: AnyRequest) -> ReasonReply:
        assert isinstance(request, ReasonRequest)

        async def answer() -> ReasonReply:
            await asyncio.sleep(0)
            self.paid[request.idempotency_key] += 1
            return ReasonReply(json.dumps(kinds.decide(request.messages)), Usage(1, 1, 0.0), request.model)

        key = (request.tenant_id, request.idempotency_key)
        self.recent_keys.append(key)
        return await self._answers[request.idempotency_key].get(key, answer)

    def forget(self, idempotency_key: str) -> None:
        """Drop a cached reply."""
        self._answers.pop(idempotency_key, None)

    # It is its own starter.

    async def found(self) -> list[int]:
        return [0]

    async def start(self, number: int) -> Model:
        return self

    async def stop(self, number: int) -> None:
        raise AssertionError("the only reasoner is not to be stopped")


class LosablePool:
    """The hosts' client of the pool: repeats requests after the pool was lost."""

    def __init__(self, environment: Deployed) -> None:
        self._environment = environment
        self._pool: ReasonerPool | None = None
        self._calls: set[asyncio.Task[ReasonReply]] = set()

    async def start(self) -> None:
        settings = ReasonerSettings(min=1, max=1)
        store = ResponseStore(MemoryBus(self._environment.world))
        self._pool = ReasonerPool(self._environment.model, settings, store, clock=self._environment.clock)
        await self._pool.start()

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        while True:
            pool = self._pool
            if pool is None:
                await asyncio.sleep(0)
                continue
            call = asyncio.create_task(pool.schedule(request))
            self._calls.add(call)
            try:
                await asyncio.wait((call,))
            finally:
                self._calls.discard(call)
                call.cancel()
            if not call.cancelled():
                return call.result()

    async def crash(self) -> None:
        pool, self._pool = self._pool, None
        for call in self._calls:
            call.cancel()
        assert pool is not None
        await pool.stop()

    async def restart(self) -> None:
        await self.crash()
        await self.start()


# A deployment that is struck.


class Deployed(PlancastTest):
    """The four kinds of plan in memory, and the messages that they send."""

    def __init__(self, strikes: tuple[Strike, ...]) -> None:
        settings = Settings()
        settings.dispatchers.ack_wait = settings.workers.ack_wait = ACK_WAIT
        settings.dispatchers.unknown_plan_seconds = 600.0
        settings.hosts.max_live_plans = 2  # so that plans are dropped, and loaded again
        super().__init__(APP, settings=settings, clock=ManualClock())
        self.model = Model()
        self.pool = LosablePool(self)
        self.passed: Counter[CrashPoint] = Counter()
        self.waiting = list(strikes)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._deaths: set[asyncio.Task[None]] = set()
        self._dying = asyncio.Lock()
        self.given_up: list[PlanHost] = []

    def new_host(self, name: str) -> PlanHost:
        return PlanHost(self.app, MemoryBus(self.world), self.settings, name=name, clock=self.clock, reasoner=self.pool)

    async def at_point(self, point: CrashPoint, about: str) -> Passage | None:
        if self._deaths:
            return None  # what a dying process still does is not counted
        self.passed[point] += 1
        strike = next((each for each in self.waiting if (each.point, each.nth) == (point, self.passed[point])), None)
        if strike is None:
            return None
        self.waiting.remove(strike)
        if strike.action == "kill":
            death = asyncio.create_task(self._kill(point, about))
            self._deaths.add(death)
            death.add_done_callback(self._deaths.discard)
            await asyncio.Future()  # whoever is here does not come back
        if strike.action == "overlap":
            host = self.hosts[0].give_up()
            self.given_up += [host] if host is not None else []
        if strike.action in ("delay", "overlap"):
            await self.clock.sleep(1.5 * ACK_WAIT)
            return None
        return "drop" if strike.action == "drop" else "duplicate"

    async def _kill(self, point: CrashPoint, about: str) -> None:
        process = point.split(".")[0]
        if process == "effect" and about.endswith(f".{kinds.ADDED}"):
            process = "worker"
        kill = {
            "dispatcher": self.restart_dispatcher,
            "worker": self.crash_worker,
            "reasoner": self.pool.restart,
        }.get(process, self.crash_host)
        async with self._dying:
            if point is CrashPoint.REASONER_KEEP_AFTER:
                self.model.forget(about)  # what is kept is to be found where it is kept
            await kill()

    async def note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        self.told.append((subject, codec.load(payload, content_type)))

    @property
    def at_rest(self) -> bool:
        """Whether all events of plans are processed."""
        return not self.world.streams["results"].messages and not self.world.timers.messages

    async def until(self, holds: Callable[[], bool]) -> None:
        """Advance the clock until a condition holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds() or self._deaths:
                    await self.advance(0.25)
                    await asyncio.sleep(0.0005)
        except TimeoutError:
            raise AssertionError(await self.story()) from None

    async def story(self) -> str:
        """Describe plans that do not end."""
        told = [
            f"{plan} {entry['revision']}: {entry['event']['type']} -> {entry['state']} {entry['status']}"
            for plan, entries in (await self.histories()).items()
            for entry in entries
        ]
        return "\n".join(
            ["stuck:", *told, f"{self.world.report()}", f"still to come: {self.waiting}, dying: {self._deaths}"]
        )

    async def histories(self) -> dict[str, list[dict[str, Any]]]:
        checkpoints = self.bus.checkpoints
        plans = [each.plan_id for each in await stored_plans(self.bus)]
        return {plan: [codec.unpack(each) for each in await checkpoints.history(plan)] for plan in plans}


@asynccontextmanager
async def deployed(strikes: tuple[Strike, ...]) -> AsyncIterator[Deployed]:
    env = Deployed(strikes)
    await env.pool.start()
    async with env:
        await env.bus.subscribe("plancast.>", env.note)
        await agents_are_there(env)
        async with fault_injection.installed(env.at_point):
            yield env
    for host in env.given_up:
        await host.stop()
    await env.pool.crash()


async def agents_are_there(env: Deployed) -> None:
    names = {each.name for each in (*env.app.planners, *env.app.workers)}
    async with asyncio.timeout(PATIENCE):
        while {agent["name"] for agent in (await env.bus.registry.list("agent")).values()} < names:
            await asyncio.sleep(0)
