"""Encoding of envelopes: msgpack or JSON, distinguished by the ``Content-Type`` header."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Literal

import msgpack
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.cloud_events import STRUCTURED, from_structured
from plancast_bus.events.envelope import EventEnvelope, WireEvent, check_fields, from_wire_fields

WireFormat = Literal["msgpack", "json"]

JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"
CONTENT_TYPES: dict[WireFormat, str] = {"json": JSON_TYPE, "msgpack": MSGPACK_TYPE}

REFERENCE_TYPES: Mapping[str, WireFormat] = {
    "application/vnd.plancast.reference.msgpack": "msgpack",
    "application/vnd.plancast.reference.json": "json",
}
"""Content types of events whose data is a reference, see :mod:`plancast_bus.events.references`."""

UNREADABLE = "application/cloudevents"
"""Content type that marks a malformed CloudEvent; the reason follows behind a semicolon."""

_SUSPECTS = tuple((suspect[:1], suspect) for suspect in (b"\xcb\x7f", b"\xcb\xff", b"\xc4\x00", b"\xc7\x00"))
"""First bytes of non-finite numbers and of empty bin and ext values in msgpack; none occurs in UTF-8 text."""
_packer = msgpack.Packer(use_bin_type=True)
"""Reused: each packer allocates a buffer, which grows to the largest value and never shrinks."""
KEPT_BYTES = 2 << 20
"""A larger value is the last one of its packer, so that its buffer is freed."""
MAX_DEPTH = 64
"""Maximum nesting of lists and objects in an event."""


def pack(value: Any) -> bytes:
    """Encode a JSON value as msgpack.

    Raises:
        InvalidEnvelope: a value is not JSON, or an integer exceeds 64 bits.
    """
    global _packer
    try:
        packed: bytes = _packer.pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidEnvelope(f"cannot be sent as msgpack: {error}") from error
    if len(packed) > KEPT_BYTES:
        _packer = msgpack.Packer(use_bin_type=True)
    return packed


def unpack(payload: bytes) -> Any:
    """Decode msgpack; nothing in it is ever executed.

    Raises:
        InvalidEnvelope: the bytes are not msgpack.
    """
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except Exception as error:
        raise InvalidEnvelope(f"not decodable as msgpack: {type(error).__name__}") from error


def deflate(packed: bytes) -> bytes:
    """Compress, large values quickly rather than best."""
    return zlib.compress(packed, 6 if len(packed) <= 65_536 else 1)


def inflate(payload: bytes, most: int) -> bytes:
    """Undo :func:`deflate`.

    Raises:
        InvalidEnvelope: the bytes are not the output of :func:`deflate`, or are more than ``most`` when decompressed.
    """
    reader = zlib.decompressobj()
    try:
        packed = reader.decompress(payload, most + 1)
    except zlib.error as error:
        raise InvalidEnvelope(f"not decodable as zlib: {error}") from error
    if len(packed) > most or not reader.eof:
        raise InvalidEnvelope(f"not decodable as zlib: incomplete, or more than {most:,} bytes")
    return packed


def unpack_rows(payload: bytes, width: int, most: int) -> list[list[Any]]:
    """Decode msgpack rows: at most ``most`` rows of ``width`` scalar values.

    Anything else is refused before it is built: 8 MB of empty lists would take half a gigabyte.

    Raises:
        InvalidEnvelope: the bytes are not such rows.
    """
    reader = msgpack.Unpacker(raw=False, max_buffer_size=len(payload), max_array_len=0, max_map_len=0, max_ext_len=0)
    try:
        reader.feed(payload)
        count = reader.read_array_header()
        if count > most:
            raise ValueError("too many rows")
        rows = []
        for _ in range(count):
            if reader.read_array_header() != width:
                raise ValueError("a row of another width")
            row = [reader.unpack() for _ in range(width)]
            if any(isinstance(each, (list, dict)) for each in row):
                raise ValueError("a list in a row")
            rows.append(row)
    except Exception as error:
        raise InvalidEnvelope(f"not decodable as rows: {type(error).__name__}") from error
    return rows


def dump(value: Any, wire_format: WireFormat) -> bytes:
    """Encode a JSON value in a wire format."""
    if wire_format == "msgpack":
        return pack(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidEnvelope(f"cannot be sent as JSON: {error}") from error


def load(payload: bytes, content_type: str | None) -> Any:
    """Decode bytes of a content type; JSON when absent.

    Raises:
        InvalidEnvelope: unknown content type, or bytes that are not of it.
    """
    if content_type == MSGPACK_TYPE:
        return unpack(payload)
    kind = (content_type or JSON_TYPE).split(";", 1)[0].strip().lower()
    wire_format = REFERENCE_TYPES.get(kind)
    if wire_format == "msgpack" or kind in (MSGPACK_TYPE, "application/x-msgpack", "application/vnd.msgpack"):
        return unpack(payload)
    if wire_format == "json" or kind == JSON_TYPE or kind.endswith("+json"):
        try:
            return _read_json(payload.decode(json.detect_encoding(payload), "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope(f"not decodable as JSON: {error}"[:300]) from error
    if kind == UNREADABLE:
        raise InvalidEnvelope(f"a CloudEvent cannot be read: {str(content_type).partition(';')[2].strip()}"[:300])
    raise InvalidEnvelope(f"unknown Content-Type {kind[:100]!r}: send {JSON_TYPE} or {MSGPACK_TYPE}")


def encode(event: EventEnvelope | WireEvent, wire_format: WireFormat = "msgpack") -> bytes:
    """Encode an envelope.

    Raises:
        InvalidEnvelope: its data or metadata are not JSON.
    """
    try:
        payload = dump(event.to_wire(), wire_format)  # first: it fails on cycles
        _check_json(event.data, event.metadata)  # the other fields are text, which the encoders check
    except InvalidEnvelope as error:
        fault = fault_of(event.data, path="data") or fault_of(event.metadata, path="metadata")
        raise InvalidEnvelope(fault or str(error)) from error
    return payload


def decode(
    payload: bytes,
    content_type: str | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
) -> EventEnvelope:
    """Decode an envelope; JSON without a content type.

    ``defaults`` are fields that may be absent on the wire, such as those in the subject.

    Raises:
        InvalidEnvelope: the bytes cannot be decoded, a field is missing or wrong, or the data is a reference.
    """
    if content_type in REFERENCE_TYPES:
        raise InvalidEnvelope("its data is a reference, which plancast_bus.event_data.in_full reads")
    fields = load(payload, content_type)
    if not isinstance(fields, dict):
        raise InvalidEnvelope(f"an event is an object, not {type(fields).__name__}")
    # msgpack rejects unpaired surrogates, and the other fields are only accepted as text.
    if content_type == MSGPACK_TYPE:
        _check_json(fields.get("data"), fields.get("metadata"))
    else:
        _check_json(fields, depth=MAX_DEPTH + 1)
        if content_type is not None and content_type.lower().startswith(STRUCTURED):
            fields = from_structured(fields, load)
            _check_json(fields, depth=MAX_DEPTH + 1)
    event = from_wire_fields(fields)
    if event is not None:
        return event
    if defaults:
        fields = _with_defaults(fields, defaults)
    return validated(fields)


def validated(fields: Mapping[str, Any]) -> EventEnvelope:
    """Validate fields as an envelope.

    Raises:
        InvalidEnvelope: a field is missing or wrong; the message names it.
    """
    try:
        return check_fields(EventEnvelope.model_validate(fields))
    except ValidationError as error:
        raise InvalidEnvelope(_explain(error)) from error
    except ValueError as error:
        raise InvalidEnvelope(f"no event envelope: {error}") from error


def decode_packed(payload: bytes) -> tuple[EventEnvelope | None, bool]:
    """Decode a msgpack envelope without the schema; None when :func:`decode` must be used.

    Returns also whether the bytes equal the encoding of the envelope's ``to_wire()``, so that they can be passed on.

    Raises:
        InvalidEnvelope: as :func:`decode`.
    """
    fields = unpack(payload)
    if not isinstance(fields, dict):
        return None, False
    _check_json(fields.get("data"), fields.get("metadata"))
    event = from_wire_fields(fields)
    if event is None:
        return None, False
    # Of the fields of `to_wire`, only these may be absent. The first byte is the number of fields, up to 15: it exceeds
    # the number decoded where a name occurs twice.
    in_full = "data" in fields and "specversion" in fields and payload[0] == 0x80 + len(fields)
    return event, in_full and fields.get("metadata") != {}


def is_json(packed: bytes) -> bool:
    """Return whether the output of :func:`pack` is JSON and can be decoded again.

    True is certain. False may be wrong, where the bytes of a number look like a suspect; :func:`fault_of` is exact.
    """
    try:
        msgpack.unpackb(packed, raw=False, strict_map_key=True, max_bin_len=0, max_ext_len=0)
    except Exception:
        return False
    return not any(first in packed and suspect in packed for first, suspect in _SUSPECTS)  # one byte is found faster


def fault_of(value: Any, *, depth: int = MAX_DEPTH, path: str = "") -> str:
    """Explain why, and at which path (``results.found[3].url``), a value is not JSON; empty when it is."""
    return _Fault(depth).visit(value, path, depth)


def _with_defaults(fields: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    absent = {
        name: value
        for name, value in defaults.items()
        if fields.get(name) is None and fields.get(to_camel(name)) is None
    }
    return {**fields, **absent} if absent else fields


def _explain(error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)]
    return "no event envelope: " + "; ".join(faults[:5])


def _check_json(*values: Any, depth: int = MAX_DEPTH) -> None:
    """Refuse values that are not JSON, differ between the wire formats, or are nested too deep.

    The walk is breadth first, so that no nesting exhausts the stack and no cycle is endless.
    """
    level: list[Any] = []
    _check_each(values, level)
    while level:
        if not depth:
            raise InvalidEnvelope(f"nested deeper than {MAX_DEPTH} levels")
        depth -= 1
        below: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                for key in container:
                    if type(key) is not str or not key.isascii():
                        _check_key(key)
                _check_each(container.values(), below)
            else:
                _check_each(container, below)
        level = below


def _check_each(values: Iterable[Any], containers: list[Any]) -> None:
    """Check scalar values, and collect the containers among them."""
    for value in values:
        kind = type(value)
        if kind is str:
            if not value.isascii():
                _check_text(value)
        elif kind is dict or kind is list:
            containers.append(value)
        elif kind is int:
            if not -(2**63) <= value < 2**64:
                raise InvalidEnvelope("an integer is over 64 bits; send it as a string")
        elif value is not None and kind is not bool:
            _check_rarer(value, containers)


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise InvalidEnvelope(f"the key {key!r:.60} is of type {type(key).__name__}; keys must be strings")
    _check_text(key)


class _Fault:
    """Finds the path of what :func:`_check_json` refused, by a slower, depth-first search."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._above: set[int] = set()
        """Containers on the current path."""
        self._seen: set[int] = set()
        """Containers without a fault."""

    def visit(self, value: Any, path: str, depth: int) -> str:
        if not isinstance(value, (dict, list, tuple)):
            return self._refusal(path, _check_each, (value,), [])
        if id(value) in self._above:
            return f"{path or 'the value'} is nested within itself"
        if id(value) in self._seen:
            return ""
        if not depth:
            return f"{path[:200]}... is nested deeper than {self._depth} levels"
        self._above.add(id(value))
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            fault = self._refusal(path, _check_key, key) if isinstance(value, dict) else ""
            if fault := fault or self.visit(item, _path(path, key, isinstance(value, dict)), depth - 1):
                return fault
        self._above.discard(id(value))
        self._seen.add(id(value))
        return ""

    @staticmethod
    def _refusal(path: str, check: Callable[..., None], *what: Any) -> str:
        try:
            check(*what)
        except InvalidEnvelope as error:
            return f"{path}: {error}" if path else str(error)
        return ""


def _path(path: str, key: Any, of_object: bool) -> str:
    if not of_object:
        return f"{path}[{key}]"
    name = str(key)[:60]
    name = name if name.isprintable() else ascii(name)
    return f"{path}.{name}" if path else name


def _check_rarer(value: Any, containers: list[Any]) -> None:
    """Check a number, or an instance of a subclass of a JSON type."""
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise InvalidEnvelope("an integer is over 64 bits; send it as a string")
    elif isinstance(value, float):
        if not isfinite(value):
            raise InvalidEnvelope(f"{value} is no JSON")
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, (dict, list, tuple)):
        containers.append(value)
    else:
        raise InvalidEnvelope(f"{type(value).__name__} is no JSON")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEnvelope("a string holds half of a surrogate pair") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_read_json = json.JSONDecoder(parse_constant=_refuse_constant).decode  # ``json.loads`` would create a decoder per event
