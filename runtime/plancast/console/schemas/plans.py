"""Schemas of plans, version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from plancast.console.schemas.base import Cost, EventType, Moment, Name, RequestModel, ResponseModel, example
from plancast.plan.control_events import MAX_AFTER
from plancast.plan.status import ListedStatus, PlanStatus


class Details(ResponseModel):
    """Awaited events of a live plan; result or error of an ended one."""

    waiting_for: list[str] = Field(default_factory=list)
    """Event types: of open requests, else of awaited events."""
    outcome: str = ""
    """The result or error, at most 200 characters; empty until the end."""
    step: str = ""
    """The last decision, if decisions and not states move the plan; else empty."""


class Summary(ResponseModel):
    """A plan in a list."""

    plan_id: str
    status: ListedStatus
    """In lists, ``waiting`` for a plan that waits for people; by itself, it is running or paused."""
    goal_event: str
    """Event type of the goal."""
    current_state: str
    revision: int
    """Number of turns that are committed."""
    tenant_id: str
    user_id: str
    session_id: str
    parent_plan_id: str
    """Empty for a plan without a parent."""
    planner: str
    created_at: Moment
    updated_at: Moment
    attributes: Annotated[dict[str, bool | int | float | str], BeforeValidator(lambda found: found or {})] = Field(
        default_factory=dict
    )
    """Search attributes that the plan's handlers have set."""
    details: Details | None = None
    """In lists, with ``details=true``; null when it could not be read in time."""


class PlanPage(ResponseModel):
    items: list[Summary]
    next: str | None
    """The `cursor` of the next page; null on the last one."""
    total: int | None
    """Number of plans that match."""
    counts: dict[str, int]
    """Number of plans by status, with the other filters applied."""
    complete: bool = True
    """True once the server has read all plans after its start."""
    searched: int | None = None
    """Number of plans whose goals' data were searched; fewer than all means that older plans were not."""


class Submission(RequestModel):
    model_config = example(event_type="order.goal", data={"item": "lamp"}, correlation_id="order-17")

    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)
    response_event: EventType | None = None
    """Event type of the final response; null: `GOAL.completed` or `GOAL.failed`, after the goal's."""
    correlation_id: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    """The plan's id; null: a new one."""
    session_id: Name | None = None
    user_id: Name = ""
    tenant_id: Name | None = None
    deadline: Annotated[float, Field(gt=0, le=10 * 366 * 86400)] | None = None
    """Seconds in which the plan has to end."""
    after: Annotated[list[Annotated[str, Field(min_length=1, max_length=300)]], Field(max_length=MAX_AFTER)] = Field(
        default_factory=list
    )
    """Ids of plans that have to end before this one begins."""
    reuse: bool = False
    """Return the plan of the correlation id also when it was begun with another goal or other data."""


class Submitted(ResponseModel):
    plan_id: str
    status: PlanStatus


class GoalOf(ResponseModel):
    event_type: str
    data: dict[str, Any]


class Waiting(ResponseModel):
    event_type: str
    since: Moment | None
    timeout_at: Moment | None
    kind: Literal["event", "approval", "task", "child", "model"]
    request: str = ""
    """Event type of the open request; empty when nothing was sent."""
    plan_id: str | None = None
    """Id of the awaited child plan."""
    attempt: int = 1


class Approval(ResponseModel):
    reason: str
    payload: Any
    expected_event: str | None
    """None: the plan continues when it is resumed."""
    since: Moment | None
    timeout_at: Moment | None = None
    """When the wait ends by itself."""
    description: str = ""
    """The planner's description of the expected event."""
    answer_schema: dict[str, Any] | None = None
    """JSON Schema of the data of an answer; null: any object."""
    refusal_event: str | None = None
    """The event that says no, when it is another one."""
    refusal_schema: dict[str, Any] | None = None
    can_refuse: bool = True
    """False when the plan would not hear a no."""
    request_id: str | None = None
    """What an answer refers to, so that it is not taken for what the plan asks later; null: a resume."""


class ModelUsage(ResponseModel):
    model: str
    decisions: int
    tokens: int
    cost: Cost
    cached_tokens: int = 0


class Usage(ResponseModel):
    tokens: int
    cost: Cost
    decisions: int
    by_model: list[ModelUsage]
    cached_tokens: int = 0


class Member(ResponseModel):
    task_id: str
    status: str
    event_type: str = ""
    error: str | None = None
    plan_id: str | None = None


class Group(ResponseModel):
    group_id: str
    join: str
    status: str
    reason: str = ""
    members: list[Member]


class StoredSize(ResponseModel):
    """Bytes of a plan in the store."""

    inline: int
    """Of the newest checkpoint, which each turn writes again."""
    referenced: int
    """Of the values that the checkpoint and the history refer to, each counted once, before compression."""
    history: int
    """Of the history, without the values that it refers to."""


class Plan(Summary):
    """A plan without its history."""

    step: str
    """The last decision, if decisions and not states move the plan; else empty."""

    correlation_id: str
    goal: GoalOf
    results: dict[str, Any]
    result: Any
    error: str | None
    pause_reason: str | None
    waiting_for: list[Waiting]
    listens_for: list[str]
    """Events that cause a transition from the current state."""
    approval: Approval | None
    usage: Usage
    children: list[Summary]
    groups: list[Group]
    effects: int = 0
    """Number of its tasks that have declared what they do outside."""
    machine: bool
    """True if the plan follows a state machine."""
    decider: str
    """Planner that decides each step; empty with a state machine or handlers."""
    planner_version: str
    size: StoredSize


class PlanStanding(ResponseModel):
    plan_id: str
    status: PlanStatus
    revision: int


class TaskReported(ResponseModel):
    """A report of a running task; it is not kept in the plan's history."""

    revision: int
    """The turn before it."""
    time: Moment
    task_id: str
    """Id of the request."""
    event_type: str
    """Type of the request."""
    attempt: int
    """Attempt at the task, from 1: each one begins anew."""


class TaskProgressed(TaskReported):
    fraction: float | None
    """0 to 1; null when unknown."""
    message: str


class TaskOutput(TaskReported):
    chunk: Any
    number: int
    """Place of the chunk in the output of the attempt, from 0."""


class DecisionWritten(TaskReported):
    """A piece of a model's reply; `event_type` is the name of the planner."""

    text: str
    number: int
    """Place of the piece in the reply, from 0."""


class EventOf(ResponseModel):
    type: str
    id: str
    source: str
    user_id: str | None
    data: Any = None


class Move(ResponseModel):
    from_: str = Field(alias="from", serialization_alias="from")
    to: str
    path: list[str]


class DecisionOf(ResponseModel):
    action: str
    reasoning: str
    model: str | None
    tokens: int
    cached_tokens: int = 0
    """Those of the tokens that a provider served from its cache."""
    cost: Cost
    confidence: float | None
    """Null when it was not given, or is unknown."""
    confidence_given: bool | None = None
    """False when the decision came without one; null when an earlier version recorded it, which did not tell."""
    event_type: str | None = None
    seconds: float | None = None
    """Seconds that the model took; null without a call."""
    repairs: int = 0


class EffectOf(ResponseModel):
    kind: str
    """``event`` for a published event or response; else another effect, such as ``set_timer``."""
    event_type: str | None = None
    id: str | None = None


class Entry(ResponseModel):
    """A turn."""

    revision: int
    at: Moment
    event: EventOf
    move: Move | None
    state: str
    status: str
    decision: DecisionOf | None
    """The last decision of the turn."""
    decisions: list[DecisionOf]
    effects: list[EffectOf]
    notes: list[str]
    by: str | None
    """User who controlled the plan or submitted its goal."""
    timer: bool = False
    error: str | None = None
    pause_reason: str | None = None


class History(ResponseModel):
    items: list[Entry]
    next: int | None


class Node(ResponseModel):
    id: str
    label: str
    kind: Literal["start", "state", "end", "decision", "tool", "wait", "fail"]
    x: float
    y: float
    visited: int
    current: bool


class Edge(ResponseModel):
    source: str
    target: str
    label: str
    taken: int
    order: int | None = None
    """Ordinal of its first use, from 1."""


class Graph(ResponseModel):
    kind: Literal["machine", "decisions"]
    nodes: list[Node]
    edges: list[Edge]
    width: float
    height: float


class Span(ResponseModel):
    """A part of a plan's time."""

    kind: Literal["turn", "state", "pause", "task", "child", "model"]
    label: str
    """Event, state, reason or model."""
    start: Moment
    end: Moment | None
    """Null: it goes on."""
    revision: int
    """The turn that began it."""
    outcome: Literal["", "failed", "timed out"] = ""
    plan_id: str | None = None
    """The child plan."""


class Spans(ResponseModel):
    items: list[Span]
    start: Moment
    end: Moment
    """The end of the plan; the time of the response if it has not ended."""
    more: int = 0
    """Number of older spans that are left out."""


class Tree(ResponseModel):
    plan: Summary
    children: list[Tree]
    groups: list[Group]
    more: int = 0
    """Number of omitted children."""


class Result(ResponseModel):
    plan_id: str
    status: PlanStatus
    result: Any = None
    error: str | None = None
