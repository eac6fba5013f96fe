"""EffectRecord: what the ledger holds of one effect."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, Self

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.envelope import EventEnvelope


class EffectState(StrEnum):
    """State of an effect."""

    BEGUN = "begun"
    """An attempt was begun; its end is not recorded yet."""
    DONE = "done"
    FAILED = "failed"
    """The last attempt failed, and is known to have done nothing."""
    UNKNOWN = "unknown"
    """An attempt may have done it or not, and no look-up can tell."""
    UNDOING = "undoing"
    """Its undo was begun."""
    UNDONE = "undone"
    WITHDRAWN = "withdrawn"
    """Nothing was begun of the last request for it, which was withdrawn, or of its last attempt; another may begin."""


class EffectRecord(NamedTuple):
    """One effect, as the ledger holds it."""

    state: EffectState
    task: str
    """Idempotency key of the task that owns the effect; other tasks of its key are answered with its outcome."""
    key: str
    attempt: int = 1
    """Attempts begun, from 1."""
    request_id: str = ""
    request: bytes = b""
    """The owner's request in wire form, packed, with its data: what a look-up, an undo and a later answer need."""
    begun_by: str = ""
    """Id of the request whose delivery has begun the last attempt: the owner's, or that of a person's decision."""
    answer: tuple[str, Any] | None = None
    """Event type and data of the answer, once the outcome is known; the type is empty where no answer is expected.

    Of an effect that is begun: an earlier attempt, which was given up for lost, has done it meanwhile.
    """
    reason: str = ""
    """Why the effect is unknown, for people; or why a done one's result could not be sent, or its undo failed.

    Of an effect that is begun: why the end of an earlier attempt, which was given up for lost, is not known.
    """
    undo: str = ""
    """Id of the request that undoes it."""
    failed_undos: tuple[str, ...] = ()
    """Ids of the newest requests that have failed to undo it: delivered again, they do not try again."""
    withdrawn: tuple[str, ...] = ()
    """Ids of the newest requests that were withdrawn, and are not to begin any more."""
    writer: str = ""
    """Id of the delivery that has written it last: tells an attempt's own write from that of another process."""
    at: float = 0.0
    """Time of the last change by the worker's clock, seconds since the epoch, UTC."""

    @property
    def envelope(self) -> EventEnvelope:
        """The owner's request."""
        return EventEnvelope.model_validate(unpack(self.request))

    def asked_by(self, request: EventEnvelope) -> Self:
        """A copy that holds this request as the owner's."""
        return self._replace(request_id=request.id, request=pack(request.to_wire()))

    def moved(self, state: EffectState, **changes: Any) -> Self:
        """A copy in another state."""
        return self._replace(state=state, **changes)

    def encode(self) -> bytes:
        """Encode the record in msgpack."""
        return pack({name: value for name, value in zip(self._fields, self, strict=True) if value})

    @classmethod
    def decode(cls, stored: bytes) -> Self:
        """Decode a stored record; fields of later versions are ignored.

        Raises:
            InvalidEnvelope: it is damaged.
        """
        try:
            values = {name: value for name, value in unpack(stored).items() if name in cls._fields}
            answer = values.pop("answer", None)
            state = EffectState(values.pop("state"))
            if isinstance(request := values.get("request"), dict):  # of a version that stored no bytes
                values |= {"request_id": request["id"], "request": pack(request)}
            for name in ("withdrawn", "failed_undos"):
                values[name] = tuple(values.get(name, ()))
            return cls(state=state, answer=None if answer is None else (answer[0], answer[1]), **values)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidEnvelope(f"the record of an effect is damaged: {error}") from error
