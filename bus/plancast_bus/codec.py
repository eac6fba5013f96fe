"""Envelopes as bytes: msgpack or JSON, told apart by the ``Content-Type`` header."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Literal

import msgpack
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from plancast_bus.envelope import EventEnvelope, WireEvent
from plancast_bus.errors import InvalidEnvelope

WireFormat = Literal["msgpack", "json"]

JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"
CONTENT_TYPES: dict[WireFormat, str] = {"json": JSON_TYPE, "msgpack": MSGPACK_TYPE}

MAX_DEPTH = 64
"""Deepest nesting of lists and objects in an event."""


def pack(value: Any) -> bytes:
    """JSON-able values as msgpack bytes.

    Raises:
        InvalidEnvelope: a value is not JSON-able, or an integer over 64 bits.
    """
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidEnvelope(f"cannot be sent as msgpack: {error}") from error
    return packed


def unpack(payload: bytes) -> Any:
    """The value in msgpack bytes; nothing in them is ever executed.

    Raises:
        InvalidEnvelope: the bytes are no msgpack.
    """
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except Exception as error:
        raise InvalidEnvelope(f"not decodable as msgpack: {type(error).__name__}") from error


def dump(value: Any, wire_format: WireFormat) -> bytes:
    """JSON-able values as bytes in a wire format."""
    if wire_format == "msgpack":
        return pack(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidEnvelope(f"cannot be sent as JSON: {error}") from error


def load(payload: bytes, content_type: str | None) -> Any:
    """The value in bytes of a content type (absent: JSON).

    Raises:
        InvalidEnvelope: unknown content type, or bytes that are not of it.
    """
    kind = (content_type or JSON_TYPE).split(";", 1)[0].strip().lower()
    if kind in (MSGPACK_TYPE, "application/x-msgpack", "application/vnd.msgpack"):
        return unpack(payload)
    if kind == JSON_TYPE or kind.endswith("+json"):
        try:
            return json.loads(payload, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope(f"not decodable as JSON: {error}"[:300]) from error
    raise InvalidEnvelope(f"unknown Content-Type {kind[:100]!r}: send {JSON_TYPE} or {MSGPACK_TYPE}")


def encode(event: EventEnvelope | WireEvent, wire_format: WireFormat = "msgpack") -> bytes:
    """An envelope as bytes.

    Raises:
        InvalidEnvelope: its data or metadata are no JSON.
    """
    fields = event.to_wire()
    _check_json((event.data, event.metadata))  # the other fields are text, which the formats themselves check
    return dump(fields, wire_format)


def decode(
    payload: bytes,
    content_type: str | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
) -> EventEnvelope:
    """The envelope in bytes.

    Args:
        payload: What came over the wire.
        content_type: The ``Content-Type`` header; JSON when absent.
        defaults: Fields that may be left out on the wire, such as what the subject says.

    Raises:
        InvalidEnvelope: the bytes cannot be decoded, or a field is missing or wrong.
    """
    fields = load(payload, content_type)
    if not isinstance(fields, dict):
        raise InvalidEnvelope(f"an event is an object, not {type(fields).__name__}")
    # msgpack takes no half of a surrogate pair, and of the other fields only text is taken over.
    _check_json((fields.get("data"), fields.get("metadata")) if content_type == MSGPACK_TYPE else fields)
    if defaults:
        fields = _with_defaults(fields, defaults)
    try:
        return EventEnvelope.model_validate(fields)
    except ValidationError as error:
        raise InvalidEnvelope(_explain(error)) from error


def _with_defaults(fields: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    absent = {
        name: value
        for name, value in defaults.items()
        if fields.get(name) is None and fields.get(to_camel(name)) is None
    }
    return {**fields, **absent}


def _explain(error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)]
    return "no event envelope: " + "; ".join(faults[:5])


def _check_json(fields: Mapping[str, Any] | tuple[Any, ...]) -> None:
    """Refuse what is no JSON, or not the same in both wire formats.

    Walks level by level, so that no nesting can exhaust the stack and no cycle goes on for ever.
    """
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            if isinstance(container, Mapping):
                for key in container:
                    if not isinstance(key, str):
                        raise InvalidEnvelope(f"the keys of an object are strings, not {type(key).__name__}")
                    _check_text(key)
                children: Iterable[Any] = container.values()
            else:
                children = container
            for child in children:
                if isinstance(child, str):
                    _check_text(child)
                elif isinstance(child, (dict, list, tuple)):
                    below.append(child)
                elif isinstance(child, float):
                    if not isfinite(child):
                        raise InvalidEnvelope(f"{child} is no JSON")
                elif isinstance(child, int):
                    if not -(2**63) <= child < 2**64:
                        raise InvalidEnvelope("an integer is over 64 bits; send it as a string")
                elif child is not None:
                    raise InvalidEnvelope(f"{type(child).__name__} is no JSON")
        if not below:
            return
        level = below
    raise InvalidEnvelope(f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidEnvelope("a string holds half of a surrogate pair") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
