"""Submits goals and waits for final responses, in the same way for every system.

Goals are encoded before the clock starts, and published by a bounded number of concurrent emissions. Final responses
arrive on one core subscription to the events that the server republishes; they are decoded
after the clock has stopped. So the driver costs little beside the measured system. With a client
(``--client``) goals go through :class:`plancast.Client` instead, and results through its handles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from benchmarks.apps import w1
from benchmarks.load.final_responses import FinalResponses
from benchmarks.load.outcome import Outcome
from benchmarks.load.submitting import publication, submit
from benchmarks.systems.script import W1, Words, goal
from plancast import Client
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish

T = TypeVar("T")
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
        self._started: dict[str, float] = {}
        self._responses = FinalResponses(bus, words.response)

    async def open(self) -> None:
        """Subscribe to final responses."""
        await self._responses.open()

    async def close(self) -> None:
        """Unsubscribe."""
        await self._responses.close()

    async def together(self, count: int) -> Outcome:
        """Submit ``count`` plans as fast as possible, and wait for all."""
        goals = [self._goal(number) for number in range(count)]
        self._begin(goals)
        first = time.perf_counter()
        async with asyncio.timeout(self._timeout):
            await submit(self._bus, goals, self._note)
            await self._responses.wait()
        self._responses.check()
        return Outcome(max(self._responses.ends.values()) - first, self._latencies())

    async def alone(self, count: int, sent: Callable[[Sequence[Publish]], None] = lambda goals: None) -> Outcome:
        """Submit ``count`` plans one after the other, each when the previous one has ended.

        ``sent`` is called with each goal just before it is sent.
        """
        goals = [self._goal(number) for number in range(count)]
        outcome = Outcome(0.0)
        for each in goals:
            self._begin([each])
            async with asyncio.timeout(self._timeout):
                sent([each])
                await submit(self._bus, [each], self._note)
                await self._responses.wait()
            self._responses.check()
            outcome.latencies.extend(self._latencies())
        outcome.seconds = sum(outcome.latencies)
        return outcome

    async def steadily(self, per_second: float, work: Coroutine[Any, Any, T]) -> tuple[Outcome, T]:
        """Submit plans at a rate until some work is done, and wait for all; returns its result, too."""
        loop = asyncio.get_running_loop()
        self._begin([])
        first = time.perf_counter()
        task = loop.create_task(work)
        async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as submits:
            while not task.done():
                each = self._goal(len(self._started))
                self._responses.add(each.message_id)
                self._note([each])
                submits.create_task(self._bus.emit([each]))
                await asyncio.sleep(max(0.0, first + len(self._started) / per_second - time.perf_counter()))
            result = await task
        async with asyncio.timeout(self._timeout):
            await self._responses.wait()
        self._responses.check()
        return Outcome(max(self._responses.ends.values()) - first, self._latencies()), result

    def _goal(self, number: int) -> Publish:
        return publication(self._bus, goal(uuid4().hex, number, self._words.goal))

    def _note(self, goals: Iterable[Publish]) -> None:
        now = time.perf_counter()
        self._started.update((each.message_id, now) for each in goals)

    def _begin(self, goals: Iterable[Publish]) -> None:
        self._started.clear()
        self._responses.begin(each.message_id for each in goals)

    def _latencies(self) -> list[float]:
        return [end - self._started[plan] for plan, end in self._responses.ends.items()]


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
