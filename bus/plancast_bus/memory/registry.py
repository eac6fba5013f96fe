"""Registrations in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from plancast_bus.clock import Clock
from plancast_bus.errors import CommitConflict
from plancast_bus.events.codec import pack, unpack

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class _Registered(NamedTuple):
    value: bytes
    version: int
    until: float


_ABSENT = _Registered(b"", 0, 0.0)


class RegistrationTable:
    """The registrations of a world, by kind and key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds: dict[str, dict[str, _Registered]] = {}
        self._last = 0

    def put(self, kind: str, key: str, value: bytes, ttl: float | None) -> int:
        until = self._clock.time() + ttl if ttl is not None else float("inf")
        self._last += 1
        self._kinds.setdefault(kind, {})[key] = _Registered(value, self._last, until)
        return self._last

    def find(self, kind: str, key: str) -> _Registered:
        found = self._kinds.get(kind, {}).get(key, _ABSENT)
        return found if found.until > self._clock.time() else _ABSENT

    def all(self, kind: str) -> dict[str, bytes]:
        now = self._clock.time()
        valid = {key: each for key, each in self._kinds.get(kind, {}).items() if each.until > now}
        self._kinds[kind] = valid
        return {key: each.value for key, each in valid.items()}

    def delete(self, kind: str, key: str) -> None:
        self._kinds.get(kind, {}).pop(key, None)


class MemoryRegistry:
    """The registrations as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        self._bus.subjects.registry(kind, key)  # checks the key
        (await self._table()).put(kind, key, pack(value), ttl)

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        value, version, _ = (await self._table()).find(kind, key)
        return unpack(value) if version else None

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        return {key: unpack(value) for key, value in (await self._table()).all(kind).items()}

    async def delete(self, kind: str, key: str) -> None:
        (await self._table()).delete(kind, key)

    async def read(self, kind: str, key: str) -> tuple[bytes, int]:
        value, version, _ = (await self._table()).find(kind, key)
        return value, version

    async def replace(self, kind: str, key: str, value: bytes, version: int, ttl: float | None) -> int:
        subject = self._bus.subjects.registry(kind, key)
        table = await self._table()
        await self._bus.point("publish.before", subject)
        self._bus.check_open()
        stored = table.find(kind, key).version
        if stored != version:
            raise CommitConflict(f"the {kind} {key} has version {stored}, not {version}")
        new = table.put(kind, key, value, ttl)
        await self._bus.point("publish.after", subject)
        return new

    async def _table(self) -> RegistrationTable:
        await self._bus.turn()
        return self._bus.world.registrations
