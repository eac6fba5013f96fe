"""RunContext: what a planner is shown when it is asked what comes next; and what a planner is.

Everything in a run is read-only. Dicts and lists are frozen copies (`plancast.json_values.limits.freeze`)
when the run is made: once, and not again for what was frozen before. So a planner can neither move the plan by
writing into its view, nor be seen by others who are asked about the same run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, Protocol

from plancast.errors import IdentityRequired, InvalidPlannerConfig
from plancast.json_values.limits import FrozenDict, freeze

if TYPE_CHECKING:
    from plancast.agents.definitions import AgentDefinition, EventDefinition
    from plancast.decisions.decision import PlannerDecision
    from plancast.tasks.registry import TaskRegistry

__all__ = [
    "AutonomousPlanner",
    "RunBudget",
    "RunContext",
    "RunControl",
    "TrajectoryEntry",
    "WakeMode",
    "resolve_wake_mode",
    "version_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WakeMode(StrEnum):
    """When a planner that awaits tasks is asked again."""

    PUSH = "push"
    """As soon as what it awaits is resolved."""
    POLL = "poll"
    """At every answer that the plan receives; it looks for itself whether its tasks are resolved."""
    HYBRID = "hybrid"
    """Both."""


class AutonomousPlanner(Protocol):
    """Decides what a plan does next: one call, one decision.

    One planner serves many runs at once, so it keeps nothing of a run between calls.
    """

    @property
    def name(self) -> str:
        """Unique in the app."""
        ...

    @property
    def wake_mode(self) -> WakeMode:
        """May be left out at run time, and is `push` then: see `resolve_wake_mode`."""
        ...

    async def next(self, run: RunContext) -> PlannerDecision:
        """The next step of a run.

        Raises:
            IdentityRequired: the run's identity is incomplete.
        """
        ...


def resolve_wake_mode(planner: object) -> WakeMode:
    """A planner's wake mode; push when it declares none.

    Raises:
        InvalidPlannerConfig: it declares one that does not exist.
    """
    declared = getattr(planner, "wake_mode", None)
    if declared is None:
        return WakeMode.PUSH
    try:
        return WakeMode(declared)
    except ValueError:
        name = getattr(planner, "name", type(planner).__name__)
        allowed = ", ".join(WakeMode)
        raise InvalidPlannerConfig(f"planner {name!r}: wake_mode is {declared!r:.60}, allowed: {allowed}") from None


def version_of(planner: object) -> str:
    """A planner's version, ``1`` when it declares none. Plans are finished by the version that began them."""
    return str(getattr(planner, "version", None) or "1")


@dataclass(frozen=True, kw_only=True)
class TrajectoryEntry:
    """Something that has happened in a run: an event that came, or a decision that was taken."""

    revision: int = 0
    """The turn that it belongs to."""
    time: datetime = _EPOCH
    """UTC; seconds since the epoch are accepted."""
    kind: Literal["event", "decision"] = "event"
    type: str = ""
    """The event's type, or the decision's action."""
    data: Any = None
    """The event's data; None for decisions."""
    decision: PlannerDecision | None = None
    """The decision; None for events."""
    topic: str = ""
    """The event's topic."""
    event_id: str = ""
    """The event's id."""
    parent_event_id: str = ""
    """The request that the event answers, if any."""
    note: str = ""
    """What came of it, when that needs saying: a refusal, an executor's error."""

    def __post_init__(self) -> None:
        _set(self, time=_utc(self.time), data=freeze(self.data))


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """What a run may spend, and has spent. A limit of None is no limit."""

    deadline: datetime | None = None
    """When the run must be over, UTC; seconds since the epoch are accepted."""
    max_actions: int | None = None
    """Executed decisions, but for the final complete."""
    actions: int = 0
    max_tokens: int | None = None
    tokens: int = 0
    max_cost: float | None = None
    """US dollars."""
    cost: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_actions", "actions", "max_tokens", "tokens", "max_cost", "cost"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"a budget's {name} is a number from 0, not {value!r}")
        if self.deadline is not None:
            _set(self, deadline=_utc(self.deadline))

    def exhausted_reason(self, now: datetime | float) -> str | None:
        """Why nothing but completing is left to do, led by the limit's name; None while all have something left.

        Args:
            now: UTC, or seconds since the epoch.
        """
        if self.deadline is not None and _utc(now) >= self.deadline:
            return f"deadline: {self.deadline.isoformat()} has passed"
        for limit, what in (("max_actions", "actions"), ("max_tokens", "tokens"), ("max_cost", "cost")):
            allowed, spent = getattr(self, limit), getattr(self, what)
            if allowed is not None and spent >= allowed:
                return f"{limit}: {spent} of {allowed} {'dollars' if what == 'cost' else what} are spent"
        return None


@dataclass(frozen=True, kw_only=True)
class RunControl:
    """What people have asked of a run since its last step."""

    cancelled: bool = False
    pause_requested: bool = False
    injected: Sequence[Any] = ()
    """Context that was handed in from outside, oldest first."""
    redirect_goal: Mapping[str, Any] | None = None
    """New data for the goal."""

    def __post_init__(self) -> None:
        _set(self, injected=tuple(freeze(each) for each in self.injected), redirect_goal=freeze(self.redirect_goal))


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A run as its planner sees it. Read-only; `dataclasses.replace` makes another one."""

    tenant_id: str
    user_id: str
    session_id: str
    run_id: str
    """The plan's id."""
    goal: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The goal's data."""
    goal_event: str = ""
    """The goal's event type."""
    plan_id: str = ""
    """The plan's id; the run's id when left out."""
    current_state: str = ""
    trigger: TrajectoryEntry | None = None
    """Why the planner is asked: the event that came."""
    results: Mapping[str, Any] = field(default_factory=FrozenDict)
    """What the plan knows so far, by name."""
    trajectory: Sequence[TrajectoryEntry] = ()
    """What has happened so far, oldest first."""
    events: Sequence[EventDefinition] = ()
    """What may be published."""
    agents: Sequence[AgentDefinition] = ()
    """The agents that live: what they take and what they send."""
    expected: Mapping[str, str] = field(default_factory=FrozenDict)
    """Events that people, webhooks or open requests may yet bring, with what they are."""
    tasks: TaskRegistry | None = None
    """The tasks and groups that the run has started, for planners that watch them; the plan keeps it."""
    budget: RunBudget = field(default_factory=RunBudget)
    control: RunControl = field(default_factory=RunControl)
    custom_context: Mapping[str, Any] = field(default_factory=FrozenDict)
    """What the app adds for its planners, JSON-able."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When the planner is asked, UTC; the runtime gives it. Seconds since the epoch are accepted."""

    def __post_init__(self) -> None:
        _set(
            self,
            goal=freeze(self.goal),
            plan_id=self.plan_id or self.run_id,
            results=freeze(self.results),
            trajectory=tuple(self.trajectory),
            events=tuple(self.events),
            agents=tuple(self.agents),
            expected=freeze(self.expected),
            custom_context=freeze(self.custom_context),
            now=_utc(self.now),
        )

    @property
    def missing_identity(self) -> tuple[str, ...]:
        """The parts of the identity that are empty."""
        return tuple(part for part in ("tenant_id", "user_id", "session_id", "run_id") if not getattr(self, part))

    def require_identity(self) -> None:
        """Check that the run can be told from all others.

        Raises:
            IdentityRequired: a part of its identity is empty.
        """
        if missing := self.missing_identity:
            raise IdentityRequired(missing)

    @property
    def exhausted_reason(self) -> str | None:
        """Why the budget is exhausted now; None when it is not."""
        return self.budget.exhausted_reason(self.now)


def _set(value: object, **fields: Any) -> None:
    """Set fields of a frozen dataclass while it is being made."""
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _utc(time: datetime | float) -> datetime:
    if not isinstance(time, datetime):
        return datetime.fromtimestamp(time, UTC)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
