"""JSON values as parts of A2A messages, and back: protobuf has doubles only, and bounds their depth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from a2a.types import Part
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Protobuf
from google.protobuf.struct_pb2 import Struct, Value

JSON: Final = "application/json"
TEXT: Final = "text/plain"
CURSOR: Final = "plancast/cursor"
"""Key of the metadata of tasks and events: the place in the task's events."""
PROGRESS: Final = "plancast/progress"
"""Key of an event's metadata: the share of a running task that is done, 0 to 1."""
CURSOR_HEADER: Final = "last-event-id"
"""Header of a request for a stream: the cursor after which it goes on."""
RESULT: Final = "result"
"""Id of the artifact with a plan's result."""
MAX_EXACT: Final = 2**53
"""Largest integer that a double holds exactly, with all below it."""
MAX_DEPTH: Final = 40
"""Deepest data part: the SDK reads up to 100 messages in each other, two for each level."""


def part_of(value: Any) -> Part:
    """A part with a JSON value: text, or data; as text in JSON what data parts cannot hold."""
    if isinstance(value, str):
        return Part(text=value, media_type=TEXT)
    if not _fits(value, MAX_DEPTH):
        return Part(text=json.dumps(value), media_type=JSON)
    return Part(data=to_value(value), media_type=JSON)


def value_of(part: Part) -> Any:
    """The JSON value of a part of text or data; raises ValueError for text in JSON that is none."""
    if part.HasField("data"):
        return from_value(part.data)
    if part.media_type == JSON:
        return json.loads(part.text)
    return part.text


def json_of(message: Protobuf) -> dict[str, Any]:
    """A message of the protocol as JSON."""
    found: dict[str, Any] = MessageToDict(message)
    return found


def struct_of(fields: dict[str, Any]) -> Struct:
    """Fields as metadata."""
    found: Struct = to_value(fields).struct_value
    return found


def to_value(value: Any) -> Value:
    """A JSON value in protobuf."""
    if value is None:
        return Value(null_value=0)
    if isinstance(value, bool):
        return Value(bool_value=value)
    if isinstance(value, int | float):
        return Value(number_value=value)
    if isinstance(value, str):
        return Value(string_value=value)
    made = Value()
    if isinstance(value, dict):
        made.struct_value.SetInParent()
        for key, each in value.items():
            made.struct_value.fields[key].CopyFrom(to_value(each))
    else:
        made.list_value.SetInParent()
        made.list_value.values.extend(map(to_value, value))
    return made


def from_value(value: Value) -> Any:
    """The JSON value; doubles without a fraction are integers again."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return from_struct(value.struct_value)
    if kind == "list_value":
        return [from_value(each) for each in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if abs(number) <= MAX_EXACT and number.is_integer() else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def from_struct(struct: Struct) -> dict[str, Any]:
    """The fields of metadata."""
    return {key: from_value(each) for key, each in struct.fields.items()}


def _fits(value: Any, depth: int) -> bool:
    if isinstance(value, dict | list):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_fits(each, depth - 1) for each in inner)
    return not isinstance(value, int) or abs(value) <= MAX_EXACT
