"""Fields by which workers and plans tell each other of effects, in the metadata of requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

NOTE: Final = "effect"
"""Key of an answer's metadata: the :class:`EffectNote` of its task."""
RESOLUTION: Final = "effect_resolution"
"""Key of a request's metadata: what a person has decided about an unknown effect."""
UNDO: Final = "effect_undo"
"""Key of a request's metadata: the effect that it undoes."""
_LONGEST: Final = 1_000


class EffectNote(NamedTuple):
    """Note of an answer about the effect of its task."""

    address: str
    """Key of its record in the ledger of the task type."""
    key: str
    outcome: str
    """``done``, ``failed``, ``unknown`` or ``undone``; ``withdrawn``: nothing was begun of the request, which was
    withdrawn, or another task of the plan is answered with the outcome."""
    undo: bool = False
    """True if its worker can undo it."""
    event_type: str = ""
    """Type of the task: a plan that no longer waits for the answer does not know it."""
    waits_for: str = ""
    """Id of the request of another task of the key, which the task waits for: that one's outcome is not known."""
    owner: str = ""
    """Plan to which the effect belongs, where it is another one: that one undoes it."""
    attempt: int = 0
    """Number of its last attempt, from 1: decisions are about the end of this one; 0 where it is not said."""

    def metadata(self) -> dict[str, Any]:
        """The note, as metadata of an answer."""
        return {NOTE: {name: value for name, value in zip(self._fields, self, strict=True) if value != ""}}


def read_note(metadata: Mapping[str, Any] | None) -> EffectNote | None:
    """Read the note of an answer; None when it has none, or one that is no note."""
    fields = metadata.get(NOTE) if metadata else None
    if not isinstance(fields, dict):
        return None
    address, key, outcome = _text(fields, "address"), _text(fields, "key"), _text(fields, "outcome")
    if not (address and key and outcome):
        return None
    event_type, waits_for, owner = _text(fields, "event_type"), _text(fields, "waits_for"), _text(fields, "owner")
    undo, attempt = fields.get("undo") is True, attempt_in(fields)
    return EffectNote(address, key, outcome, undo, event_type, waits_for, owner, attempt)


def attempt_in(fields: Mapping[str, Any]) -> int:
    """The number of an attempt in a note or a decision; 0 when there is none."""
    attempt = fields.get("attempt")
    return attempt if type(attempt) is int and attempt > 0 else 0


def _text(fields: Mapping[str, Any], name: str) -> str:
    """A text of limited length; empty when there is none."""
    value = fields.get(name)
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""
