"""Definitions that agents register: events with their schemas, and agents with the events they consume and produce."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from plancast.errors import InvalidApp
from plancast.json_values.normalize import plain
from plancast.json_values.schemas import Schema, checked_schema
from plancast.state_machine.machine import base_of
from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventTopic
from plancast_bus.subjects import check_event_type

_D = TypeVar("_D")


@dataclass(frozen=True, init=False)
class EventDefinition:
    """An event that may be published, with the schema of its data and the event of its response.

    Raises:
        InvalidSubject: a name is no event type.
        InvalidApp: the topic does not exist, or a schema is no JSON Schema.
    """

    event_type: str
    topic: EventTopic
    description: str = ""
    payload_schema: dict[str, Any] | None = field(default=None, hash=False)
    """JSON Schema of the event's data; None: any data."""
    response_event: str | None = None
    """Event type of the response."""
    response_schema: dict[str, Any] | None = field(default=None, hash=False)
    """JSON Schema of the response's data."""
    effect: bool = False
    """True for a request whose answer names an effect, see :class:`Effect`."""

    def __init__(
        self,
        event_type: str = "",
        topic: str = EventTopic.ACTION_REQUESTS,
        description: str = "",
        payload_schema: Schema | None = None,
        response_event: str | None = None,
        response_schema: Schema | None = None,
        *,
        event_name: str = "",
        effect: bool = False,
    ) -> None:
        if event_type and event_name and event_type != event_name:
            raise InvalidApp(f"an event has one name, not {event_type[:80]!r} and {event_name[:80]!r}")
        name = check_event_type(event_type or event_name)
        fields = {
            "event_type": name,
            "topic": _topic(name, topic),
            "description": description,
            "payload_schema": checked_schema(payload_schema, f"event {name}: payload_schema"),
            "response_event": check_event_type(response_event) if response_event else None,
            "response_schema": checked_schema(response_schema, f"event {name}: response_schema"),
            "effect": bool(effect),
        }
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @property
    def event_name(self) -> str:
        """Alias of `event_type`."""
        return self.event_type

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-able dict, without defaults."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__} | {"topic": str(self.topic)}
        return {name: plain(value) for name, value in values.items() if value not in (None, "", False)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Create a definition from `to_dict`; unknown fields, of later versions, are ignored."""
        return _read(cls, fields, {*cls.__dataclass_fields__, "event_name"})


def response_event_of(event_type: str, definition: EventDefinition | None) -> str:
    """The event that answers a request which names none: the declared one, else ``<base>.completed``."""
    declared = definition.response_event if definition is not None else None
    return declared or f"{base_of(event_type) or event_type}.completed"


@dataclass(frozen=True)
class AgentDefinition:
    """An agent (worker or planner), with the event types that it consumes and produces."""

    agent_id: str
    name: str
    consumes: Sequence[str] = ()
    produces: Sequence[str] = ()
    description: str = ""

    def __post_init__(self) -> None:
        if not self.agent_id or not self.name:
            raise InvalidApp("an agent needs an agent_id and a name")
        for side in ("consumes", "produces"):
            object.__setattr__(self, side, _event_types(getattr(self, side), f"agent {self.name!r}: {side}"))

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-able dict."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Create a definition from `to_dict`; unknown fields, of later versions, are ignored."""
        return _read(cls, fields, cls.__dataclass_fields__)


def _read(cls: type[_D], fields: Mapping[str, Any], known: Container[str]) -> _D:
    try:
        return cls(**{name: value for name, value in fields.items() if name in known})
    except (AttributeError, TypeError, InvalidSubject) as error:
        raise InvalidApp(f"invalid {cls.__name__}: {str(error)[:300]}") from None


def _event_types(given: Iterable[str], where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidApp(f"{where} is a list of event types, not the text {given[:80]!r}")
    return tuple(dict.fromkeys(check_event_type(each) for each in given))


def _topic(name: str, topic: str) -> EventTopic:
    try:
        return EventTopic(topic)
    except ValueError:
        raise InvalidApp(f"event {name}: topic is {topic!r:.60}, allowed: {', '.join(EventTopic)}") from None
