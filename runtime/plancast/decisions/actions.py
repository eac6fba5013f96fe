"""Actions: the discriminated union (by `action`) that a decision holds.

The docstrings of models and fields go into the JSON schema, and so into prompts: they are written for models to
read. Data in actions is read-only.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticUseDefault

from plancast.json_values.limits import MAX_SECONDS, FrozenDict, freeze, shown
from plancast.json_values.model import Data, Name, NullIsDefault, PlannerValue, Seconds, Text
from plancast.plan.requests import TIME_REACHED
from plancast.tasks.spec import JoinKind, SpawnSpec
from plancast_bus.events.envelope import EventTopic
from plancast_bus.subjects import MAX_TYPE

MAX_BRANCHES: Final = 50
"""Most branches of a ParallelAction."""


class PlanAction(StrEnum):
    """What a planner can do next."""

    PUBLISH = "publish"
    COMPLETE = "complete"
    WAIT = "wait"
    DELEGATE = "delegate"
    PARALLEL = "parallel"
    AWAIT = "await"


class FinishReason(StrEnum):
    """Why a plan ends. Anything but `goal` does not count as completed; `rolled_back` first undoes what was done."""

    GOAL = "goal"
    NO_PATH = "no_path"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CONSTRAINTS_CONFLICT = "constraints_conflict"
    ROLLED_BACK = "rolled_back"


class PauseReason(StrEnum):
    """What kind of waiting it is."""

    APPROVAL_REQUIRED = "approval_required"
    AWAIT_INPUT = "await_input"
    EXTERNAL_EVENT = "external_event"
    CONSTRAINTS_CONFLICT = "constraints_conflict"


STORED: Final[dict[str, Any]] = {"stored": True}
"""Validation context of stored decisions: earlier versions took any JSON as a result."""


def _object(value: Any, info: ValidationInfo) -> Any:
    if info.context is not STORED and not (value is None or isinstance(value, (Mapping, BaseModel))):
        raise ValueError(f"got {shown(value)}, allowed: an object")
    return value


def _null_is_the_specs(value: Any, info: ValidationInfo) -> Any:
    if value is None and info.data.get("spec") is None:
        raise ValueError("got nothing, allowed: an object; it is required without a spec")
    if value is None:
        raise PydanticUseDefault
    return value


def _not_keyed(value: Any) -> Any:
    if value == "keyed":
        raise ValueError("got 'keyed', which is reserved and does not exist yet, allowed: all, first_success, n")
    return value


class PublishAction(PlannerValue):
    """Publish an event that an agent acts on, and go on with its answer."""

    action: Literal[PlanAction.PUBLISH] = PlanAction.PUBLISH
    event_type: Name
    """The event to publish: one of those listed, exactly as written there."""
    topic: Annotated[EventTopic, NullIsDefault] = EventTopic.ACTION_REQUESTS
    """The event's topic."""
    data: Data = Field(default_factory=FrozenDict)
    """The event's data, as its payload schema wants it."""
    response_event: Name | None = None
    """The event that answers it; leave it out to take the one that the event declares."""
    timeout_seconds: Seconds | None = None
    """Seconds to wait for the answer."""
    reasoning: Text = ""
    """Why this event."""


class CompleteAction(PlannerValue):
    """End the plan with a result."""

    _wanted: ClassVar = ("result",)
    action: Literal[PlanAction.COMPLETE] = PlanAction.COMPLETE
    result: Annotated[
        Any, AfterValidator(_object), AfterValidator(freeze), Field(json_schema_extra={"type": ["object", "null"]})
    ] = None
    """The final result for the requester: an object. Required when the reason is goal."""
    reason: Annotated[FinishReason, NullIsDefault] = FinishReason.GOAL
    """Why the plan ends: goal when the goal is reached."""
    metadata: Data = Field(default_factory=FrozenDict)
    """Anything else that the plan's history should keep."""
    reasoning: Text = ""
    """Why the plan ends now."""

    @model_validator(mode="after")
    def _goal_has_result(self, info: ValidationInfo) -> Self:
        if self.reason is FinishReason.GOAL and self.result is None and info.context is not STORED:
            raise ValueError("result: got nothing, allowed: an object; it is required when the reason is goal")
        return self


def _time(value: Any) -> Any:
    """A time with a zone, or seconds; a time is kept as text."""
    try:
        if isinstance(value, datetime | str):
            said = value if isinstance(value, datetime) else datetime.fromisoformat(value)
            if said.tzinfo is not None:
                said.timestamp()
                return said.isoformat() if isinstance(value, datetime) else value
        elif value is None or (type(value) in (int, float) and 0 <= value <= MAX_SECONDS):
            return value
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"got {shown(value)}, allowed: a time with a zone such as '2026-01-31T08:00:00Z' or "
        f"'2026-01-31T08:00:00+02:00', or seconds from now, 0 to {MAX_SECONDS:g}"
    )


class WaitAction(PlannerValue):
    """Pause the plan until an event comes from outside, such as an approval."""

    _wanted: ClassVar = ("expected_event",)
    action: Literal[PlanAction.WAIT] = PlanAction.WAIT
    reason: Annotated[str, Field(min_length=1)]
    """What is waited for, for people to read."""
    expected_event: Name = TIME_REACHED
    """The event that lets the plan go on."""
    until: Annotated[str | float | None, BeforeValidator(_time)] = None
    """When to go on: ISO 8601 with a zone, or seconds from now."""
    timeout_seconds: Seconds | None = 3600
    """Seconds until the wait is given up; null waits for ever."""
    pause_reason: Annotated[PauseReason, NullIsDefault] = PauseReason.AWAIT_INPUT
    """What kind of waiting it is."""
    payload: Data = Field(default_factory=FrozenDict)
    """What whoever sends the event should see."""
    reasoning: Text = ""
    """Why waiting is right; may be left out, there is the reason."""

    @model_validator(mode="before")
    @classmethod
    def _kind_of_time(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("until") is not None and not values.get("expected_event"):
            default = {"expected_event": TIME_REACHED, "pause_reason": PauseReason.EXTERNAL_EVENT}
            return default | {name: value for name, value in values.items() if value is not None}
        return values

    @model_validator(mode="after")
    def _waits_for_something(self) -> Self:
        if self.expected_event == TIME_REACHED and self.until is None:
            raise ValueError("expected_event: got nothing, allowed: a value; it is required without until")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields, without a time that there is not: earlier versions know none."""
        fields: dict[str, Any] = serialize(self)
        return fields if self.until is not None else {name: each for name, each in fields.items() if name != "until"}

    @property
    def due(self) -> float | None:
        """The time of ``until`` in seconds since the epoch; None: there is none, or it is in seconds from now."""
        return datetime.fromisoformat(self.until).timestamp() if isinstance(self.until, str) else None

    @property
    def seconds(self) -> float | None:
        """Seconds until the wait is given up, or the time has come that is in seconds from now."""
        return self.until if isinstance(self.until, int | float) else self.timeout_seconds


class DelegateAction(PlannerValue):
    """Hand a goal to another planner as a child plan, and go on with its result."""

    _wanted: ClassVar = ("target_planner", "goal_event", "goal_data")
    action: Literal[PlanAction.DELEGATE] = PlanAction.DELEGATE
    spec: SpawnSpec | None = None
    """The same goal with its options; what it says of event and data need not be said twice."""
    target_planner: Text = ""
    """The planner's name. Required without a spec."""
    goal_event: Annotated[str, Field(max_length=MAX_TYPE), NullIsDefault] = Field(
        default_factory=lambda given: given["spec"].event_type if given.get("spec") else ""
    )
    """The goal's event. Required without a spec."""
    goal_data: Annotated[dict[str, Any], BeforeValidator(_null_is_the_specs), AfterValidator(freeze)] = Field(
        default_factory=lambda given: given["spec"].data if given.get("spec") else FrozenDict()
    )
    """The goal's data."""
    group_id: Name | None = None
    """The group of tasks that it belongs to."""
    timeout_seconds: Seconds | None = Field(
        default_factory=lambda given: given["spec"].timeout_seconds if given.get("spec") else None
    )
    """Seconds to wait for the result."""
    reasoning: Text = ""
    """Why that planner."""

    @model_validator(mode="after")
    def _names_its_goal(self) -> Self:
        if self.spec is None:
            for name in ("target_planner", "goal_event"):
                if not getattr(self, name):
                    raise ValueError(f"{name}: got nothing, allowed: a name; it is required without a spec")
            if "goal_data" not in self.model_fields_set:
                raise ValueError("goal_data: got nothing, allowed: an object; it is required without a spec")
        elif self.goal_event != self.spec.event_type:
            raise ValueError(f"goal_event: got {shown(self.goal_event)}, allowed: the event of the spec, or nothing")
        elif self.goal_data != self.spec.data:
            raise ValueError("goal_data: got other data than the spec's, allowed: the data of the spec, or nothing")
        return self


class ParallelAction(PlannerValue):
    """Publish several events at once, and go on when enough of them are answered."""

    action: Literal[PlanAction.PARALLEL] = PlanAction.PARALLEL
    branches: Annotated[list[PublishAction], Field(min_length=1, max_length=MAX_BRANCHES), AfterValidator(freeze)]
    """The events to publish."""
    join: Annotated[JoinKind, BeforeValidator(_not_keyed), NullIsDefault] = "all"
    """When to go on: after all answers, the first success, or n successes."""
    n: int | None = None
    """How many successes, when join is n."""
    reasoning: Text = ""
    """Why these, and why at once."""

    @model_validator(mode="after")
    def _n_fits(self) -> Self:
        count = len(self.branches)
        if self.join != "n" and self.n is not None:
            raise ValueError(f"n: got {self.n}, allowed: nothing, when join is {self.join}")
        if self.join == "n" and (self.n is None or not 1 <= self.n <= count):
            raise ValueError(f"n: got {'nothing' if self.n is None else self.n}, allowed: 1 to {count}, the branches")
        return self


class AwaitAction(PlannerValue):
    """Wait for a task, or a group of tasks, that was started before."""

    action: Literal[PlanAction.AWAIT] = PlanAction.AWAIT
    task_id: Name | None = None
    """The task; either this or group_id."""
    group_id: Name | None = None
    """The group; either this or task_id."""
    reasoning: Text = ""
    """Why nothing else can be done meanwhile."""

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.task_id is None) == (self.group_id is None):
            got = "neither" if self.task_id is None else "both"
            raise ValueError(f"task_id: got {got} of task_id and group_id, allowed: exactly one of them")
        return self


PlannerAction = Annotated[
    PublishAction | CompleteAction | WaitAction | DelegateAction | ParallelAction | AwaitAction,
    Field(discriminator="action"),
]
