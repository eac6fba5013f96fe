"""What is asked of plans over the API, and answered: the schema of version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from plancast.console.schemas.base import Asked, EventType, Moment, Said
from plancast.console.schemas.plans import Approval, Summary


class Signal(Asked):
    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)


class Reason(Asked):
    reason: Annotated[str, Field(max_length=4000)] = ""


class Resumption(Asked):
    data: Any = None


class Approved(Asked):
    data: dict[str, Any] = Field(default_factory=dict)
    comment: Annotated[str, Field(max_length=4000)] = ""


class Redirection(Asked):
    goal_data: dict[str, Any]


class Injection(Asked):
    context: Any


class Nothing(Asked):
    """An empty object."""


class Accepted(Said):
    plan_id: str
    accepted: Literal[True] = True
    event_id: str


class Retried(Said):
    plan_id: str
    retry_of: str


class ApprovalOf(Approval):
    plan: Summary


class Approvals(Said):
    items: list[ApprovalOf]
    next: str | None = None
    total: int
    """Plans that may wait for a person; some of them may only be held by one."""


class DataAt(Said):
    revision: int
    at: Moment
    event: str
    status: str
    current_state: str
    path: list[str]
    known: bool
    why: str
    """Why it is not known."""
    results: dict[str, Any] | None
    goal_data: dict[str, Any] | None
    state: dict[str, Any] | None
    """All of the plan's fields."""


class ReplayRequest(Asked):
    machine: Literal["then", "now"] = "then"


class DifferenceOf(Said):
    path: str
    then: Any = None
    now: Any = None


class TurnAgain(Said):
    revision: int
    at: Moment
    event: str = ""
    outcome: Literal["same", "differs", "unknown"]
    why: str = ""
    differences: list[DifferenceOf] = Field(default_factory=list)


class ReplayedPlan(Said):
    plan_id: str
    outcome: Literal["same", "differs", "unknown"]
    machine: Literal["then", "now"]
    turns: list[TurnAgain]


class Fork(Asked):
    revision: int = Field(ge=1, le=2**53)
    data: dict[str, Any] | None = None
    """Fields of the goal's data that are to be others."""


class Forked(Said):
    plan_id: str
    forked_from: str
    revision: int
