"""PlanHost: where plan actors live. Takes events in batches, reports what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from plancast.app import App
from plancast.models.port import ReasonerPort
from plancast.settings import Settings
from plancast_actors.hosting.activation import Activation
from plancast_actors.hosting.plan_actor import PlanActor
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_actors.hosting.reports import REPORT_WAIT, REPORTS_SECONDS, Reports
from plancast_actors.hosting.services import HostServices
from plancast_actors.liveness.registration import Registration
from plancast_bus.clock import Clock
from plancast_bus.errors import InvalidSubject
from plancast_bus.ports.bus import Bus

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)
LOOKED_AT = 16
"""Actors that are looked at to make room for another one."""
AT_ONCE = 32
"""Events that are taken in before others have their turn: acknowledgements, calls, models' answers."""


class PlanHost(HostServices):
    """Holds plan actors in memory while they are in use, and drops them when they are not.

    Args:
        app: Planners of the plans.
        bus: A connection of the host's own.
        settings: ``hosts`` and ``plans`` are used.
        name: For logs and status.
        reasoner: Asks models on behalf of plans; None has them asked in this process.
        tracing: Makes spans of turns; None makes none.
    """

    def __init__(
        self,
        app: App,
        bus: Bus,
        settings: Settings,
        *,
        name: str = "host-0",
        clock: Clock | None = None,
        reasoner: ReasonerPort | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(app, bus, settings, name, clock, reasoner)
        self._subjects = bus.subjects
        self._actors: OrderedDict[str, PlanActor] = OrderedDict()
        self._reports: defaultdict[str, Reports] = defaultdict(Reports)
        self._sweeper: asyncio.Task[None] | None = None
        self._registration: Registration | None = None
        self._stopping = False
        self._new_state: Callable[[HostServices, str], Activation] = Activation
        if tracing is not None:
            from plancast_actors.hosting.tracing import TracedActivation, TurnTraces

            self._new_state = partial(TracedActivation, traces=TurnTraces(tracing))

    def start(self) -> None:
        """Begin to keep the app registered, and to drop idle plans; the first event does it too."""
        if self._sweeper is None and not self._stopping:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
            self._registration = Registration.of_app(self.app, self.registry, self.clock)

    # What dispatchers call.

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """See :class:`plancast_actors.hosting.protocol.HostPort`."""
        self.start()
        now = self.clock.time()
        for number, inbound in enumerate(batch, 1):
            self._deliver(dispatcher, inbound, now)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        reports = self._reports[dispatcher]
        reports.asked_at = now
        return await reports.take(REPORT_WAIT if wait else 0.0)

    def _deliver(self, dispatcher: str, inbound: Inbound, now: float) -> None:
        try:
            key = self._subjects.parse_stored(inbound.subject).correlation_id
        except InvalidSubject:
            key = ""
        actor = self._actors.get(key)
        if actor is None:
            if len(self._actors) >= self.settings.hosts.max_live_plans:
                self._passivate_some()
            actor = self._actors[key] = PlanActor(self._new_state(self, key), self._rested)
        else:
            self._actors.move_to_end(key)
        actor.last_used = now
        reports = self._reports[dispatcher]
        reports.owed += 1
        actor.deliver(inbound, reports)

    async def incarnation(self) -> str:
        """See :class:`plancast_actors.hosting.protocol.HostPort`."""
        return self.incarnation_id

    async def recycle(self) -> None:
        """Nothing: it is for whoever runs the host to end it."""

    @property
    def live(self) -> int:
        """Number of plan actors in memory."""
        return len(self._actors)

    def _rested(self, actor: PlanActor) -> None:
        """Drop an idle actor whose plan is finished."""
        key = actor.state.correlation_id
        if actor.idle and actor.finished and self._actors.get(key) is actor:
            del self._actors[key]

    # Passivation.

    async def _sweep(self) -> None:
        idle = self.settings.hosts.idle_seconds
        while True:
            await self.clock.sleep(max(0.05, min(idle / 4, 30.0)))
            self.passivate(idle)
            self._forget_reports()

    def _forget_reports(self) -> None:
        """Drop what nobody will ask for: every start of a dispatcher asks under a name of its own."""
        before = self.clock.time() - REPORTS_SECONDS
        for name in [name for name, reports in self._reports.items() if reports.asked_at < before]:
            del self._reports[name]

    def passivate(self, idle_seconds: float) -> int:
        """Drop the actors that had no event for so long; returns how many."""
        before = self.clock.time() - idle_seconds
        dropped = 0
        for key in list(self._actors):
            actor = self._actors[key]
            if actor.last_used > before:
                break
            if actor.idle:
                self._drop(key, actor)
                dropped += 1
        return dropped

    def _passivate_some(self) -> None:
        """Make room: drop the least recently used actor that is idle. Where many are busy, not all are looked at."""
        now = self.clock.time()
        for _ in range(min(LOOKED_AT, len(self._actors))):
            key, actor = next(iter(self._actors.items()))
            if actor.idle:
                self._drop(key, actor)
                return
            actor.last_used = now
            self._actors.move_to_end(key)

    def _drop(self, key: str, actor: PlanActor) -> None:
        del self._actors[key]
        self.passivations += 1
        emitted = actor.emitted
        if emitted is not None:
            self.note_emitted(key, emitted)

    # Status and shutdown.

    async def status(self) -> dict[str, Any]:
        """What the host does, for people."""
        return {
            "name": self.name,
            "app": self.app.name,
            "live_plans": len(self._actors),
            "busy_plans": sum(not actor.idle for actor in self._actors.values()),
            "turns": self.turns,
            "activations": self.activations,
            "passivations": self.passivations,
            "dead_letters": self.put_aside,
        }

    async def drain(self, timeout: float = 10.0) -> bool:
        """Wait until no event is in hand; True when that was reached within ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self.undecodable.idle or any(not actor.idle for actor in self._actors.values()):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def stop(self) -> None:
        """Stop all actors; what they had in hand is delivered again to whoever comes next."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        if self._registration is not None:
            await self._registration.end()
        await self.undecodable.stop()
        for actor in list(self._actors.values()):
            await actor.stop()
        self._actors.clear()
