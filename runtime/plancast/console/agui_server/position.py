"""Position: the place of an event in a run, which a client that has lost its connection gives back."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, Self

from plancast.client.changes import Cursor

Part = Literal["", "b", "t", "n", "e", "end"]
"""Only the first events were sent: of the run's beginning, of the turn, of the report, or of the run's end."""
_PARTS: Final[dict[str, Part]] = {"": "", "b": "b", "t": "t", "n": "n", "e": "e", "end": "end"}
_TEXT: Final = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,16}))?(?:\.([0-9]{1,16}))?(?:-(?:(end)|([btne])([0-9]{1,6})))?")


class Position(NamedTuple):
    """All events up to a change were sent, of that change itself maybe only the first ones.

    As text it is ``REVISION[.NOTE[.BASE]][-PART]``, such as ``12``, ``12.345`` or ``12.345.340-n1``.
    """

    revision: int = 0
    """The last turn."""
    note: int = 0
    """Sequence of the last report."""
    base: int = 0
    """Sequence of the last report before the last turn that was sent whole."""
    part: Part = ""
    sent: int = 0
    """Number of these events."""

    def __str__(self) -> str:
        numbers = str(self.revision)
        if self.note:
            numbers += f".{self.note}"
            if self.base != self.note:
                numbers += f".{self.base}"
        count = "" if self.part in ("", "end") else str(self.sent)
        return f"{numbers}-{self.part}{count}" if self.part else numbers

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the id of an event.

        Raises:
            ValueError: it is none.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not the id of an event: it is like '12', '12.345' or '12.345.340-n1'")
        revision, note, base, end, part, sent = found.groups()
        last = int(note or 0)
        before = last if base is None else int(base)
        if before > last:
            raise ValueError(f"{text[:80]!r} is not the id of an event: report {before} is not before {last}")
        return cls(int(revision), last, before, _PARTS[end or part or ""], int(sent or 0))

    @property
    def cursor(self) -> Cursor:
        """The place in the plan's changes."""
        return Cursor(self.revision, self.note)
