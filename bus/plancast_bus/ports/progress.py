"""Progress notes: what running tasks of a plan report, kept for as long as somebody may look."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

KEPT_NOTES = 256
"""Notes that are kept of a plan; older ones make place."""
MAX_NOTE_BYTES = 64 * 1024
"""Largest note."""


class ProgressNote(NamedTuple):
    """A note as it was stored."""

    sequence: int
    """Grows with every note of any plan."""
    time: float
    """When it was stored, seconds since the epoch, UTC."""
    payload: bytes


class ProgressNotes(Protocol):
    """Store of progress notes, the last :data:`KEPT_NOTES` of each plan. They are not part of its history."""

    async def put(self, plan_id: str, payload: bytes) -> None:
        """Send a note, at most once: what cannot be sent now is dropped, and nobody waits for the server."""
        ...

    async def kept(self, plan_id: str, *, after: int = 0) -> list[ProgressNote]:
        """Return the notes that are kept, after a sequence, oldest first.

        Raises:
            AccessDenied: this login may not read them.
            BusUnavailable: the server does not respond.
        """
        ...

    def follow(self, plan_id: str, *, after: int = 0) -> AsyncGenerator[ProgressNote]:
        """Yield the notes that are kept, after a sequence, then further ones, until the caller stops.

        It continues after a reconnect.

        Raises:
            AccessDenied: this login may not read them.
            BusUnavailable: the connection was closed.
        """
        ...
