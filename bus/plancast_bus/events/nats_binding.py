"""The NATS protocol binding of CloudEvents 1.0.

In binary mode the attributes of an event are ``ce-`` headers and the payload is its data. Such messages are converted
to and from envelopes at the edge; all other code handles envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.cloud_events import STRUCTURED, attributes_of, fields_of, read_data
from plancast_bus.events.codec import JSON_TYPE, MSGPACK_TYPE, REFERENCE_TYPES, UNREADABLE, WireFormat, dump, load
from plancast_bus.events.trace_context import PARENT, STATE, read_trace

MAX_ATTRIBUTES = 16 * 1024
"""Maximum bytes of attributes in headers; larger events are sent as envelopes. JetStream allows 64 KiB of headers."""

_PREFIX = "ce-"
_AS_THEY_ARE = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')


class Message(NamedTuple):
    """A received message; a CloudEvent in binary mode is converted to an envelope."""

    payload: bytes
    content_type: str | None
    message_id: str | None
    trace: str
    """Trace context; see :mod:`plancast_bus.events.trace_context`."""


def read_message(headers: Mapping[str, str], payload: bytes) -> Message:
    """Read a message of any client, with header names in upper or lower case.

    It never raises: decoding the payload of a malformed CloudEvent does.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    content_type = lowered.get("content-type")
    if "ce-specversion" in lowered and not _is_structured(content_type):
        payload, content_type = _from_binary(lowered, payload, content_type)
    trace = read_trace(
        lowered.get(PARENT) or lowered.get("ce-traceparent"), lowered.get(STATE) or lowered.get("ce-tracestate")
    )
    return Message(payload, content_type, headers.get("Nats-Msg-Id"), trace)


def as_cloud_event(payload: bytes, content_type: str) -> tuple[bytes, dict[str, str]]:
    """Convert an envelope to binary mode: its data, and its other fields as headers.

    A payload that is no envelope, whose data is a reference, or whose fields are too large for headers, is returned as
    it is.
    """
    if content_type in REFERENCE_TYPES:
        return payload, {}
    try:
        fields = load(payload, content_type)
        if not isinstance(fields, dict) or "specversion" not in fields:
            return payload, {}
        written: WireFormat = "msgpack" if content_type == MSGPACK_TYPE else "json"
        data = dump(fields.get("data"), written)
    except InvalidEnvelope:
        return payload, {}
    headers = {_PREFIX + name: quote(value, safe=_AS_THEY_ARE) for name, value in attributes_of(fields).items()}
    if sum(len(name) + len(value) + 4 for name, value in headers.items()) > MAX_ATTRIBUTES:
        return payload, {}
    return data, headers


def _from_binary(headers: Mapping[str, str], payload: bytes, content_type: str | None) -> tuple[bytes, str]:
    try:
        fields = fields_of(
            {
                name.removeprefix(_PREFIX): _plain(value)
                for name, value in headers.items()
                if name.startswith(_PREFIX) and name not in ("ce-traceparent", "ce-tracestate")
            }
        )
        fields["data"] = read_data(payload, content_type, load)
        is_msgpack = "msgpack" in (content_type or "")
        return dump(fields, "msgpack" if is_msgpack else "json"), MSGPACK_TYPE if is_msgpack else JSON_TYPE
    except InvalidEnvelope as error:
        return payload, f"{UNREADABLE}; {error}"


def _is_structured(content_type: str | None) -> bool:
    return content_type is not None and content_type.lower().startswith(STRUCTURED.partition("+")[0])


def _plain(value: str) -> str:
    """Decode the text of a header: percent-encoded, optionally in quotation marks."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidEnvelope("an attribute of a CloudEvent is not UTF-8") from error
