"""EventDecoder: decodes and checks the events that a plan host receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plancast_actors.plan_actors.protocol import Inbound
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import MSGPACK_TYPE, decode, decode_packed
from plancast_bus.events.envelope import EventEnvelope, EventTopic, check_name
from plancast_bus.subjects import EventAddress, Subjects, encode_token, is_inbox

_FOR_PLANS = frozenset({EventTopic.ACTION_REQUESTS, EventTopic.PLAN_EVENTS})
"""Topics of goals and control events, whose metadata plans take fields from."""


class EventDecoder:
    """Decodes events; refuses those that contradict their subject or are too large.

    Args:
        subjects: The deployment's.
        limit: Maximum size of an event in bytes.
    """

    def __init__(self, subjects: Subjects, limit: int) -> None:
        self._subjects = subjects
        self._limit = limit

    def read(self, inbound: Inbound, whole: bytes = b"") -> tuple[EventEnvelope, bool, bool]:
        """Decode an event; returns it, whether it is a due timer, and ``in_full`` (see :func:`decode_packed`).

        ``whole``: the event with its data in full, msgpack, where the data of the inbound one is a reference.

        Raises:
            InvalidEnvelope: the payload is no envelope, or contradicts its subject.
        """
        payload = inbound.payload
        if len(payload) > self._limit:
            raise InvalidEnvelope(f"{len(payload)} bytes; the limit is {self._limit} (PLANCAST_BUS__MAX_EVENT_BYTES)")
        payload, content_type = (whole, MSGPACK_TYPE) if whole else (payload, inbound.content_type)
        try:
            address = self._subjects.parse_stored(inbound.subject)
            encode_token(address.correlation_id)
        except InvalidSubject as error:
            raise InvalidEnvelope(str(error)) from error
        event, in_full = decode_packed(payload) if content_type == MSGPACK_TYPE else (None, False)
        if not address.topic:
            return event or decode(payload, content_type), True, in_full
        if event is None:
            event = decode(payload, content_type, defaults=_defaults(inbound, address))
        fields = event.__dict__
        if (fields["topic"], fields["correlation_id"], fields["type"]) != address:
            raise InvalidEnvelope(_contradiction(event, address))
        if fields["metadata"] and fields["topic"] in _FOR_PLANS:
            _check_metadata(fields["metadata"])
        return event, False, in_full


def _defaults(inbound: Inbound, address: EventAddress) -> dict[str, str]:
    return {
        "id": inbound.message_id or f"{inbound.stream}-{inbound.sequence}",
        "source": "unknown",
        "topic": address.topic,
        "type": address.event_type,
        "correlation_id": address.correlation_id,
    }


def _check_inbox(subject: str) -> None:
    if not is_inbox(subject):
        raise ValueError(
            "it is no inbox (_INBOX, then dot separated tokens of A-Z a-z 0-9 _ -, 200 characters at most)"
        )


_RESERVED: dict[str, Callable[[str], object]] = {
    "notify": _check_inbox, "parent_plan_id": encode_token, "reply_to": encode_token,
}  # fmt: skip
"""Metadata that plancast sets itself; these are strings."""
_FALLBACKS: dict[str, Callable[[str], object]] = dict.fromkeys(
    ("response_event", "response_topic", "session_id", "tenant_id", "trace_id", "user_id"), check_name
)
"""Envelope fields that a goal may have in its metadata instead; only strings are used."""


def _check_metadata(metadata: dict[str, Any]) -> None:
    """Check the metadata that becomes part of a plan's subjects or headers.

    Raises:
        InvalidEnvelope: a field cannot be used there.
    """
    for name, value in metadata.items():
        check = _RESERVED.get(name)
        if check is not None and value is not None and type(value) is not str:
            raise InvalidEnvelope(f"metadata.{name} is no text, but {type(value).__name__}")
        check = check or _FALLBACKS.get(name)
        if check is not None and type(value) is str:
            try:
                check(value)
            except ValueError as error:
                raise InvalidEnvelope(f"metadata.{name}: {error}") from error


def _contradiction(event: EventEnvelope, address: EventAddress) -> str:
    fields = {"topic": event.topic, "type": event.type, "correlation_id": event.correlation_id}
    subject = {"topic": address.topic, "type": address.event_type, "correlation_id": address.correlation_id}
    name = next(name for name in fields if fields[name] != subject[name])
    return f"{name} is {str(fields[name])[:100]!r}, but the subject says {str(subject[name])[:100]!r}"
