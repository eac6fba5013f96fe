"""PlanHost: where plan actors live. Takes events in batches, reports what became of them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from plancast.agents.registry import AgentRegistry, Toolkit
from plancast.app import App
from plancast.models.port import ReasonerPort
from plancast.plan.status import PlanStatus
from plancast.plan.store import StoredPlans
from plancast.settings import Settings
from plancast.state_machine.machine import Machine
from plancast.turn.turn import TurnEnvironment
from plancast_actors.dead_letters import Poison
from plancast_actors.hosting.activation import Emitted
from plancast_actors.hosting.event_decoder import InboundReader
from plancast_actors.hosting.parking import ParkingReasoner
from plancast_actors.hosting.plan_actor import PlanActor
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_actors.hosting.reports import MAX_REMEMBERED, REPORT_WAIT, REPORTS_SECONDS, Reports
from plancast_actors.hosting.retries import Retries
from plancast_actors.liveness.registration import Presence
from plancast_actors.maintenance.machine_gc import is_kept
from plancast_actors.telemetry.samples import Samples
from plancast_bus.clock import Clock, SystemClock
from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.topics import SOURCES

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)
LOOKED_AT = 16
"""Actors that are looked at to make room for another one."""
MACHINES = 1_024
"""State machines that a host remembers; plans may each have one of their own."""
AT_ONCE = 32
"""Events that are taken in before others have their turn: acknowledgements, calls, models' answers."""


class PlanHost:
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
        self.app = app
        self.bus = bus
        self.settings = settings
        self.name = name
        self.clock = clock or SystemClock()
        self._subjects = bus.subjects
        self.decode = InboundReader(bus.subjects, settings.bus.max_event_bytes).read
        """Reads the event of an :class:`Inbound`."""
        self.registry = AgentRegistry(bus.registry, clock=self.clock)
        self.environment = TurnEnvironment(
            app=app,
            subjects=bus.subjects,
            encode=bus.encode,
            memory=StoredPlans(bus.checkpoints),
            settings=settings.plans,
            max_event_bytes=settings.bus.max_event_bytes,
            registry=self.registry,
            toolkit=Toolkit(self.registry),
            reasoner=ParkingReasoner(reasoner),
        )
        self.requests_root = bus.subjects.prefix + "." + EventTopic.ACTION_REQUESTS + "."
        self.has_handlers = any(
            planner.handles_events
            or planner.transition_handler
            or any(map(planner.goal_handler, planner.goals))
            or any(map(planner.decider, planner.goals))
            for planner in (*app.planners, *app.retiring)
        )
        self.turns = self.activations = self.put_aside = self.passivations = 0
        self.plans_begun = self.commits_refused = self.parked = 0
        self.plans_ended = {str(each): 0 for each in PlanStatus if each.finished}
        """By status."""
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        """By planner, model and action."""
        self.reasons: Counter[str] = Counter()
        """Why events were put aside."""
        self.samples: Samples | None = None
        """Where latencies are kept; None measures none."""
        self.poison = Poison(bus, "undecodable", logger)
        """Puts events aside that are none."""
        self.retries = Retries()
        self._actors: OrderedDict[str, PlanActor] = OrderedDict()
        self._emitted: OrderedDict[str, Emitted] = OrderedDict()
        self._incarnation = uuid4().hex
        self._epochs = itertools.count()
        self._machines: OrderedDict[str, Machine] = OrderedDict()
        self._kept: OrderedDict[str, float] = OrderedDict()
        """When this host has put machines into the store, by their hashes."""
        self._reports: defaultdict[str, Reports] = defaultdict(Reports)
        self._sweeper: asyncio.Task[None] | None = None
        self._presence: Presence | None = None
        self._stopping = False
        self._new_actor: Callable[[PlanHost, str], PlanActor] = PlanActor
        if tracing is not None:
            from plancast_actors.hosting.tracing import TracedPlanActor, TurnTraces

            self._new_actor = partial(TracedPlanActor, traces=TurnTraces(tracing))

    def start(self) -> None:
        """Begin to keep the app registered, and to drop idle plans; the first event does it too."""
        if self._sweeper is None and not self._stopping:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
            self._presence = Presence.of_app(self.app, self.registry, self.clock)

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
            actor = self._actors[key] = self._new_actor(self, key)
        else:
            self._actors.move_to_end(key)
        actor.last_used = now
        reports = self._reports[dispatcher]
        reports.owed += 1
        actor.deliver(inbound, reports)

    async def incarnation(self) -> str:
        """See :class:`plancast_actors.hosting.protocol.HostPort`."""
        return self._incarnation

    async def recycle(self) -> None:
        """Nothing: it is for whoever runs the host to end it."""

    # What plan actors call.

    def next_epoch(self) -> str:
        """A text that no commit has carried before, of this or any other host."""
        return f"{self._incarnation}-{next(self._epochs)}"

    def is_fact(self, topic: str) -> bool:
        """Whether a topic is one for observers, whose events need not belong to a plan."""
        return SOURCES[topic] == "facts"

    async def machine(self, digest: str) -> Machine | None:
        """The state machine with this content hash; None for the empty hash."""
        if not digest:
            return None
        machine = self._machines.get(digest)
        if machine is None:
            encoded = await self.bus.checkpoints.get_machine(digest)
            if encoded is None:
                raise LookupError(f"the state machine {digest} is not in the store")
            machine = self._machines[digest] = Machine.decode(encoded)
            if len(self._machines) > MACHINES:
                self._machines.popitem(last=False)
        return machine

    async def keep_machine(self, machine: Machine) -> float:
        """Have a state machine in the store, before a checkpoint refers to it; returns when it was put there.

        It is put again every day: see :mod:`plancast_actors.maintenance.machine_gc`.
        """
        now = self.clock.time()
        put_at = self.kept_at(machine, now)
        if put_at is None:
            await self.bus.checkpoints.put_machine(machine.hash, machine.encoded)
            put_at = self._kept[machine.hash] = now
            self._kept.move_to_end(machine.hash)
            if len(self._kept) > MACHINES:
                self._kept.popitem(last=False)
        return put_at

    def kept_at(self, machine: Machine, now: float) -> float | None:
        """When this host has put a state machine into the store; None when that was never, or too long ago."""
        put_at = self._kept.get(machine.hash)
        return put_at if put_at is not None and is_kept(put_at, now) else None

    @property
    def live(self) -> int:
        """How many plan actors are in memory."""
        return len(self._actors)

    def note_decisions(self, decisions: list[dict[str, Any]]) -> None:
        """Count the decisions of a turn that is durable."""
        for decided in decisions:
            calls = decided["calls"]
            model = str(calls[-1]["model"]) if calls else ""
            self.decisions[decided["planner"], model, decided["decision"]["next_action"]["action"]] += 1

    def rested(self, actor: PlanActor) -> None:
        """An actor has worked off its mailbox; one whose plan is finished has no further use."""
        if actor.idle and actor.finished and self._actors.get(actor.correlation_id) is actor:
            del self._actors[actor.correlation_id]

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
            self._emitted[key] = emitted
            if len(self._emitted) > MAX_REMEMBERED:
                self._emitted.popitem(last=False)

    def take_emitted(self, key: str) -> Emitted | None:
        """What was out of a plan that this host has passivated; None when that is not known."""
        return self._emitted.pop(key, None)

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
        while not self.poison.idle or any(not actor.idle for actor in self._actors.values()):
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
        if self._presence is not None:
            await self._presence.end()
        await self.poison.stop()
        for actor in list(self._actors.values()):
            await actor.stop()
        self._actors.clear()
