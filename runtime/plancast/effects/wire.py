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
    """``done``, ``failed``, ``unknown`` or ``undone``."""
    undo: bool = False
    """True if its worker can undo it."""
    event_type: str = ""
    """Type of the task: a plan that no longer waits for the answer does not know it."""
    waits_for: str = ""
    """Id of the request of another task of the key, which the task waits for: that one's outcome is not known."""
    owner: str = ""
    """Plan of that request, where it is another one."""
    attempt: int = 0
    """Number of its last attempt, from 1: decisions are about the end of this one; 0 where it is not said."""

    def metadata(self) -> dict[str, Any]:
        """The note, as metadata of an answer."""
        return {NOTE: self._asdict()}


def read_note(metadata: Mapping[str, Any] | None) -> EffectNote | None:
    """Read the note of an answer; None when it has none, or one that is no note."""
    fields = (metadata or {}).get(NOTE)
    if not isinstance(fields, Mapping):
        return None
    texts = [fields.get(name) for name in ("address", "key", "outcome")]
    if not all(map(_is_text, texts)):
        return None
    address, key, outcome = map(str, texts)
    others = (fields.get(name) for name in ("event_type", "waits_for", "owner"))
    event_type, waits_for, owner = (str(each) if _is_text(each) else "" for each in others)
    attempt = attempt_in(fields)
    return EffectNote(address, key, outcome, fields.get("undo") is True, event_type, waits_for, owner, attempt)


def attempt_in(fields: Mapping[str, Any]) -> int:
    """The number of an attempt in a note or a decision; 0 when there is none."""
    attempt = fields.get("attempt")
    return attempt if type(attempt) is int and attempt > 0 else 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST
