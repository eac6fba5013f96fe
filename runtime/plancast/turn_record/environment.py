"""The environment of turns: the app with its planners, the codec and the ports; and the outcomes of a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from plancast.app import App
from plancast.context import PlanMemory
from plancast.errors import InvalidGoal
from plancast.json_values.schemas import faults_at
from plancast.plan.context import PlanContext
from plancast.plan_store.store import StoredPlans
from plancast.planners.contract import AutonomousPlanner, version_of
from plancast.planners.planner import Handler, Planner
from plancast.settings import PlanSettings
from plancast_bus.events.envelope import EventEnvelope, WireEvent
from plancast_bus.ports.seals import Seals
from plancast_bus.subjects import Subjects


class TurnOutcome(StrEnum):
    """Outcome of a turn, and so of its event."""

    COMMIT = "commit"
    """The plan has changed: commit, emit, then acknowledge."""
    EMIT = "emit"
    """No plan was involved, but a handler has sent something: emit, then acknowledge."""
    IGNORE = "ignore"
    """Nothing has changed: acknowledge."""
    UNKNOWN = "unknown"
    """No plan has this correlation id (yet)."""
    REFUSE = "refuse"
    """The event may not move this plan: dead-letter it with the reason."""


@dataclass(frozen=True, slots=True)
class TurnEnvironment:
    """The app and the ports that all turns of a host share."""

    app: App
    subjects: Subjects
    encode: Callable[[EventEnvelope | WireEvent], tuple[bytes, str]]
    memory: PlanMemory
    settings: PlanSettings = field(default_factory=PlanSettings)
    max_event_bytes: int = 1_048_576
    registry: Any = None
    toolkit: Any = None
    reasoner: Any = None
    seals: Seals | None = None
    """Seals what child plans return; None, as in a replay: nothing is sealed or verified."""
    goals: Mapping[str, Planner] = field(init=False)
    planners: Mapping[tuple[str, str], Planner] = field(init=False)
    """Planners by name and version, including those that take no new goals."""
    current: Mapping[str, Planner] = field(init=False)
    """Planners that take new goals, by name."""
    deciders: Mapping[tuple[str, str], AutonomousPlanner] = field(init=False)
    """Planners that decide step by step, by name and version."""
    expected: Mapping[str, str] = field(init=False)
    """Descriptions of the events that people and webhooks send, as planners declare them."""
    listeners: tuple[Planner, ...] = field(init=False)
    """Planners with event handlers."""
    in_full: bool = field(init=False)
    """True if timelines keep the data of sent events and the replies of models."""
    checked: set[str] = field(init=False, default_factory=set)
    """Hashes of state machines that passed validation."""

    def __post_init__(self) -> None:
        app = self.app
        deciders = {(each.name, version_of(each)): each for each in app.deciders()}
        expected: dict[str, str] = {}
        for each in (*deciders.values(), *app.retiring, *app.planners):
            expected |= getattr(each, "expected", {})
        for name, value in {
            "goals": app.goals,
            "planners": {(each.name, each.version): each for each in (*app.retiring, *app.planners)},
            "current": {each.name: each for each in app.planners},
            "deciders": deciders,
            "expected": expected,
            "listeners": tuple(each for each in app.planners if each.handles_events),
            "in_full": self.settings.timeline_detail == "full",
        }.items():
            object.__setattr__(self, name, value)

    def memory_of(self, tenant_id: str) -> PlanMemory:
        """``context.memory`` of a turn; it finds plans of this tenant only."""
        return self.memory.of_tenant(tenant_id) if isinstance(self.memory, StoredPlans) else self.memory

    def planner_of(self, plan: PlanContext) -> Planner | None:
        """The planner whose handlers move a plan."""
        if plan.planner_version and not plan.decider:
            return self.planners.get((plan.planner, plan.planner_version))
        return self.current.get(plan.planner)

    def transition_handler(self, plan: PlanContext) -> Handler | None:
        """The transition handler of a plan's planner."""
        planner = self.planner_of(plan)
        return planner.transition_handler if planner is not None else None

    def decider_of(self, plan: PlanContext) -> AutonomousPlanner | None:
        """The planner that decides a plan step by step."""
        return self.deciders.get((plan.decider, plan.planner_version)) if plan.decider else None

    def check_goal(self, event_type: str, data: Any) -> None:
        """Check the data of a goal by its schema.

        Raises:
            InvalidGoal: they break it.
        """
        planner = self.goals.get(event_type)
        schema = planner.goal_schema(event_type) if planner is not None else None
        if schema is not None and (faults := faults_at("goal_data", schema, data)):
            raise InvalidGoal(event_type, faults)

    def runs_itself(self, event: EventEnvelope, plan: PlanContext | None) -> bool:
        """True if a state machine alone moves the plan: the event certainly calls no code of the app and no schema."""
        if plan is not None:
            return self.is_moved_by_machine(plan)
        planner = self.goals.get(event.type)
        return (
            not self.listeners
            and planner is not None
            and not planner.transition_handler
            and planner.goal_handler(event.type) is None
            and planner.machine(event.type) is not None
            and planner.goal_schema(event.type) is None
        )

    def is_moved_by_machine(self, plan: PlanContext) -> bool:
        """True if a state machine alone moves a plan: no code of the app sees it."""
        coded = self.listeners or plan.decider or self.transition_handler(plan) is not None
        return bool(plan.state_machine) and not coded

    def missing_code(self, plan: PlanContext) -> str | None:
        """Why a plan cannot continue: the planner version that began it is gone; None when it is there."""
        if not plan.planner_version:
            return None
        known = self.deciders if plan.decider else self.planners
        name = plan.decider or plan.planner
        if (name, plan.planner_version) in known:
            return None
        there = ", ".join(f"{each} version {version}" for each, version in sorted(known)) or "none"
        return (
            f"planner {name!r} version {plan.planner_version!r}, which began this plan, is gone; the app has: {there}. "
            "To finish such plans, give the old one to App(retiring=[...])"
        )
