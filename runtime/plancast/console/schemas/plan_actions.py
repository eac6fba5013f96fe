"""Schemas of actions on plans, version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from plancast.client.signals import SignalOutcome
from plancast.console.schemas.base import EventType, Moment, RequestModel, ResponseModel, example
from plancast.console.schemas.plans import Approval, Summary


class Signal(RequestModel):
    model_config = example(event_type="order.approved", data={"approved": True})

    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)


class Reason(RequestModel):
    model_config = example(reason="the price is wrong")

    reason: Annotated[str, Field(max_length=4000)] = ""


class Resumption(RequestModel):
    model_config = example(data={"budget": 200})

    data: Any = None


class AnswerOf(RequestModel):
    """An answer to an approval: the same fields for a yes and a no."""

    model_config = example(reason="fine", data={"limit": 200})

    data: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the answer, beside ``approved``, ``by`` and ``reason``."""
    reason: Annotated[str, Field(max_length=4000, validation_alias=AliasChoices("reason", "comment"))] = ""
    request_id: Annotated[str, Field(max_length=2000)] | None = None
    """`request_id` of the approval that was shown; 409 if the plan asks something else by now. Null: any."""


class Redirection(RequestModel):
    model_config = example(goal_data={"item": "chair"})

    goal_data: dict[str, Any]


class Injection(RequestModel):
    model_config = example(context={"note": "the supplier is closed on Friday"})

    context: Any


class Nothing(RequestModel):
    """An empty object."""

    model_config = example()


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
    model_config = example(assignee="ada")

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
    """Number of plans that wait for people and match; with a text, among those that were searched."""
    searched: int | None = None
    """With a text: number of plans whose texts were searched, newest first; fewer than ``waiting`` means that others
    may match too."""
    waiting: int
    """Number of plans that wait for people and match, whatever the text."""
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
    model_config = example(machine="now")

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
    model_config = example(revision=1, data={"item": "chair"})

    revision: int = Field(ge=1, le=2**53)
    data: dict[str, Any] | None = None
    """Fields of the goal's data to replace."""


class Forked(ResponseModel):
    plan_id: str
    forked_from: str
    revision: int
