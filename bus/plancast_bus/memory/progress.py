"""Progress notes in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.ports.progress import KEPT_NOTES, ProgressNote

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class ProgressTable:
    """The progress notes of a world, by subject."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._notes: defaultdict[str, deque[ProgressNote]] = defaultdict(lambda: deque(maxlen=KEPT_NOTES))
        self._followers: set[asyncio.Event] = set()

    def put(self, subject: str, payload: bytes) -> None:
        self._last += 1
        self._notes[subject].append(ProgressNote(self._last, self._clock.time(), payload))
        for follower in self._followers:
            follower.set()

    def after(self, subject: str, sequence: int) -> list[ProgressNote]:
        return [note for note in self._notes.get(subject, ()) if note.sequence > sequence]

    def add(self, follower: asyncio.Event) -> None:
        self._followers.add(follower)

    def remove(self, follower: asyncio.Event) -> None:
        self._followers.discard(follower)


class MemoryProgress:
    """A connection's view of the progress notes."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def put(self, plan_id: str, payload: bytes) -> None:
        if not self._bus.closed:
            self._bus.world.progress.put(self._bus.subjects.progress(plan_id), payload)

    async def kept(self, plan_id: str, *, after: int = 0) -> list[ProgressNote]:
        await self._bus.turn()
        return self._bus.world.progress.after(self._bus.subjects.progress(plan_id), after)

    async def follow(self, plan_id: str, *, after: int = 0) -> AsyncGenerator[ProgressNote]:
        table, more = self._bus.world.progress, asyncio.Event()
        table.add(more)
        try:
            while True:
                more.clear()
                for note in await self.kept(plan_id, after=after):
                    after = note.sequence
                    yield note
                await more.wait()
        finally:
            table.remove(more)
