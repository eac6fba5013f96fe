"""HostServices: what the plan actors of one host share, i.e. the bus, settings, caches and counters."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from cachetools import LRUCache

from plancast.agents.registry import AgentRegistry, Toolkit
from plancast.app import App
from plancast.models.port import ReasonerPort
from plancast.plan.status import PlanStatus
from plancast.plan_store.store import StoredPlans
from plancast.settings import Settings
from plancast.state_machine.machine import Machine
from plancast.tasks.progress import DecisionReporter
from plancast.turn.turn import TurnEnvironment
from plancast_actors.dead_letters import DeadLetterWriter
from plancast_actors.liveness.crash_record import Mark, Marks
from plancast_actors.maintenance.machine_gc import is_recent
from plancast_actors.plan_actors.event_decoder import EventDecoder
from plancast_actors.plan_actors.parking import ParkingReasoner
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.plan_actors.retries import Retries
from plancast_actors.telemetry.samples import Samples
from plancast_bus.clock import Clock
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.sessions import SessionBounds
from plancast_bus.topics import SOURCES

logger = logging.getLogger(__name__)
MAX_MACHINES = 1_024
"""State machines cached per host; each plan may have one of its own."""
MAX_EMITTED = 20_000
"""Passivated plans per host whose last effects are known to be acknowledged."""

_COUNTERS = (
    "turns", "activations", "dead_lettered", "passivations", "plans_begun", "commits_refused", "events_unwanted",
    "plans_ended", "decisions", "reasons",
)  # fmt: skip


class Emitted(NamedTuple):
    """A checkpoint whose effects are all acknowledged.

    The deduplication window of streams is limited, so effects are not sent again needlessly.
    """

    version: int
    sequences: Sequence[int] = ()
    """Stream sequences of the requests that are still open, in their order."""


class HostServices:
    """Services of the plan actors of one host; the base of :class:`~plancast_actors.hosting.plan_host.PlanHost`."""

    def __init__(
        self, app: App, bus: Bus, settings: Settings, name: str, clock: Clock | None, reasoner: ReasonerPort | None
    ) -> None:
        self.app = app
        self.bus = bus
        self.settings = settings
        self.name = name
        self.clock = clock or bus.clock
        self.decode = EventDecoder(bus.subjects, settings.bus.max_event_bytes).read
        self.registry = AgentRegistry(bus.registry, clock=self.clock)
        self.environment = TurnEnvironment(
            app=app,
            subjects=bus.subjects,
            encode=bus.encode,
            memory=StoredPlans(bus.checkpoints, bus.sessions),
            settings=settings.plans,
            max_event_bytes=settings.bus.max_event_bytes,
            registry=self.registry,
            toolkit=Toolkit(self.registry),
            reasoner=ParkingReasoner(reasoner, self.clock, DecisionReporter(bus.progress)),
            seals=bus.seals,
        )
        plans = settings.plans
        self.session_bounds = SessionBounds(plans.max_shared_values, plans.max_shared_bytes, plans.retention_seconds)
        self.requests_root = bus.subjects.prefix + "." + EventTopic.ACTION_REQUESTS + "."
        self.has_handlers = any(
            planner.handles_events
            or planner.transition_handler
            or any(map(planner.goal_handler, planner.goals))
            or any(map(planner.decider, planner.goals))
            for planner in (*app.planners, *app.retiring)
        )
        self.turns = self.activations = self.dead_lettered = self.passivations = 0
        self.plans_begun = self.commits_refused = self.parked = self.events_unwanted = 0
        self.plans_ended = {str(each): 0 for each in PlanStatus if each.finished}
        """By status."""
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        """By planner, model and action."""
        self.reasons: Counter[str] = Counter()
        """Dead-lettered events by reason."""
        self.samples: Samples | None = None
        """Receives measured latencies; None measures none."""
        self.undecodable = DeadLetterWriter(bus, "undecodable", logger)
        self.retries = Retries()
        self.incarnation_id = uuid4().hex
        self.marks: Marks | None = None
        """Name the events for which code of the app runs; None where no process would read them."""
        self._epochs = itertools.count()
        self._machines: LRUCache[str, Machine] = LRUCache(MAX_MACHINES)
        self._stored_at: LRUCache[str, float] = LRUCache(MAX_MACHINES)
        """When this host last stored a state machine, by the machine's hash."""
        self._emitted: LRUCache[str, Emitted] = LRUCache(MAX_EMITTED)
        self.machines_lost_at = 0.0
        """When state machines that were stored before may have been lost with their stream, seconds since the epoch."""

    def continue_counts(self, before: HostServices) -> None:
        """Take over the counters of a host that this one replaces in its process."""
        for counter in _COUNTERS:
            setattr(self, counter, getattr(before, counter))

    def mark(self, inbound: Inbound) -> Mark | None:
        """Mark an event for which code of the app is about to run."""
        marks = self.marks
        return None if marks is None else marks.begin(inbound.stream, inbound.sequence, inbound.subject)

    def next_epoch(self) -> str:
        """A unique id for a commit, across all hosts."""
        return f"{self.incarnation_id}-{next(self._epochs)}"

    def is_fact(self, topic: str) -> bool:
        """True if events of a topic need not belong to a plan."""
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
        return machine

    async def store_machine(self, machine: Machine) -> float:
        """Store a state machine before a checkpoint refers to it; returns when it was stored.

        It is stored again every day, see :mod:`plancast_actors.maintenance.machine_gc`.
        """
        now = self.clock.time()
        put_at = self.machine_stored_at(machine, now)
        if put_at is None:
            await self.bus.checkpoints.put_machine(machine.hash, machine.encoded)
            put_at = self._stored_at[machine.hash] = now
        return put_at

    def store_machines_again(self) -> None:
        """Store each state machine again before the next checkpoint that refers to it."""
        self._stored_at.clear()
        self.machines_lost_at = self.clock.time()

    def machine_stored_at(self, machine: Machine, now: float) -> float | None:
        """When this host has stored a state machine; None if never, or too long ago."""
        put_at = self._stored_at.get(machine.hash)
        return put_at if put_at is not None and is_recent(put_at, now) else None

    def take_emitted(self, key: str) -> Emitted | None:
        """The acknowledged effects of a plan that this host has passivated; None if not known."""
        return self._emitted.pop(key, None)

    def note_decisions(self, decisions: list[dict[str, Any]]) -> None:
        for decided in decisions:
            calls = decided["calls"]
            model = str(calls[-1]["model"]) if calls else ""
            self.decisions[decided["planner"], model, decided["decision"]["next_action"]["action"]] += 1

    def note_dead_letter(self, reason: str) -> None:
        self.dead_lettered += 1
        self.reasons[reason] += 1
