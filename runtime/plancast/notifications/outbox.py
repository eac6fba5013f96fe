"""Outbox: notifications that are to be delivered, and those that were, stored with the deployment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from plancast.notifications.notice import Notice
from plancast_bus.errors import CommitConflict
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.registry import Registry

PENDING: Final = "notification"
"""Kind of the registrations of notifications that are to be delivered."""
SETTLED: Final = "notified"
"""Kind of the marks of those that were delivered or given up."""
SETTLED_SECONDS: Final = 90 * 86_400.0
"""Seconds for which a mark is stored. A plan that still has the cause then is notified again."""
PENDING_SECONDS: Final = 30 * 86_400.0


@dataclass(frozen=True)
class Entry:
    """A notification to one target."""

    app: str
    target: str
    """Id of the target."""
    notice: Notice
    created: float
    """When the cause was found, seconds since the epoch."""
    due: float
    """When it is to be tried next; a process that tries it moves this on first."""
    attempts: int = 0
    reason: str = ""
    """Why the last attempt has failed."""

    @property
    def id(self) -> str:
        """The same for one cause and target: receivers know a repetition by it."""
        return sha256(f"{self.app}\0{self.target}\0{self.notice.id}".encode()).hexdigest()[:32]

    def to_fields(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("app", "target", "created", "due", "attempts", "reason")}
        return fields | {"notice": self.notice.to_fields()}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Entry:
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        about = {name: fields["notice"][name] for name in Notice.__dataclass_fields__ if name in fields["notice"]}
        return cls(**known | {"notice": Notice(**about)})


class Outbox:
    """The notifications of an app. Every change compares and sets, so that several processes may make them."""

    def __init__(self, registry: Registry, app: str) -> None:
        self._registry = registry
        self._app = app

    async def add(self, entry: Entry) -> Entry | None:
        """Add a notification, and return it as it is stored; None if it was delivered or given up already."""
        while await self._registry.get(SETTLED, entry.id) is None:
            stored, version = await self._registry.read(PENDING, entry.id)
            if stored:
                return Entry.read(unpack(stored))
            try:
                await self._registry.replace(PENDING, entry.id, pack(entry.to_fields()), version, PENDING_SECONDS)
            except CommitConflict:
                continue  # another process has added it, or what was removed has expired
            return entry
        return None

    async def pending(self) -> list[Entry]:
        """The notifications that are to be delivered."""
        stored = await self._registry.list(PENDING)
        return [Entry.read(each) for each in stored.values() if each.get("app") == self._app]

    async def move(self, entry: Entry, due: float, *, attempt: bool = False, reason: str = "") -> Entry | None:
        """Change when a notification is due; None if another process has changed or delivered it.

        Args:
            entry: The notification, as it was read.
            due: The time.
            attempt: It is about to be tried: until then nobody else tries it.
            reason: Why it has failed.
        """
        stored, version = await self._registry.read(PENDING, entry.id)
        if not stored or Entry.read(unpack(stored)) != entry:
            return None
        if attempt and await self._registry.get(SETTLED, entry.id) is not None:
            await self._registry.delete(PENDING, entry.id)  # its process died between the two
            return None
        moved = replace(entry, due=due, attempts=entry.attempts + attempt, reason=reason or entry.reason)
        try:
            await self._registry.replace(PENDING, entry.id, pack(moved.to_fields()), version, PENDING_SECONDS)
        except CommitConflict:
            return None
        return moved

    async def settle(self, entry: Entry) -> None:
        """Mark a notification as delivered or given up, and remove it."""
        mark = {"created": entry.created, "attempts": entry.attempts}
        await self._registry.put(SETTLED, entry.id, mark, ttl=SETTLED_SECONDS)
        await self._registry.delete(PENDING, entry.id)
