"""The store of schedules: one message each, replaced by compare-and-set and followed by every dispatcher."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol


class ScheduleKey(NamedTuple):
    """The name of a schedule among those of a deployment."""

    tenant: str
    """Empty without a tenant."""
    name: str


class StoredSchedule(NamedTuple):
    """A version of a schedule."""

    key: ScheduleKey
    value: bytes
    """Empty once it is deleted."""
    version: int


class ScheduleStore(Protocol):
    """Schedules, each with its definition and state as one value."""

    async def read(self, key: ScheduleKey) -> StoredSchedule:
        """Return the newest version.

        Without a schedule the value is empty; the version may be that of a deletion, else it is 0.

        Raises:
            AccessDenied: this login may not read schedules.
            BusUnavailable: the store cannot be reached.
        """
        ...

    async def replace(self, key: ScheduleKey, value: bytes, version: int, *, ttl: float | None = None) -> int:
        """Replace a version (0: none) durably, and return the new version; it expires after ``ttl`` seconds.

        Raises:
            CommitConflict: another version is stored.
            PayloadTooLarge: the value is larger than a message may be.
            AccessDenied: this login may not write schedules.
            BusUnavailable: the outcome is unknown.
        """
        ...

    async def delete(self, key: ScheduleKey) -> None:
        """Delete a schedule, if it is there.

        Raises:
            AccessDenied: this login may not write schedules.
            BusUnavailable: the outcome is unknown.
        """
        ...

    async def list(self) -> list[StoredSchedule]:
        """Return all schedules."""
        ...

    def watch(self) -> AsyncGenerator[StoredSchedule]:
        """Yield the newest version of every schedule, then further versions and deletions, also after reconnects.

        Raises:
            BusUnavailable: the connection was closed, or the store cannot be reached now.
        """
        ...
