"""Clocks: the system clock, and one that tests advance."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time that can sleep."""

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less only yields to the event loop."""
        ...


class SystemClock:
    """The system clock."""

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))


class ManualClock:
    """A clock that moves only when :meth:`advance` is called, so that tests wait hours in no time."""

    def __init__(self, start: float = 1_767_225_600.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, waking sleepers in order of their due times.

        While a sleeper runs, and possibly sleeps again, the clock shows the time that it was waiting for.
        """
        if seconds < 0:
            raise ValueError("a clock does not go back")
        target = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, woken = heapq.heappop(self._sleepers)
            if woken.done():  # its sleeper was cancelled
                continue
            self._now = max(self._now, due)
            woken.set_result(None)
            await self._settle()
        self._now = target
        await self._settle()

    async def _settle(self) -> None:
        """Let ready tasks run. A chain of awaits needs one iteration of the event loop for each link."""
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)


_SETTLE_ROUNDS = 25
