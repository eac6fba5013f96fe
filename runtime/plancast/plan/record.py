"""The data of one plan: identity, state machine, progress, open requests, early events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from plancast.plan.branches import Branches
from plancast.plan.effects.entries import EffectEntry
from plancast.plan.requests import Request
from plancast.plan.status import PAUSED, PENDING, PlanStatus
from plancast.state_machine.machine import START, Machine
from plancast.state_machine.states import StateConfig
from plancast.tasks.registry import TaskRegistry
from plancast_bus.ports.checkpoints import Attribute

WAITING_FOR, WAIT_TIMEOUT = "_waiting_for", "_wait_timeout"
"""Names in the results: the event that a planner's WAIT waits for, and its timeout in seconds."""
OWN_RESULTS = frozenset({WAITING_FOR, WAIT_TIMEOUT, "final", "injected", "user_input"})
"""Keys of a plan's results that are no states and no events."""


HOLD, HELD_WAIT = "pause", "pause_of_wait"
"""Names in ``control``: the reason of an operator's pause, and that the plan was paused already by its own handlers."""
AFTER, GOAL, FOLLOWERS = "after", "goal", "followers"
"""Keys of a plan's dependencies: the plans that it waits for, its goal event meanwhile, the plans that wait for it."""


class _Open:
    """Gives a class with slots a ``__dict__`` too, for attributes that are not fields."""


@dataclass(kw_only=True, slots=True)  # slots: to read an attribute that has a default costs a fifth
class PlanRecord(_Open):
    """The fields of a plan. :class:`~plancast.plan.context.PlanContext` adds the methods that users call."""

    plan_id: str
    state_machine: dict[str, StateConfig] = field(repr=False)
    """States by name. A plan that a planner decides step by step has none."""
    goal_event: str = ""
    """Type of the event that created the plan."""
    goal_data: dict[str, Any] = field(default_factory=dict)
    response_event: str = ""
    """Type of the final response, from the request; empty: ``<goal>.completed`` or ``.failed``."""
    status: PlanStatus = PENDING
    current_state: str = START
    results: dict[str, Any] = field(default_factory=dict)
    """Data of the event that each state waited for, by state name."""
    parent_plan_id: str | None = None
    session_id: str | None = None
    user_id: str = ""
    tenant_id: str = ""
    correlation_id: str = ""
    """Correlation id of the plan's events; defaults to the plan's id."""
    pause_reason: str | None = None
    error: str | None = None
    """Why the plan failed or was cancelled."""
    result: Any = None
    """Argument of ``finalize``; None: ``results`` is the result."""
    goal_id: str | None = None
    """Id of the goal event; the final response answers it."""
    response_topic: str | None = None
    trace_id: str | None = None
    reply_to: str | None = None
    """Correlation id of the final response; for a child plan the parent's."""
    notify: str | None = None
    """Address on which the client that submitted the goal waits for the final response."""
    root: str = ""
    """Correlation id of the top-level plan that this one descends from; empty for a top-level plan."""
    depth: int = 1
    """1 for a top-level plan, one more for each plan above."""
    deadline: float | None = None
    """Time at which the plan fails unless it has ended, seconds since the epoch, UTC; None: no deadline."""
    planner: str = ""
    """Name of the planner that runs the plan."""
    decider: str = ""
    """Name of the planner that decides the plan step by step; empty when a state machine or handlers move it."""
    planner_version: str = ""
    """Version of the decider, or of the planner whose handlers move the plan; empty when no code of the app does."""
    created_at: float = 0.0
    """Seconds since the epoch, UTC."""
    spent: dict[str, float] = field(default_factory=dict)
    """Spend of the decisions so far, with those of child plans that have ended: ``actions``, ``tokens``, ``cost`` (US
    dollars), ``calls``; and ``steps`` of a decision tree."""
    limits: dict[str, float] = field(default_factory=dict)
    """Lowest limits of the planners that handlers have asked for advice: ``actions``, ``tokens``, ``cost``."""
    allowance: dict[str, float] = field(default_factory=dict)
    """Share of the parent's budget: ``actions``, ``tokens``, ``cost``; what has no limit is left out. And ``rate``, the
    parent's ``call_rate``."""
    call_rate: float = 0.0
    """Most tokens that a call of a model has used, for each one that was estimated; 0 before the first call."""
    lent: dict[str, dict[str, float]] = field(default_factory=dict)
    """Shares lent to child plans that have not ended, by the id of their goals."""
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """The newest events and decisions of a plan that a planner decides, oldest first."""
    earlier: dict[str, int] = field(default_factory=dict)
    """Counts of the older ones, by event type or action."""
    tasks: TaskRegistry | None = None
    """Tasks and groups that the plan has started; None before the first one."""
    awaiting: str = ""
    """The task or group that a planner's AWAIT waits for."""
    control: dict[str, Any] = field(default_factory=dict)
    """Control events that the planner has not seen yet: ``pause``, ``injected``, ``redirect_goal``; and ``unseen``,
    when such a pause has kept an event from the planner. A plan without a planner has the operator's ``pause`` here."""
    unmoved: str = ""
    """The state in which the transition handler last made no move on an answer."""
    revisits: dict[str, int] = field(default_factory=dict)
    """By state without a request: how often it was entered again, which tells its waits apart."""
    aliases: list[str] = field(default_factory=list)
    """Further correlation ids that the plan is found by."""
    unwanted: int = 0
    """Events that nothing waited for, as far as the timeline shows them."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    """Search attributes, which handlers set: up to 16 short texts, numbers and booleans that lists filter by."""
    dependencies: dict[str, Any] = field(default_factory=dict)
    """Plans whose end begins this one (``after``, with the ``goal`` until it begins), and ``followers``, which wait for
    the end of this one: their ids, each with the id under which it knows this plan. Until it begins also ``waiting``,
    all that wait for it, directly or not."""
    requests: dict[str, Request] = field(default_factory=dict)
    """Requests without an answer yet, by event id."""
    branches: Branches | None = None
    """Branches of the current state, while not all are answered; None for a state without a ``for_each``."""
    effects: dict[str, EffectEntry] = field(default_factory=dict)
    """Effects of the plan's tasks, by the ids of their requests; one for each key."""
    children: dict[str, int] = field(default_factory=dict)
    """Child plans by their ids, each with the revision of the turn that took its answer; 0: it has none yet, -1: the
    child was rolled back."""
    unanswered: dict[str, list[str]] = field(default_factory=dict)
    """Types of the requests that were closed without an answer, and of these answers, by their ids: their tasks may
    have been done."""
    unlisted: dict[str, int] = field(default_factory=dict)
    """Numbers of the oldest done effects without an undo, and of the oldest such requests, that the plan lists no more,
    by the types of their tasks: a rollback names them."""
    rollback: dict[str, Any] = field(default_factory=dict)
    """A rollback that is under way or has ended (:mod:`plancast.plan.effects.undo_list`); empty: there was none."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Events that arrived before any state waited for them, oldest first."""
    _context: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._pauses = 0
        """Pauses by code of the app since the object was made."""
        self._stored_effects: dict[str, Any] = {}
        """The effects as plain values, as they were stored last."""
        self._stored_requests: dict[str, Any] = {}
        if type(self.status) is not PlanStatus:
            self.read_status()
        self.correlation_id = self.correlation_id or self.plan_id
        given: Any = self.state_machine
        if isinstance(given, Machine):
            self.state_machine, self.machine = dict(given.states), given
        else:
            self.state_machine = _states(given)
        self._entered = self.current_state
        """The state that was entered last; ``current_state`` differs when a handler has assigned another one."""
        self.moves: list[str] = []
        """States entered since the object was made."""
        self._has_handler = False
        """A transition handler makes the plan's moves, so the turn offers early events to it."""

    def read_status(self) -> PlanStatus:
        """The status, which code of the app may have assigned as plain text; ``"paused"`` counts as a pause.

        Raises:
            ValueError: it is no status.
        """
        if type(self.status) is not PlanStatus:
            try:
                self.status = PlanStatus(self.status)
            except ValueError:
                known = ", ".join(PlanStatus)
                raise ValueError(f"plan {self.plan_id}: status is {self.status!r:.60}, allowed: {known}") from None
            self._pauses += self.status is PAUSED
        return self.status

    @cached_property
    def machine(self) -> Machine:
        """The compiled state machine."""
        return Machine.compile(self.state_machine)


def is_held(plan: PlanRecord) -> bool:
    """True if an operator has paused a plan that a state machine or handlers move; it moves again after a resume."""
    return HOLD in plan.control and not plan.decider


def position(
    decider: str,
    state: str,
    trajectory: Sequence[Mapping[str, Any]],
    earlier: Mapping[str, int],
    revisits: Mapping[str, int],
) -> str:
    """The place of a plan at which it waits: its state, with the number of the visit from the second one on.

    For a plan that a planner decides it is its number of steps.
    """
    if decider:
        return str(len(trajectory) + sum(earlier.values()))
    return f"{state}#{revisits[state]}" if state in revisits else state


def tasks_of(plan: PlanRecord) -> TaskRegistry:
    """The plan's task registry, created on first use."""
    if plan.tasks is None:
        plan.tasks = TaskRegistry()
    return plan.tasks


def _states(given: Mapping[str, Any]) -> dict[str, StateConfig]:
    return {
        name: state if isinstance(state, StateConfig) else StateConfig.model_validate(state)
        for name, state in given.items()
    }
