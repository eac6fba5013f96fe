"""Registrations in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plancast_bus.clock import Clock
from plancast_bus.events.codec import pack, unpack

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class RegistrationTable:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds: dict[str, dict[str, tuple[bytes, float]]] = {}

    def put(self, kind: str, key: str, value: dict[str, Any], ttl: float | None) -> None:
        until = float("inf") if ttl is None else self._clock.time() + ttl
        self._kinds.setdefault(kind, {})[key] = (pack(value), until)

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        now = self._clock.time()
        valid = {key: each for key, each in self._kinds.get(kind, {}).items() if each[1] > now}
        self._kinds[kind] = valid
        return {key: unpack(value) for key, (value, _) in valid.items()}

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        value, until = self._kinds.get(kind, {}).get(key, (b"", 0.0))
        if until <= self._clock.time():
            return None
        fields: dict[str, Any] = unpack(value)
        return fields

    def delete(self, kind: str, key: str) -> None:
        self._kinds.get(kind, {}).pop(key, None)


class MemoryRegistry:
    """The registrations as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        self._bus.subjects.registry(kind, key)  # checks the key
        (await self._table()).put(kind, key, value, ttl)

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        return (await self._table()).get(kind, key)

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        return (await self._table()).all(kind)

    async def delete(self, kind: str, key: str) -> None:
        (await self._table()).delete(kind, key)

    async def _table(self) -> RegistrationTable:
        await self._bus.turn()
        return self._bus.world.registrations
