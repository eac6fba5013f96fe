"""Schemas of actions on plans, version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from plancast.client.signals import SignalOutcome
from plancast.console.schemas.base import EventType, Moment, RequestModel, ResponseModel
from plancast.console.schemas.plans import Approval, Summary


class Signal(RequestModel):
    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)


class Reason(RequestModel):
    reason: Annotated[str, Field(max_length=4000)] = ""


class Resumption(RequestModel):
    data: Any = None


class AnswerOf(RequestModel):
    """An answer to an approval: the same fields for a yes and a no."""

    data: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the answer, beside ``approved``, ``by`` and ``reason``."""
    reason: Annotated[str, Field(max_length=4000, validation_alias=AliasChoices("reason", "comment"))] = ""


class Redirection(RequestModel):
    goal_data: dict[str, Any]


class Injection(RequestModel):
    context: Any


class Nothing(RequestModel):
    """An empty object."""


class Accepted(ResponseModel):
    plan_id: str
    accepted: Literal[True] = True
    event_id: str
    outcome: SignalOutcome | None = None
    """Outcome of a signal; null for control events, and for a request that was repeated."""


class Retried(ResponseModel):
    plan_id: str
    retry_of: str


class Assignment(RequestModel):
    assignee: Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """The user; empty: nobody."""


class Assigned(ResponseModel):
    plan_id: str
    assignee: str


class ApprovalOf(Approval):
    plan: Summary
    goal_data: dict[str, Any]
    assignee: str = ""
    """The user who has taken it; empty: nobody."""
    only_user: str = ""
    """The only user whose answer counts (`plans.check_user`); empty: anyone with a token."""


class Approvals(ResponseModel):
    items: list[ApprovalOf]
    next: str | None = None
    total: int
    """Number of plans that wait for people and match."""
    users: list[str] = Field(default_factory=list)
    """Users with a token, to assign to."""


class DataAt(ResponseModel):
    revision: int
    at: Moment
    event: str
    status: str
    current_state: str
    path: list[str]
    known: bool
    why: str
    """Reason why it is unknown."""
    results: dict[str, Any] | None
    goal_data: dict[str, Any] | None
    state: dict[str, Any] | None
    """All fields of the plan."""


class ReplayRequest(RequestModel):
    machine: Literal["then", "now"] = "then"


class DifferenceOf(ResponseModel):
    path: str
    then: Any = None
    now: Any = None


class TurnAgain(ResponseModel):
    revision: int
    at: Moment
    event: str = ""
    outcome: Literal["same", "differs", "unknown"]
    why: str = ""
    differences: list[DifferenceOf] = Field(default_factory=list)


class ReplayedPlan(ResponseModel):
    plan_id: str
    outcome: Literal["same", "differs", "unknown"]
    machine: Literal["then", "now"]
    turns: list[TurnAgain]


class Fork(RequestModel):
    revision: int = Field(ge=1, le=2**53)
    data: dict[str, Any] | None = None
    """Fields of the goal's data to replace."""


class Forked(ResponseModel):
    plan_id: str
    forked_from: str
    revision: int
