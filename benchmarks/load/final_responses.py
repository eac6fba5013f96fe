"""Collects the final responses of plans, and decodes them after the clock has stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from benchmarks.load.outcome import BenchmarkFailed
from plancast_bus.events.codec import load
from plancast_bus.ports.bus import Bus, Subscription


class FinalResponses:
    """The first final response of each plan of a round. Open it, run rounds, close it.

    Args:
        bus: A connection; the caller closes it.
        event_type: Type of the responses.
    """

    def __init__(self, bus: Bus, event_type: str) -> None:
        self._bus = bus
        self._event_type = event_type
        self._subscription: Subscription | None = None
        self.ends: dict[str, float] = {}
        """When each plan's response came, by ``time.perf_counter``."""
        self._payloads: list[tuple[bytes, str | None]] = []
        self._repeated = 0
        self._awaited: set[str] = set()
        self._complete = asyncio.Event()

    async def open(self) -> None:
        """Subscribe."""
        subject = f"{self._bus.subjects.prefix}.action-results.*.{self._event_type}"
        self._subscription = await self._bus.subscribe(subject, self._responded)

    async def close(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None:
            await self._subscription.close()

    def begin(self, plans: Iterable[str]) -> None:
        """Begin a round of these plans; responses of others are ignored."""
        self._awaited, self._repeated = set(plans), 0
        self.ends.clear()
        self._payloads.clear()
        self._complete.clear()

    def add(self, plan: str) -> None:
        """Add a plan to the round."""
        self._awaited.add(plan)
        self._complete.clear()

    async def wait(self) -> None:
        """Wait for the responses of all plans of the round."""
        await self._complete.wait()

    def check(self) -> None:
        """Check the round.

        Raises:
            BenchmarkFailed: a plan did not complete, or completed twice.
        """
        statuses = [load(payload, content_type)["data"]["status"] for payload, content_type in self._payloads]
        completed, count = statuses.count("completed"), len(self._awaited)
        if completed != count or self._repeated:
            raise BenchmarkFailed(
                f"{completed} of {count} plans completed, {self._repeated} final responses were duplicates"
            )

    async def _responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        now = time.perf_counter()
        plan = subject.split(".", 3)[2]
        if plan not in self._awaited:
            return
        if plan in self.ends:
            self._repeated += 1
            return
        self.ends[plan] = now
        self._payloads.append((payload, content_type))
        if len(self.ends) == len(self._awaited):
            self._complete.set()
