"""InboundReader: what a plan host takes as the event that was handed to it."""

from __future__ import annotations

from plancast_actors.inbound import Inbound
from plancast_bus.codec import MSGPACK_TYPE, decode, decode_packed
from plancast_bus.envelope import EventEnvelope
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.subjects import EventAddress, Subjects, encode_token


class InboundReader:
    """Reads events, as long as they are what their subject says, and not too large.

    Args:
        subjects: Of the deployment.
        limit: Bytes of an event, at most.
    """

    def __init__(self, subjects: Subjects, limit: int) -> None:
        self._subjects = subjects
        self._limit = limit

    def read(self, inbound: Inbound) -> tuple[EventEnvelope, bool, bool]:
        """The event, whether it is a due timer, and whether its payload stands for it (see :func:`decode_packed`).

        Raises:
            InvalidEnvelope: it is none, or says something else than its subject.
        """
        payload = inbound.payload
        if len(payload) > self._limit:
            raise InvalidEnvelope(f"{len(payload)} bytes; the limit is {self._limit} (PLANCAST_BUS__MAX_EVENT_BYTES)")
        try:
            address = self._subjects.parse_stored(inbound.subject)
            encode_token(address.correlation_id)
        except InvalidSubject as error:
            raise InvalidEnvelope(str(error)) from error
        event, in_full = decode_packed(payload) if inbound.content_type == MSGPACK_TYPE else (None, False)
        if not address.topic:
            return event or decode(payload, inbound.content_type), True, in_full
        if event is None:
            event = decode(payload, inbound.content_type, defaults=_defaults(inbound, address))
        said = event.__dict__
        if (said["topic"], said["correlation_id"], said["type"]) != address:
            raise InvalidEnvelope(_contradiction(event, address))
        return event, False, in_full


def _defaults(inbound: Inbound, address: EventAddress) -> dict[str, str]:
    """What an event may leave out."""
    return {
        "id": inbound.message_id or f"{inbound.stream}-{inbound.sequence}",
        "source": "unknown",
        "topic": address.topic,
        "type": address.event_type,
        "correlation_id": address.correlation_id,
    }


def _contradiction(event: EventEnvelope, address: EventAddress) -> str:
    """How an event says something else than its subject."""
    said = {"topic": event.topic, "type": event.type, "correlation_id": event.correlation_id}
    subject = {"topic": address.topic, "type": address.event_type, "correlation_id": address.correlation_id}
    name = next(name for name in said if said[name] != subject[name])
    return f"{name} is {str(said[name])[:100]!r}, but the subject says {str(subject[name])[:100]!r}"
