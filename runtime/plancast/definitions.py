"""What agents declare of themselves: events with their schemas, and who consumes and produces them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from pydantic import BaseModel

from plancast.bounds import at, freeze, shown
from plancast.errors import InvalidApp
from plancast.plain import plain
from plancast_bus.envelope import EventTopic
from plancast_bus.subjects import check_event_type

__all__ = ["AgentDefinition", "EventDefinition", "Schema", "schema_faults"]

Schema = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model that stands for its own."""

_D = TypeVar("_D")

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Largest schema of an event, in bytes of JSON."""
_MAX_FAULTS: Final = 20
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, init=False)
class EventDefinition:
    """An event that may be published, with what its data looks like and what answers it.

    Raises:
        InvalidSubject: a name is no event type.
        InvalidApp: the topic does not exist, or a schema is no JSON Schema.
    """

    event_type: str
    topic: EventTopic
    description: str = ""
    payload_schema: dict[str, Any] | None = field(default=None, hash=False)
    """JSON Schema of the event's data; None: anything goes."""
    response_event: str | None = None
    """The event that answers it."""
    response_schema: dict[str, Any] | None = field(default=None, hash=False)
    """JSON Schema of the answer's data."""

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
    ) -> None:
        if event_type and event_name and event_type != event_name:
            raise InvalidApp(f"an event has one name, not {event_type[:80]!r} and {event_name[:80]!r}")
        name = check_event_type(event_type or event_name)
        fields = {
            "event_type": name,
            "topic": _topic(name, topic),
            "description": description,
            "payload_schema": _schema(payload_schema, f"event {name}: payload_schema"),
            "response_event": check_event_type(response_event) if response_event else None,
            "response_schema": _schema(response_schema, f"event {name}: response_schema"),
        }
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @property
    def event_name(self) -> str:
        """Alias of `event_type`."""
        return self.event_type

    def to_dict(self) -> dict[str, Any]:
        """The definition as JSON has it; what is left at its default is left out."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__} | {"topic": str(self.topic)}
        return {name: plain(value) for name, value in told.items() if value not in (None, "")}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; fields that are not known (of a later version) are passed over."""
        return _read(cls, fields, {*cls.__dataclass_fields__, "event_name"})


@dataclass(frozen=True)
class AgentDefinition:
    """An agent (worker or planner), with the event types that it acts on and sends."""

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
        """The definition as JSON has it."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: plain(value) for name, value in told.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; fields that are not known (of a later version) are passed over."""
        return _read(cls, fields, cls.__dataclass_fields__)


def _read(cls: type[_D], fields: Mapping[str, Any], known: Container[str]) -> _D:
    try:
        return cls(**{name: value for name, value in fields.items() if name in known})
    except (AttributeError, TypeError) as error:
        raise InvalidApp(f"it is no {cls.__name__}: {_cut(str(error))}") from None


def _event_types(given: Iterable[str], where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidApp(f"{where} is a list of event types, not the text {given[:80]!r}")
    return tuple(dict.fromkeys(check_event_type(each) for each in given))


def _topic(name: str, topic: str) -> EventTopic:
    try:
        return EventTopic(topic)
    except ValueError:
        raise InvalidApp(f"event {name}: topic is {topic!r:.60}, allowed: {', '.join(EventTopic)}") from None


# Schemas.


def _schema(schema: Schema | None, where: str) -> dict[str, Any] | None:
    """A schema as a read-only dict, checked."""
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping):
        raise InvalidApp(f"{where} is a JSON Schema (a dict) or a pydantic model, not a {type(schema).__name__}")
    try:
        frozen: dict[str, Any] = freeze(schema)
        size = len(json.dumps(plain(frozen)).encode())
    except (TypeError, ValueError) as error:
        raise InvalidApp(f"{where} is not JSON: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise InvalidApp(f"{where} has {size} bytes of JSON, {MAX_SCHEMA_BYTES} at most are allowed")
    if fault := _schema_fault(frozen):
        raise InvalidApp(f"{where} is no JSON Schema: {fault}")
    return frozen


def _schema_fault(schema: Mapping[str, Any]) -> str | None:
    from jsonschema import Draft202012Validator, SchemaError  # takes tenths of a second; most apps have no use for it
    from jsonschema.validators import validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=kind.FORMAT_CHECKER)
    except SchemaError as error:
        return f"{_path(error.absolute_path) or 'it'}: {_cut(error.message)}"
    except RecursionError:
        return "it is nested too deeply"
    return next(_foreign_references(schema), None)


def _foreign_references(schema: Any) -> Iterator[str]:
    """References to other documents: they would have to be fetched from wherever the schema says."""
    if isinstance(schema, Mapping):
        for name in _REFERENCES:
            target = schema.get(name)
            if isinstance(target, str) and not target.startswith("#"):
                yield f"it refers to {shown(target)}, and only references within the schema (#/...) are followed"
        for inner in schema.values():
            yield from _foreign_references(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in schema:
            yield from _foreign_references(inner)


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[str]:
    """What is wrong with data by a JSON Schema (2020-12 unless it says otherwise); empty when nothing is.

    Each fault names the path in the data, what was got and what is allowed. A schema that cannot be applied is a
    fault too. References to other documents are never followed. `format` is not checked. At most 20 are told.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    try:
        if foreign := next(_foreign_references(schema), None):
            return [f"the schema cannot be applied: {foreign}"]
        validator = validator_for(schema, default=Draft202012Validator)(schema)
        faults: dict[str, None] = {}
        for error in validator.iter_errors(data):
            faults[_data_fault(error)] = None
            if len(faults) > _MAX_FAULTS:
                return [*list(faults)[:_MAX_FAULTS], "and more"]
    except Exception as error:  # unknown types, patterns that do not compile, references to nowhere, endless ones
        return [f"the schema cannot be applied: {type(error).__name__}: {_cut(str(error))}"]
    return list(faults)


def _data_fault(error: Any) -> str:
    kind, wanted, got = error.validator, error.validator_value, error.instance
    path = _path(error.absolute_path) or "the data"
    if kind in ("anyOf", "oneOf"):
        from jsonschema.exceptions import best_match

        closest = best_match([error])
        if closest is not error:
            return _data_fault(closest)
        return f"{path}: got {shown(got)}, allowed: one of {_cut(json.dumps(plain(wanted)))}"
    if kind == "required":
        missing = ", ".join(name for name in wanted if name not in got)
        return f"{path}: got no {_cut(missing)}, allowed: an object that has it; it is required"
    if kind == "additionalProperties" and wanted is False and "patternProperties" not in error.schema:
        known = list(error.schema.get("properties", {}))
        unknown = ", ".join(shown(name) for name in list(got)[:64] if name not in known)
        return f"{path}: got unknown keys: {_cut(unknown)}, allowed: {_cut(', '.join(known)) or 'none'}"
    if kind == "type":
        return f"{path}: got {shown(got)}, allowed: {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
    if kind in ("enum", "const"):
        values = wanted if kind == "enum" else [wanted]
        return f"{path}: got {shown(got)}, allowed: {_cut(', '.join(map(shown, values)))}"
    if kind is None:
        return f"{path}: got {shown(got)}, allowed: nothing"
    return f"{path}: got {shown(got)}, allowed: {kind} {shown(wanted)}"


def _path(steps: Iterable[Any]) -> str:
    path = ""
    for step in steps:
        path = at(path, step)
    return path


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."
