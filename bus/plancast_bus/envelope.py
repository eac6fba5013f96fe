"""The event envelope: CloudEvents 1.0 in meaning, with the fields that plans need."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import uuid4

from pydantic import AfterValidator, AliasChoices, AliasGenerator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class EventTopic(StrEnum):
    """The topics that events travel on."""

    BUSINESS_FACTS = "business-facts"
    ACTION_REQUESTS = "action-requests"
    ACTION_RESULTS = "action-results"
    BILLING_EVENTS = "billing-events"
    NOTIFICATION_EVENTS = "notification-events"
    SYSTEM_EVENTS = "system-events"
    PLAN_EVENTS = "plan-events"
    TASK_EVENTS = "task-events"


def _new_id() -> str:
    return uuid4().hex


def _now() -> datetime:
    return datetime.now(UTC)


def _as_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("out of range in UTC") from error


def _either_case(name: str) -> AliasChoices:
    return AliasChoices(name, to_camel(name))


class EventEnvelope(BaseModel):
    """One event. Keys are accepted in snake_case and in camelCase, and written in snake_case.

    Times are UTC. ``data`` is what the event says.
    """

    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=_either_case),
        populate_by_name=True,
        extra="ignore",
    )

    source: str
    """Who says it: a planner, worker or client, by name."""
    type: str = Field(min_length=1)
    """What happened, dot separated: ``web.search.completed``."""
    topic: EventTopic
    """The topic that the event travels on."""
    id: str = Field(default_factory=_new_id, min_length=1)
    """Unique for each event; the same event delivered twice has the same id."""
    data: Any = Field(default_factory=dict)
    """What the event says: JSON, by custom an object."""
    specversion: str = "1.0"
    time: Annotated[datetime, AfterValidator(_as_utc)] = Field(default_factory=_now)
    """When it happened; a time without a zone is taken as UTC."""
    subject: str | None = None
    """What the event is about (CloudEvents); not the NATS subject."""
    correlation_id: str = Field(default_factory=_new_id, min_length=1)
    """Which plan the event belongs to."""
    response_event: str | None = None
    """The event type that an answer should have."""
    response_topic: str | None = None
    """The topic that an answer should travel on; ``action-results`` when absent."""
    response_schema_name: str | None = None
    payload_schema_name: str | None = None
    trace_id: str | None = None
    parent_event_id: str | None = None
    """The event that this one answers or follows from."""
    plan_id: str | None = None
    """The plan that sent the event."""
    goal_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def event_type(self) -> str:
        """Alias of :attr:`type`."""
        return self.type

    def to_wire(self) -> dict[str, Any]:
        """The envelope as a JSON-able dict, absent fields left out."""
        wire: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "topic": str(self.topic),
            "specversion": self.specversion,
            "time": self.time.isoformat(),
            "data": self.data,
            "correlation_id": self.correlation_id,
        }
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                wire[name] = value
        if self.metadata:
            wire["metadata"] = self.metadata
        return wire


class WireEvent:
    """An event that is only to be written: its fields are taken as they are, in wire form, unless one is not right.

    What :class:`EventEnvelope` checks by a schema, this checks by a glance; where that fails, the schema decides.
    """

    __slots__ = ("_fields", "data", "metadata")

    def __init__(self, fields: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: a field is missing or wrong (as pydantic's ValidationError, which names it).
        """
        self.data = fields.get("data")
        self.metadata = fields.get("metadata") or {}
        self._fields = _in_wire_form(fields) or EventEnvelope.model_validate(fields).to_wire()

    def to_wire(self) -> dict[str, Any]:
        """The event as a JSON-able dict, absent fields left out."""
        return self._fields


def _in_wire_form(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The fields without those that are absent or unknown; None when a field is not certainly right."""
    if fields.get("topic") not in _TOPICS or not all(fields.get(name) for name in _REQUIRED):
        return None
    wire: dict[str, Any] = {"specversion": "1.0", "data": fields.get("data")}
    for name in _TEXTS:
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, str):
                return None
            wire[name] = str(value)
    metadata = fields.get("metadata")
    if metadata:
        if not isinstance(metadata, dict):
            return None
        wire["metadata"] = metadata
    return wire


_OPTIONAL = (
    "subject",
    "response_event",
    "response_topic",
    "response_schema_name",
    "payload_schema_name",
    "trace_id",
    "parent_event_id",
    "plan_id",
    "goal_id",
    "session_id",
    "tenant_id",
    "user_id",
)
_REQUIRED = ("id", "source", "type", "time", "correlation_id")
_TEXTS = (*_REQUIRED, "topic", *_OPTIONAL)
_TOPICS = frozenset(EventTopic)
