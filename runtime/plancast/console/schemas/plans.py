"""What the API says of plans: the schema of version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from plancast.console.schemas.base import Asked, EventType, Moment, Name, Said
from plancast.plan.status import PlanStatus


class Summary(Said):
    """What a list shows of a plan."""

    plan_id: str
    status: PlanStatus
    goal_event: str
    current_state: str
    revision: int
    tenant_id: str
    user_id: str
    session_id: str
    parent_plan_id: str
    planner: str
    created_at: Moment
    updated_at: Moment


class PlanPage(Said):
    items: list[Summary]
    next: str | None
    total: int | None
    counts: dict[str, int]
    """Plans by status under the other filters."""
    complete: bool = True
    """Whether the server has seen all plans since it was started."""


class Submission(Asked):
    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)
    response_event: EventType | None = None
    correlation_id: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    session_id: Name | None = None
    user_id: Name = ""
    tenant_id: Name | None = None


class Submitted(Said):
    plan_id: str
    status: PlanStatus


class GoalOf(Said):
    event_type: str
    data: dict[str, Any]


class Waiting(Said):
    event_type: str
    since: Moment | None
    timeout_at: Moment | None
    kind: Literal["event", "approval", "task", "child", "model"]
    request: str = ""
    """The request that is to be answered; empty where nothing was sent."""
    plan_id: str | None = None
    """The child plan that is waited for."""
    attempt: int = 1


class Approval(Said):
    reason: str
    payload: Any
    expected_event: str | None
    """None: the plan goes on when it is resumed."""
    since: Moment | None


class ModelUsage(Said):
    model: str
    decisions: int
    tokens: int
    cost: float


class Usage(Said):
    tokens: int
    cost: float
    decisions: int
    by_model: list[ModelUsage]


class Member(Said):
    task_id: str
    status: str
    event_type: str = ""
    error: str | None = None
    plan_id: str | None = None


class Group(Said):
    group_id: str
    join: str
    status: str
    reason: str = ""
    members: list[Member]


class Plan(Summary):
    """All of a plan but its history."""

    correlation_id: str
    goal: GoalOf
    results: dict[str, Any]
    result: Any
    error: str | None
    pause_reason: str | None
    waiting_for: list[Waiting]
    listens_for: list[str]
    """Events that can move the plan out of its state."""
    approval: Approval | None
    usage: Usage
    children: list[Summary]
    groups: list[Group]
    machine: bool
    """Whether a state machine moves it."""
    decider: str
    """Who decides it step by step; empty where a state machine or handlers move it."""
    planner_version: str


class PlanStanding(Said):
    plan_id: str
    status: PlanStatus
    revision: int


class EventOf(Said):
    type: str
    id: str
    source: str
    user_id: str | None
    data: Any = None


class Move(Said):
    from_: str = Field(alias="from", serialization_alias="from")
    to: str
    path: list[str]


class DecisionOf(Said):
    action: str
    reasoning: str
    model: str | None
    tokens: int
    cost: float
    confidence: float | None
    event_type: str | None = None
    seconds: float | None = None
    repairs: int = 0


class EffectOf(Said):
    kind: str
    """``event``: published or answered; else what else was done, such as ``set_timer``."""
    event_type: str | None = None
    id: str | None = None


class Entry(Said):
    """A turn."""

    revision: int
    at: Moment
    event: EventOf
    move: Move | None
    state: str
    status: str
    decision: DecisionOf | None
    """The last one of the turn."""
    decisions: list[DecisionOf]
    effects: list[EffectOf]
    notes: list[str]
    by: str | None
    """Who did it: a person that steered the plan, or submitted its goal."""
    timer: bool = False
    error: str | None = None
    pause_reason: str | None = None


class History(Said):
    items: list[Entry]
    next: int | None


class Node(Said):
    id: str
    label: str
    kind: Literal["start", "state", "end", "decision", "tool", "wait", "fail"]
    x: float
    y: float
    visited: int
    current: bool


class Edge(Said):
    source: str
    target: str
    label: str
    taken: int
    order: int | None = None
    """When it was first taken, 1 for the first move."""


class Graph(Said):
    kind: Literal["machine", "decisions"]
    nodes: list[Node]
    edges: list[Edge]
    width: float
    height: float


class Tree(Said):
    plan: Summary
    children: list[Tree]
    groups: list[Group]
    more: int = 0
    """Children that are not shown."""


class Result(Said):
    plan_id: str
    status: PlanStatus
    result: Any = None
    error: str | None = None
