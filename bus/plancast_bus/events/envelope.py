"""The event envelope: the semantics of CloudEvents 1.0, with the fields that plans need."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from math import modf
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from pydantic import AfterValidator, AliasChoices, AliasGenerator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_NAME = 1_000
"""Maximum length of an event's ids, names and type, in characters."""


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


def utc_text(seconds: float) -> str:
    """Format seconds since the epoch as ``datetime.fromtimestamp(seconds, UTC).isoformat()`` does, but faster."""
    fraction, second = modf(seconds)
    return _text(int(second), round(fraction * 1e6)) or datetime.fromtimestamp(seconds, UTC).isoformat()


def _time_text(time: datetime) -> str:
    if time.tzinfo is not UTC:
        return time.isoformat()
    second = (time.toordinal() - _EPOCH) * 86_400 + time.hour * 3_600 + time.minute * 60 + time.second
    return _text(second, time.microsecond) or time.isoformat()


def _text(second: int, micros: int) -> str:
    """Format a time with microseconds; empty for whole seconds, which have another form."""
    return "%s.%06d+00:00" % (_second_text(second), micros) if 0 < micros < 1_000_000 else ""  # noqa: UP031


_EPOCH = date(1970, 1, 1).toordinal()


@lru_cache(maxsize=64)
def _second_text(second: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat()


def _as_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("out of range in UTC") from error


def _either_case(name: str) -> AliasChoices:
    return AliasChoices(name, to_camel(name))


def check_name(text: str) -> str:
    """Return the text if it is short enough to be an id or a name.

    Raises:
        ValueError: it is longer than 1,000 characters.
    """
    if len(text) > MAX_NAME:
        raise ValueError(_too_long(text))
    return text


def _too_long(text: str) -> str:
    return f"it has {len(text):,} characters, and may have {MAX_NAME:,}"


def derived_id(event_id: str, suffix: str) -> str:
    """Derive the id of an event from another event's id, deterministically."""
    derived = f"{event_id}:{suffix}"
    if len(derived) <= MAX_NAME:
        return derived
    return f"sha256:{hashlib.sha256(event_id.encode('utf-8', 'replace')).hexdigest()}:{suffix}"


class EventEnvelope(BaseModel):
    """One event. Keys are accepted in snake_case and in camelCase, and written in snake_case. Times are UTC."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=_either_case),
        populate_by_name=True,
        extra="ignore",
    )

    source: str
    """Name of the sender: a planner, worker or client."""
    type: str = Field(min_length=1)
    """Event type, dot separated: ``web.search.completed``."""
    topic: EventTopic
    """The topic that the event travels on."""
    id: str = Field(default_factory=_new_id, min_length=1)
    """Unique for each event; redeliveries have the same id."""
    data: Any = Field(default_factory=dict)
    """JSON payload, by convention an object."""
    specversion: str = "1.0"
    time: Annotated[datetime, AfterValidator(_as_utc)] = Field(default_factory=_now)
    """Time of the event; without a zone it is taken as UTC."""
    subject: str | None = None
    """Subject in the sense of CloudEvents, not the NATS subject."""
    correlation_id: str = Field(default_factory=_new_id, min_length=1)
    """Identifies the plan that the event belongs to."""
    response_event: str | None = None
    """Event type for the response."""
    response_topic: str | None = None
    """Topic for the response; ``action-results`` when absent."""
    response_schema_name: str | None = None
    payload_schema_name: str | None = None
    trace_id: str | None = None
    parent_event_id: str | None = None
    """Id of the event that this one responds to or results from."""
    plan_id: str | None = None
    """Id of the plan that sent the event."""
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
        """Convert the envelope to a JSON object without absent fields."""
        fields = self.__dict__
        wire: dict[str, Any] = {
            "id": fields["id"],
            "source": fields["source"],
            "type": fields["type"],
            "topic": str(fields["topic"]),
            "specversion": fields["specversion"],
            "time": _time_text(fields["time"]),
            "data": fields["data"],
            "correlation_id": fields["correlation_id"],
        }
        for name in _OPTIONAL:
            value = fields[name]
            if value is not None:
                wire[name] = value
        if fields["metadata"]:
            wire["metadata"] = fields["metadata"]
        return wire


def check_fields(event: EventEnvelope) -> EventEnvelope:
    """Return the event if its ids and names are short enough for subjects, headers and logs.

    Raises:
        ValueError: one is too long; the message names it.
    """
    fields = event.__dict__
    for name in _NAMES:
        value = fields[name]
        if value is not None and len(value) > MAX_NAME:
            raise ValueError(f"{name}: {_too_long(value)}")
    return event


def from_wire_fields(fields: dict[str, Any]) -> EventEnvelope | None:
    """Build an envelope from fields in the form of :meth:`EventEnvelope.to_wire`; None when any field is in doubt.

    A fast path that costs two thirds of the schema's validation, which decides all doubtful cases.
    """
    values = _ABSENT | fields
    if len(values) != len(_ABSENT):
        return None  # an unknown name, or one in camelCase
    data, metadata = values["data"], values["metadata"]
    others = ("data" in fields and type(data) is not str) + ("metadata" in fields)
    for name, value in fields.items():
        if type(value) is not str:
            others -= 1
        elif len(value) > MAX_NAME and name != "data":
            return None
    topic = _TOPICS.get(values["topic"]) if others == 0 and type(metadata) is dict else None
    if topic is None or not (values["id"] and values["type"] and values["correlation_id"]):
        return None
    if values["source"] is None or not _WRITTEN_TIME(values["time"]):
        return None
    try:
        values["time"] = datetime.fromisoformat(values["time"])
    except ValueError:
        return None
    values["topic"] = topic
    if "data" not in fields:
        values["data"] = {}
    if not metadata:
        values["metadata"] = {}
    event: EventEnvelope = _new(EventEnvelope)  # then as `model_construct` does
    _DICT(event, values)
    _FIELDS_SET(event, set(fields))
    _EXTRA(event, None)
    _PRIVATE(event, None)
    return event


class WireEvent:
    """An outgoing event whose fields are already in wire form.

    Checks them without the schema of :class:`EventEnvelope`, which decides the doubtful cases.
    """

    __slots__ = ("_fields", "data", "metadata")

    def __init__(self, fields: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: a field is missing or wrong (as pydantic's ValidationError, which names it).
        """
        self.data: Any = fields.get("data")
        self.metadata: dict[str, Any] = fields.get("metadata") or {}
        self._fields = _in_wire_form(fields) or EventEnvelope.model_validate(fields).to_wire()

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a JSON object without absent fields."""
        return self._fields


def _in_wire_form(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the known, present fields; None when a field is in doubt."""
    if fields.get("topic") not in _TOPICS:
        return None
    for name in _REQUIRED:
        if not fields.get(name):
            return None
    wire: dict[str, Any] = {"specversion": "1.0", "data": fields.get("data")}
    for name, value in fields.items():
        if type(value) is str:
            if name in _TEXTS:
                wire[name] = value
        elif value is not None and name in _TEXTS:
            if not isinstance(value, str):
                return None
            wire[name] = str(value)
    metadata = fields.get("metadata")
    if metadata:
        if not isinstance(metadata, dict):
            return None
        wire["metadata"] = metadata
    return wire


_OPTIONAL = tuple(name for name, field in EventEnvelope.model_fields.items() if field.default is None)
_NAMES = ("id", "source", "type", "specversion", "correlation_id", *_OPTIONAL)
_REQUIRED = ("id", "source", "type", "time", "correlation_id")
_TEXTS = frozenset((*_REQUIRED, "topic", *_OPTIONAL))
_TOPICS: dict[str, EventTopic] = {str(topic): topic for topic in EventTopic}
_ABSENT: dict[str, Any] = dict.fromkeys(EventEnvelope.model_fields) | {
    "id": "", "specversion": "1.0", "time": "", "metadata": {}
}  # fmt: skip
"""Each field's value when absent; required fields have an invalid one."""
_WRITTEN_TIME = re.compile(r"....-..-..T..:..:..\.(?!000000)......\+00:00").fullmatch
"""Matches the form in which times are written, of the many that are accepted."""
_new: Any = object.__new__  # calling the class would take twice as long
_DICT, _FIELDS_SET, _EXTRA, _PRIVATE = (
    vars(BaseModel)[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
"""Setters of the four slots of a model, which bypass its ``__setattr__``."""
