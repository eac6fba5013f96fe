"""The registry, the port of a store of small values with a lifetime."""

from __future__ import annotations

from typing import Any, Protocol


class Registry(Protocol):
    """Registrations with a lifetime: apps, agents, events."""

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        """Register; the registration expires ``ttl`` seconds after its last put."""
        ...

    async def get(self, kind: str, key: str) -> dict[str, Any] | None: ...

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return all registrations of a kind, by key."""
        ...

    async def delete(self, kind: str, key: str) -> None: ...

    async def read(self, kind: str, key: str) -> tuple[bytes, int]:
        """Return the bytes of a registration made by :meth:`replace`, and their version.

        Without a registration there are no bytes; the version may be that of one that was removed, else it is 0.

        Raises:
            BusUnavailable: the store cannot be reached.
        """
        ...

    async def replace(self, kind: str, key: str, value: bytes, version: int, ttl: float | None) -> int:
        """Replace a version of a registration (0: none), durably, and return the new version.

        Raises:
            CommitConflict: another version is stored.
            BusUnavailable: the outcome is unknown.
        """
        ...
