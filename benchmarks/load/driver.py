"""Submits goals and waits for final responses, in the same way for every system.

Goals are encoded before the clock starts, and published by a bounded number of concurrent emissions. Final responses
arrive on one core subscription to the events that the server republishes; they are decoded
after the clock has stopped. So the driver costs little beside the measured system. With a client
(``--client``) goals go through :class:`plancast.Client` instead, and results through its handles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from uuid import uuid4

from benchmarks.apps import w1
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.load.submitting import publication, submit
from benchmarks.systems.script import W1, Words, goal
from plancast import Client
from plancast_bus.events.codec import load
from plancast_bus.ports.bus import Bus, Subscription
from plancast_bus.ports.effects import Publish

CLIENT_SUBMITS = 500
"""Concurrent submits of a client."""


class Driver:
    """Drives plans through a bus. Open it, run rounds, close it.

    Args:
        bus: A connection; the caller closes it.
        timeout: Seconds that a round may take.
        words: Event types of the workload.
    """

    def __init__(self, bus: Bus, timeout: float, words: Words = W1) -> None:
        self._bus = bus
        self._words = words
        self._timeout = timeout
        self._subscription: Subscription | None = None
        self._started: dict[str, float] = {}
        self._latencies: dict[str, float] = {}
        self._responses: list[tuple[bytes, str | None]] = []
        self._repeated = 0
        self._last = 0.0
        self._awaited = 0
        self._complete = asyncio.Event()

    async def open(self) -> None:
        """Subscribe to final responses."""
        subject = f"{self._bus.subjects.prefix}.action-results.*.{self._words.response}"
        self._subscription = await self._bus.subscribe(subject, self._responded)

    async def close(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None:
            await self._subscription.close()

    async def together(self, count: int) -> Outcome:
        """Submit ``count`` plans as fast as possible, and wait for all."""
        goals = [self._goal(number) for number in range(count)]
        self._begin(count)
        first = time.perf_counter()
        async with asyncio.timeout(self._timeout):
            await submit(self._bus, goals, self._note)
            await self._complete.wait()
        self._check(count)
        return Outcome(self._last - first, list(self._latencies.values()))

    async def alone(self, count: int, sent: Callable[[Sequence[Publish]], None] = lambda goals: None) -> Outcome:
        """Submit ``count`` plans one after the other, each when the previous one has ended.

        ``sent`` is called with each goal just before it is sent.
        """
        goals = [self._goal(number) for number in range(count)]
        outcome = Outcome(0.0)
        for each in goals:
            self._begin(1)
            async with asyncio.timeout(self._timeout):
                sent([each])
                await submit(self._bus, [each], self._note)
                await self._complete.wait()
            self._check(1)
            outcome.latencies.extend(self._latencies.values())
        outcome.seconds = sum(outcome.latencies)
        return outcome

    def _goal(self, number: int) -> Publish:
        return publication(self._bus, goal(uuid4().hex, number, self._words.goal))

    def _note(self, goals: Iterable[Publish]) -> None:
        now = time.perf_counter()
        self._started.update((each.message_id, now) for each in goals)

    def _begin(self, count: int) -> None:
        self._started.clear()
        self._latencies.clear()
        self._responses.clear()
        self._awaited, self._repeated = count, 0
        self._complete.clear()

    async def _responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        now = time.perf_counter()
        plan = subject.split(".", 3)[2]
        started = self._started.get(plan)
        if started is None:
            return
        if plan in self._latencies:
            self._repeated += 1
            return
        self._latencies[plan] = now - started
        self._responses.append((payload, content_type))
        if len(self._latencies) == self._awaited:
            self._last = now
            self._complete.set()

    def _check(self, count: int) -> None:
        statuses = [load(payload, content_type)["data"]["status"] for payload, content_type in self._responses]
        completed = statuses.count("completed")
        if completed != count or self._repeated:
            raise BenchmarkFailed(
                f"{completed} of {count} plans completed, {self._repeated} final responses were duplicates"
            )


class ClientDriver:
    """Drives plans through :class:`plancast.Client`, like a user's program."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    async def together(self, count: int) -> Outcome:
        """Submit ``count`` plans as fast as possible, and wait for all."""
        turnstile = asyncio.Semaphore(CLIENT_SUBMITS)

        async def run(number: int) -> float:
            async with turnstile:
                started = time.perf_counter()
                handle = await self._client.submit(w1.GOAL, {"n": number})
            await handle.result()
            return time.perf_counter() - started

        first = time.perf_counter()
        async with asyncio.timeout(self._timeout):
            latencies = await asyncio.gather(*map(run, range(count)))
        return Outcome(time.perf_counter() - first, list(latencies))

    async def alone(self, count: int) -> Outcome:
        """Submit ``count`` plans one after the other, each when the previous one has ended."""
        outcome = Outcome(0.0)
        for _ in range(count):
            one = await self.together(1)
            outcome.latencies.extend(one.latencies)
            outcome.seconds += one.seconds
        return outcome
