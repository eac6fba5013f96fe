"""Effects: the side effects of a turn, ready to be sent.

A checkpoint holds the effects of its turn (its outbox). They are sent once the checkpoint is durable, and sent again
when the outcome is unknown: every effect is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plancast_bus.errors import InvalidEnvelope


# The two most frequent effects are not frozen, which would cost five times as much.
@dataclass(slots=True, unsafe_hash=True)
class Publish:
    """Publish an event. The stream deduplicates by ``message_id``."""

    subject: str
    payload: bytes
    message_id: str
    content_type: str
    tenant: str = ""
    """Tenant of a goal as a subject token; see ``Delivery.tenant``."""
    trace: str = ""
    """Trace context; see :mod:`plancast_bus.events.trace_context`."""


@dataclass(slots=True, unsafe_hash=True)
class Respond:
    """Send a plan's final response: the response stream stores it once and republishes it as an event.

    ``notify`` is the inbox of a waiting client, or empty.
    """

    topic: str
    correlation_id: str
    event_type: str
    payload: bytes
    message_id: str
    content_type: str
    notify: str = ""
    trace: str = ""
    """Trace context."""


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
    """Trace context of the turn that set the timer."""


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer if it is not yet due."""

    plan: str
    name: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove a request that is not yet processed, by its sequence in the stream of requests.

    The workers of its task type are notified, at most once: one of them may be executing it.
    """

    sequence: int
    task: str = ""
    """Its task type; empty in effects of earlier versions, which notify no worker."""
    settles: bool = False
    """A copy takes its place in the stream before, if its task type has a consumer there: the effect of the task may be
    recorded, and its worker settles what was begun."""


@dataclass(frozen=True, slots=True)
class SealHistory:
    """Store a part of a plan's timeline that the checkpoint no longer contains."""

    plan: str
    first_revision: int
    """Revision of the first entry."""
    payload: bytes
    """The entries as in ``Checkpoint.timeline``: by :func:`plancast_bus.ports.checkpoints.sealed_part`."""


@dataclass(frozen=True, slots=True)
class NoteAlias:
    """Route events of a further correlation id to the plan."""

    correlation_id: str
    plan: str
    """The plan's own correlation id."""


@dataclass(frozen=True, slots=True)
class DropAlias:
    """Stop routing a further correlation id to the plan, unless it was noted again or for another plan."""

    correlation_id: str
    plan: str
    """The plan's own correlation id."""
    before: float
    """Aliases noted at or after this time stay, seconds since the epoch, UTC."""


@dataclass(frozen=True, slots=True)
class Share:
    """Share values with the later plans of a session; the first effect of its turn.

    It is not emitted with the others but merged before them (:class:`plancast_bus.ports.sessions.Sessions`), by the
    version of the turn's commit: a plan that has seen the final response of this one finds them.
    """

    session: str
    """Name of the session; see :func:`plancast_bus.ports.sessions.session_name`."""
    values: bytes
    """The values by name, msgpack."""


Effect = Publish | Respond | SetTimer | CancelTimer | Withdraw | SealHistory | NoteAlias | DropAlias | Share

_KINDS: dict[str, Callable[..., Effect]] = {
    "publish": Publish,
    "respond": Respond,
    "set_timer": SetTimer,
    "cancel_timer": CancelTimer,
    "withdraw": Withdraw,
    "seal_history": SealHistory,
    "note_alias": NoteAlias,
    "drop_alias": DropAlias,
    "share": Share,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_OMITTED = frozenset({Publish, Respond, SetTimer, Withdraw})
"""Effects whose last field is omitted where it is empty."""


def copy_id(withdrawal: Withdraw) -> str:
    """Id of the copy of a withdrawn request, by which its stream deduplicates."""
    return f"withdrawn:{withdrawal.sequence}"


def effect_kind(effect: Effect) -> str:
    """Return the name of an effect's kind, as in timelines."""
    return _NAMES[type(effect)]


def to_fields(effect: Effect) -> list[Any]:
    """Convert an effect to a list of plain values, its kind first; empty trailing fields are omitted."""
    if type(effect) is Publish and not effect.tenant and not effect.trace:
        return ["publish", effect.subject, effect.payload, effect.message_id, effect.content_type]
    fields = [_NAMES[type(effect)], *(getattr(effect, name) for name in effect.__slots__)]
    if type(effect) in _OMITTED and not fields[-1]:
        fields.pop()
    return fields


def from_fields(fields: list[Any]) -> Effect:
    """Build an effect from a list of :func:`to_fields`.

    Raises:
        InvalidEnvelope: this version does not know the effect.
    """
    try:
        return _KINDS[fields[0]](*fields[1:])
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidEnvelope("not an effect that this version knows") from error
