"""Schedules in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.errors import CommitConflict
from plancast_bus.ports.schedules import ScheduleKey, StoredSchedule

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class ScheduleTable:
    """The schedules of a world, with the newest version of each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._versions: dict[ScheduleKey, tuple[StoredSchedule, float]] = {}
        """With the times at which they expire."""
        self._last = 0
        self._waiting: set[asyncio.Event] = set()

    def put(self, key: ScheduleKey, value: bytes, ttl: float | None = None) -> int:
        self._last += 1
        until = float("inf") if ttl is None else self._clock.time() + ttl
        self._versions.pop(key, None)  # the newest is the last
        self._versions[key] = StoredSchedule(key, value, self._last), until
        for each in self._waiting:
            each.set()
        return self._last

    def find(self, key: ScheduleKey) -> StoredSchedule:
        found, until = self._versions.get(key, (StoredSchedule(key, b"", 0), 0.0))
        return found if until > self._clock.time() else StoredSchedule(key, b"", 0)

    def after(self, version: int) -> list[StoredSchedule]:
        now = self._clock.time()
        return [each for each, until in self._versions.values() if each.version > version and until > now]

    async def changed(self, version: int) -> None:
        """Wait for a version after this one."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while self._last <= version:
                event.clear()
                await event.wait()
        finally:
            self._waiting.discard(event)


class MemorySchedules:
    """The schedules as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._table = bus.world.schedules

    async def read(self, key: ScheduleKey) -> StoredSchedule:
        self._bus.subjects.schedule(*key)  # checks the name
        await self._bus.turn()
        return self._table.find(key)

    async def replace(self, key: ScheduleKey, value: bytes, version: int, *, ttl: float | None = None) -> int:
        subject = self._bus.subjects.schedule(*key)
        await self._bus.turn()
        await self._bus.point("publish.before", subject)
        self._bus.check_open()
        self._bus.world.check_size(value)
        stored = self._table.find(key).version
        if stored != version:
            raise CommitConflict(f"the schedule {key.name} has version {stored}, not {version}")
        new = self._table.put(key, value, ttl)
        await self._bus.point("publish.after", subject)
        return new

    async def delete(self, key: ScheduleKey) -> None:
        self._bus.subjects.schedule(*key)
        await self._bus.turn()
        self._table.put(key, b"")

    async def list(self) -> list[StoredSchedule]:
        await self._bus.turn()
        return [each for each in self._table.after(0) if each.value]

    async def watch(self) -> AsyncGenerator[StoredSchedule]:
        version = 0
        while True:
            await self._bus.turn()
            for each in self._table.after(version):
                version = each.version
                yield each
            await self._table.changed(version)
