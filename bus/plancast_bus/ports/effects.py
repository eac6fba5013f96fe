"""Effects: what a turn wants to happen outside, ready to be sent.

A checkpoint holds the effects of its turn (its outbox). They are sent after the checkpoint is
durable, and sent again when nobody can be sure that they were: every effect is harmless to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plancast_bus.errors import InvalidEnvelope


# The two that nearly every turn has are not frozen, which would make them cost five times as much.
@dataclass(slots=True, unsafe_hash=True)
class Publish:
    """Publish an event. Repeats are dropped by the stream, known by their ``message_id``."""

    subject: str
    payload: bytes
    message_id: str
    content_type: str
    tenant: str = ""
    """Of a goal: whose it is, as a token of a subject; see ``Delivery.tenant``."""
    trace: str = ""
    """The trace that it belongs to; see :mod:`plancast_bus.events.trace_context`."""


@dataclass(slots=True, unsafe_hash=True)
class Respond:
    """Give a plan's final response: kept by the response stream once, republished as an event once.

    ``notify`` is a subject where a client waits for it, told beside the stream, or empty.
    """

    topic: str
    correlation_id: str
    event_type: str
    payload: bytes
    message_id: str
    content_type: str
    notify: str = ""
    trace: str = ""
    """As of :class:`Publish`."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Deliver an event to a plan at a time; a timer of the same name is replaced."""

    plan: str
    name: str
    due: float
    """Seconds since the epoch, UTC."""
    payload: bytes
    content_type: str
    trace: str = ""
    """As of :class:`Publish`: the trace of the turn that set the timer."""


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer that may not be due yet."""

    plan: str
    name: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back a request that nobody has done yet: this one, by its place in the stream of requests."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SealHistory:
    """Put away a part of a plan's timeline that the checkpoint no longer carries."""

    plan: str
    first_revision: int
    """The revision of the part's first entry."""
    payload: bytes
    """The entries as in ``Checkpoint.timeline``: a packed list of bytes."""


@dataclass(frozen=True, slots=True)
class NoteAlias:
    """Let events of a further correlation id find the plan."""

    correlation_id: str
    plan: str
    """The plan's own correlation id."""


@dataclass(frozen=True, slots=True)
class DropAlias:
    """Let events of a further correlation id find the plan no longer, unless it is noted anew, or another plan's."""

    correlation_id: str
    plan: str
    """The plan's own correlation id."""
    before: float
    """What was noted at this time or later stays, seconds since the epoch, UTC."""


Effect = Publish | Respond | SetTimer | CancelTimer | Withdraw | SealHistory | NoteAlias | DropAlias

_KINDS: dict[str, Callable[..., Effect]] = {
    "publish": Publish,
    "respond": Respond,
    "set_timer": SetTimer,
    "cancel_timer": CancelTimer,
    "withdraw": Withdraw,
    "seal_history": SealHistory,
    "note_alias": NoteAlias,
    "drop_alias": DropAlias,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TRACED = frozenset({Publish, Respond, SetTimer})
"""Those whose last field is their trace."""


def effect_kind(effect: Effect) -> str:
    """The name of an effect's kind, as in timelines."""
    return _NAMES[type(effect)]


def to_fields(effect: Effect) -> list[Any]:
    """An effect as a list of plain values, its kind first."""
    if type(effect) is Publish and not effect.tenant and not effect.trace:  # as earlier versions write and read it
        return ["publish", effect.subject, effect.payload, effect.message_id, effect.content_type]
    fields = [_NAMES[type(effect)], *(getattr(effect, name) for name in effect.__slots__)]
    if type(effect) in _TRACED and not fields[-1]:
        fields.pop()  # the same
    return fields


def from_fields(fields: list[Any]) -> Effect:
    """The effect that :func:`to_fields` made a list of.

    Raises:
        InvalidEnvelope: it is no effect that this version knows.
    """
    try:
        return _KINDS[fields[0]](*fields[1:])
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidEnvelope("no effect that this version knows") from error
