"""The crowd: always the same number of plans that a model decides. Each one that ends is followed by a new one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import TracebackType
from typing import Self
from uuid import uuid4

from benchmarks import w4
from benchmarks.driver import BenchmarkFailed
from plancast_bus.codec import load
from plancast_bus.contracts import Bus, Subscription
from plancast_bus.effects import Publish
from plancast_bus.envelope import EventEnvelope, EventTopic

CHUNK = 100
"""Goals in one emission."""


class Crowd:
    """Plans of W4, until the context is left.

    Args:
        bus: A connection; whoever made it closes it.
        size: How many plans there are at a time.
    """

    def __init__(self, bus: Bus, size: int) -> None:
        self.ended: list[tuple[float, float]] = []
        """Of each plan that has ended: when (of a monotonic clock), and after how many seconds."""
        self._bus = bus
        self._size = size
        self._started: dict[str, float] = {}
        self._to_submit: asyncio.Queue[None] = asyncio.Queue()
        self._submitted = 0
        self._statuses: Counter[str] = Counter()
        self._unknown = 0
        self._closing = False
        self._subscription: Subscription | None = None
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        prefix = self._bus.subjects.prefix
        self._subscription = await self._bus.subscribe(f"{prefix}.action-results.*.{w4.RESPONSE}", self._responded)
        for _ in range(self._size):
            self._to_submit.put_nowait(None)
        self._pump = asyncio.create_task(self._submit())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.close()

    async def disperse(self, timeout: float) -> None:
        """Submit no more, and wait for those that are there.

        Raises:
            BenchmarkFailed: a plan did not complete, or completed twice.
        """
        self._closing = True
        deadline = time.monotonic() + timeout
        while self._started and time.monotonic() < deadline:  # noqa: ASYNC110 - after the clock has stopped
            await asyncio.sleep(0.05)
        completed = self._statuses["completed"]
        if self._started or completed != len(self.ended) or self._unknown:
            raise BenchmarkFailed(
                f"of {self._submitted} plans {completed} completed and {len(self._started)} have not ended; "
                f"{self._unknown} final responses came twice; statuses: {dict(self._statuses)}"
            )

    def between(self, begin: float, end: float) -> list[float]:
        """Seconds that the plans took which ended within a span of time."""
        return [taken for at, taken in self.ended if begin <= at < end]

    async def _submit(self) -> None:
        while True:
            await self._to_submit.get()
            count = 1
            while count < CHUNK and not self._to_submit.empty():
                self._to_submit.get_nowait()
                count += 1
            if self._closing:
                continue
            goals = [self._goal() for _ in range(count)]
            await self._bus.emit(goals)

    def _goal(self) -> Publish:
        plan = uuid4().hex
        self._submitted += 1
        event = EventEnvelope(
            id=plan,
            source="bench",
            type=w4.GOAL,
            topic=EventTopic.ACTION_REQUESTS,
            data={"n": self._submitted, "manner": w4.ASKS_FIRST if self._submitted % 2 else "at once"},
            correlation_id=plan,
        )
        payload, content_type = self._bus.encode(event)
        self._started[plan] = time.monotonic()
        return Publish(self._bus.subjects.event(event.topic, plan, event.type), payload, event.id, content_type)

    async def _responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        now = time.monotonic()
        started = self._started.pop(subject.split(".", 3)[2], None)
        if started is None:
            self._unknown += 1
            return
        self.ended.append((now, now - started))
        self._statuses[load(payload, content_type)["data"]["status"]] += 1
        if not self._closing:
            self._to_submit.put_nowait(None)
