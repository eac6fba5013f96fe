"""Schemas of schedules, version 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from plancast.console.schemas.base import EventType, Moment, Name, RequestModel, ResponseModel, Seconds, example

OverlapOf = Literal["skip", "queue", "allow"]
"""Treatment of a firing while the plan of an earlier one is not over."""


class ScheduleOf(ResponseModel):
    """A schedule."""

    name: str
    event_type: str
    """The goal that it submits."""
    data: dict[str, Any]
    cron: str | None
    every: Seconds | None
    at: Moment | None
    times: str
    """When it fires, in a few words."""
    timezone: str
    overlap: OverlapOf
    catch_up: Seconds
    """Seconds by which a firing may be late."""
    tenant_id: str
    user_id: str
    session_id: str
    created_at: Moment
    paused: bool
    next_at: Moment | None
    """When it fires next; null while it is paused, and when it fires no more."""
    last_at: Moment | None
    last_plan_id: str
    waiting: int
    """Firings that wait for a run to end."""


class ScheduleList(ResponseModel):
    items: list[ScheduleOf]
    next: str | None = None
    total: int


class ScheduleRunOf(ResponseModel):
    """A firing."""

    time: Moment
    """When it was due; of a trigger, when it was triggered."""
    kind: Literal["time", "trigger", "backfill"]
    state: Literal["due", "queued", "started", "skipped", "missed"]
    plan_id: str
    status: str
    """Status of its plan; empty while there is none, and once it is deleted."""


class ScheduleRuns(ResponseModel):
    items: list[ScheduleRunOf]


class NewSchedule(RequestModel):
    """A schedule to create; give one of ``cron``, ``every`` and ``at``."""

    model_config = example(
        name="morning-report", event_type="order.goal", cron="0 9 * * MON-FRI", timezone="Europe/Berlin"
    )

    name: Annotated[str, Field(min_length=1, max_length=100)]
    event_type: EventType
    data: dict[str, Any] = Field(default_factory=dict)
    cron: Annotated[str, Field(max_length=200)] | None = None
    every: Seconds | None = None
    at: Annotated[str, Field(max_length=100)] | None = None
    """ISO 8601; without an offset it is a time of ``timezone``."""
    timezone: Annotated[str, Field(max_length=100)] = "UTC"
    overlap: OverlapOf = "skip"
    catch_up: Annotated[float, Field(ge=0)] = 0.0
    tenant_id: Name = ""
    user_id: Name = ""
    session_id: Name = ""
    replace: bool = False
    """Replace a schedule of this name, instead of 409."""


class Triggered(ResponseModel):
    plan_id: str


class Backfill(RequestModel):
    """Times of the past, both included: ISO 8601, by default in the time zone of the schedule."""

    model_config = example(begin="2025-01-01", end="2025-01-31T23:59")

    begin: Annotated[str, Field(max_length=100)]
    end: Annotated[str, Field(max_length=100)]


class Backfilled(ResponseModel):
    times: list[Moment]
