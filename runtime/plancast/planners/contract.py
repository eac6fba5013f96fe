"""The contract of autonomous planners: RunContext, the view that they decide on, and AutonomousPlanner itself.

A run is read-only: its dicts and lists are frozen copies (`plancast.json_values.limits.freeze`), made once. So a
planner can neither change the plan nor affect concurrent decisions on the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from plancast.errors import IdentityRequired, InvalidPlannerConfig
from plancast.json_values.limits import MAX_SECONDS, FrozenDict, freeze, is_duration, shown

if TYPE_CHECKING:
    from plancast.agents.definitions import AgentDefinition, EventDefinition
    from plancast.decisions.decision import PlannerDecision
    from plancast.tasks.registry import TaskRegistry

MAX_BUDGET: Final = 1e15
"""Limits of a budget, and what is spent of it, are less than this many actions, tokens or dollars."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WakeMode(StrEnum):
    """The trigger of the next call of a planner that awaits tasks."""

    PUSH = "push"
    """As soon as the awaited task or group is resolved."""
    POLL = "poll"
    """At every response that the plan receives; the planner checks its tasks itself."""
    HYBRID = "hybrid"
    """Both."""


class AutonomousPlanner(Protocol):
    """Decides the next step of a plan: one decision a call.

    One planner serves many runs concurrently, so it holds no state of a run between calls.
    """

    @property
    def name(self) -> str:
        """Unique in the app."""
        ...

    @property
    def wake_mode(self) -> WakeMode:
        """`push` when a planner does not declare it: see `resolve_wake_mode`."""
        ...

    async def next(self, run: RunContext) -> PlannerDecision:
        """Decide the next step of a run.

        Raises:
            IdentityRequired: the run's identity is incomplete.
        """
        ...


def resolve_wake_mode(planner: object) -> WakeMode:
    """A planner's wake mode, push by default.

    Raises:
        InvalidPlannerConfig: the planner declares a wake mode that does not exist.
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
    """A planner's version, ``1`` by default. Plans are finished by the version that started them."""
    return str(getattr(planner, "version", None) or "1")


def checked_deadline(name: str, seconds: Any) -> float | None:
    """Check a planner's deadline.

    Raises:
        InvalidPlannerConfig: it is no positive number of seconds, or is more than ten years.
    """
    if seconds is None or is_duration(seconds):
        return seconds
    allowed = f"seconds, more than 0, at most {MAX_SECONDS} (ten years)"
    raise InvalidPlannerConfig(f"planner {name!r}: deadline is {shown(seconds)}, allowed: {allowed}")


@dataclass(frozen=True, kw_only=True)
class TrajectoryEntry:
    """An entry of a run's history: an event, or a decision."""

    revision: int = 0
    """Revision of the plan after the entry's turn."""
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
    """Id of the request that the event responds to; empty: none."""
    note: str = ""
    """A refusal, or an executor's error; empty: none."""

    def __post_init__(self) -> None:
        _set(self, time=_utc(self.time), data=freeze(self.data))


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """The limits of a run, and what it has spent. A limit of None is no limit."""

    deadline: datetime | None = None
    """UTC; seconds since the epoch are accepted."""
    max_actions: int | None = None
    """Executed decisions, without the final complete."""
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

    def no_call_reason(self, now: datetime | float) -> str | None:
        """As :meth:`exhausted_reason`, for a call of a model: when only actions are spent, one may still complete."""
        return replace(self, max_actions=None).exhausted_reason(now)

    def exhausted_reason(self, now: datetime | float) -> str | None:
        """The exhausted limit, its name first, after which only complete is left; None while no limit is exhausted.

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
    """Control requests by people since the last step of a run."""

    cancelled: bool = False
    pause_requested: bool = False
    injected: Sequence[Any] = ()
    """Context injected from outside, oldest first."""
    redirect_goal: Mapping[str, Any] | None = None
    """New data for the goal."""

    def __post_init__(self) -> None:
        _set(self, injected=tuple(freeze(each) for each in self.injected), redirect_goal=freeze(self.redirect_goal))


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A planner's view of a run. Read-only; `dataclasses.replace` makes a changed copy."""

    tenant_id: str
    user_id: str
    session_id: str
    run_id: str
    """The plan's id."""
    goal: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The goal's data."""
    goal_event: str = ""
    """The goal's event type."""
    response_event: str = ""
    """The event of the plan's final response, where the requester has named one."""
    plan_id: str = ""
    """The plan's id; by default the run's."""
    current_state: str = ""
    trigger: TrajectoryEntry | None = None
    """The event that triggers this decision."""
    results: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Results so far, by name."""
    trajectory: Sequence[TrajectoryEntry] = ()
    """History so far, oldest first."""
    events: Sequence[EventDefinition] = ()
    """Events that may be published."""
    agents: Sequence[AgentDefinition] = ()
    """Live agents, with the events that they consume and produce."""
    expected: Mapping[str, str] = field(default_factory=FrozenDict)
    """Events that people, webhooks or open requests may still send, with their descriptions."""
    tasks: TaskRegistry | None = None
    """Tasks and groups that the run has started, stored with the plan."""
    budget: RunBudget = field(default_factory=RunBudget)
    control: RunControl = field(default_factory=RunControl)
    custom_context: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Additional context from the app, JSON-able."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time of the decision, UTC, set by the runtime; seconds since the epoch are accepted."""

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
        """Check that no part of the run's identity is empty.

        Raises:
            IdentityRequired: a part is empty.
        """
        if missing := self.missing_identity:
            raise IdentityRequired(missing)

    @property
    def exhausted_reason(self) -> str | None:
        """The limit of the budget that is exhausted now; None: none."""
        return self.budget.exhausted_reason(self.now)


def _set(value: object, **fields: Any) -> None:
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _utc(time: datetime | float) -> datetime:
    if not isinstance(time, datetime):
        return datetime.fromtimestamp(time, UTC)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
