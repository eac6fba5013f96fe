"""PlanHost: holds plan actors; takes events in batches, and reports their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from plancast.agents.definitions import EventDefinition
from plancast.app import App
from plancast.models.port import ReasonerPort
from plancast.settings import Settings
from plancast_actors.liveness.registration import Registration
from plancast_actors.plan_actors.activation import Activation
from plancast_actors.plan_actors.plan_actor import PlanActor
from plancast_actors.plan_actors.protocol import HostPort, Inbound, Outcome
from plancast_actors.plan_actors.reports import REPORT_WAIT, REPORTS_SECONDS, Reports
from plancast_actors.plan_actors.services import HostServices
from plancast_bus.clock import Clock
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.retry import retrying

if TYPE_CHECKING:
    from plancast.notifications.notifier import Notifier
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)
MAX_CHECKED = 16
"""Actors that are checked to find an idle one to passivate."""
BATCH = 32
"""Events delivered before the event loop runs other work: acknowledgements, calls, model replies."""


def notifier_of(app: App, bus: Bus, settings: Settings, clock: Clock) -> Notifier:
    """The notifier of an app; what it needs is imported for it, since most hosts never notify."""
    from plancast.notifications.notifier import Audience, Notifier

    planners = (*app.retiring, *app.planners)
    people = {
        event_type: EventDefinition(event_type, EventTopic.PLAN_EVENTS, description)
        for planner in planners
        for event_type, description in planner.expected.items()
    }
    audience = Audience(app.name, app.notifications, frozenset(each.name for each in planners), people)
    return Notifier(audience, bus, settings.console, clock)


class PlanHost(HostServices, HostPort):
    """Holds plan actors in memory while they are in use, and passivates idle ones.

    Args:
        app: Planners of the plans.
        bus: A connection used by this host only.
        settings: ``hosts`` and ``plans`` are used.
        name: For logs and status.
        clock: The machine's by default.
        reasoner: Forwards model requests; None calls models in this process.
        tracing: Makes spans of turns; None makes none.
        resident: Whether it stays, for all plans; one that is made for a plan neither registers the app nor passivates.
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
        resident: bool = True,
    ) -> None:
        super().__init__(app, bus, settings, name, clock, reasoner)
        self._resident = resident
        self.at_rest: Callable[[], object] | None = None
        """Called when the mailbox of an actor is empty."""
        self._subjects = bus.subjects
        self._actors: OrderedDict[str, PlanActor] = OrderedDict()
        self._reports: defaultdict[str, Reports] = defaultdict(Reports)
        self._passivation: asyncio.Task[None] | None = None
        self._registration: Registration | None = None
        self._restorations: asyncio.Task[None] | None = None
        self._notifier: Notifier | None = None
        self.notifies: bool = True
        """True if it may send the notifications of the app."""
        self._stopping = False
        self._new_state: Callable[[HostServices, str], Activation] = Activation
        if tracing is not None:
            from plancast_actors.hosting.tracing import TracedActivation, TurnTraces

            self._new_state = partial(TracedActivation, traces=TurnTraces(tracing))

    def start(self) -> None:
        """Register the app, and begin to passivate idle plans; the first event does it too."""
        if self._passivation is None and self._resident and not self._stopping:
            self._passivation = asyncio.get_running_loop().create_task(self._passivate_idle())
            self._registration = Registration.of_app(self.app, self.registry, self.clock)
            self._restorations = asyncio.get_running_loop().create_task(self._follow_restorations())
            if self.notifies and self.app.notifications:
                self._notifier = notifier_of(self.app, self.bus, self.settings, self.clock)
                self._notifier.start()

    # What dispatchers call.

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        self.start()
        now = self.clock.time()
        for number, inbound in enumerate(batch, 1):
            self._deliver(dispatcher, inbound, now)
            if number % BATCH == 0:
                await asyncio.sleep(0)
        reports = self._reports[dispatcher]
        reports.called_at = now
        return await reports.take(REPORT_WAIT if wait else 0.0)

    def _deliver(self, dispatcher: str, inbound: Inbound, now: float) -> None:
        key = self._subjects.correlation_of(inbound.subject)
        actor = self._actors.get(key)
        if actor is None:
            if len(self._actors) >= self.settings.hosts.max_live_plans:
                self._make_room()
            actor = self._actors[key] = PlanActor(self._new_state(self, key), self._rested)
        else:
            self._actors.move_to_end(key)
        actor.last_used = now
        reports = self._reports[dispatcher]
        reports.owed += 1
        actor.deliver(inbound, reports)

    async def incarnation(self) -> str:
        return self.incarnation_id

    async def recycle(self) -> None:
        """Do nothing: the process that runs the host has to be killed from outside."""

    @property
    def live(self) -> int:
        return len(self._actors)

    @property
    def quiet(self) -> bool:
        """True if no event is in flight."""
        return self.undecodable.idle and all(actor.idle for actor in self._actors.values())

    @property
    def untaken(self) -> bool:
        """True if dispatchers have not taken all outcomes."""
        return any(reports.untaken for reports in self._reports.values())

    def _rested(self, actor: PlanActor) -> None:
        """Drop an idle actor whose plan is finished."""
        key = actor.state.correlation_id
        if actor.idle and actor.finished and self._actors.get(key) is actor:
            del self._actors[key]
        if self.at_rest is not None:
            self.at_rest()

    async def _follow_restorations(self) -> None:
        """Store state machines again when streams were deleted; until cancelled."""

        async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
            self.store_machines_again()

        subscription = await retrying(lambda: self.bus.subscribe(self._subjects.restored, notice), logger)
        try:
            await asyncio.Event().wait()
        finally:
            await subscription.close()

    # Passivation.

    async def _passivate_idle(self) -> None:
        idle = self.settings.hosts.idle_seconds
        while True:
            await self.clock.sleep(max(0.05, min(idle / 4, 30.0)))
            self.passivate(idle)
            self._forget_reports()

    def _forget_reports(self) -> None:
        """Drop the outcomes of dispatchers that have ended; every start of a dispatcher uses a new name."""
        before = self.clock.time() - REPORTS_SECONDS
        for name in [name for name, reports in self._reports.items() if reports.called_at < before]:
            del self._reports[name]

    def passivate(self, idle_seconds: float) -> int:
        """Drop the actors that had no event for a time; returns their number."""
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

    def _make_room(self) -> None:
        """Drop the least recently used idle actor; if many are busy, not all are checked."""
        now = self.clock.time()
        for _ in range(min(MAX_CHECKED, len(self._actors))):
            key, actor = next(iter(self._actors.items()))
            if actor.idle:
                self._drop(key, actor)
                return
            actor.last_used = now
            self._actors.move_to_end(key)

    def _drop(self, key: str, actor: PlanActor) -> None:
        del self._actors[key]
        self.passivations += 1
        if (emitted := actor.state.emitted) is not None:
            self._emitted[key] = emitted

    # Status and shutdown.

    async def status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "app": self.app.name,
            "live_plans": len(self._actors),
            "busy_plans": sum(not actor.idle for actor in self._actors.values()),
            "turns": self.turns,
            "activations": self.activations,
            "passivations": self.passivations,
            "dead_letters": self.dead_lettered,
        }

    async def drain(self, timeout: float = 10.0) -> bool:
        """Wait until no event is in flight; True if reached within ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self.quiet:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def stop(self) -> None:
        """Stop all actors; their events in flight are redelivered."""
        self._stopping = True
        if self._passivation is not None:
            tasks = [each for each in (self._passivation, self._restorations) if each is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._passivation = self._restorations = None
        if self._notifier is not None:
            await self._notifier.stop()
        if self._registration is not None:
            await self._registration.end()
        await self.undecodable.stop()
        for actor in list(self._actors.values()):
            await actor.stop()
        self._actors.clear()
