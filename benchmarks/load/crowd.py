"""Keeps a constant number of plans that a model decides; each plan that ends is replaced by a new one.

A separate process drives them, so that its work does not add to the latency of other plans.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

import uvloop

from benchmarks.apps import w4
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.load.submitting import publication
from benchmarks.systems.ending import die_with_parent
from plancast.settings import Settings
from plancast_bus.events.codec import load
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish

CHUNK = 100
"""Goals per emission."""
START_SECONDS = 30.0


class Crowd:
    """Plans of W4 that another process submits."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self.pid = pid
        self._pipe = pipe

    async def ended(self, since: float = 0.0) -> int:
        """Return the number of plans that have ended since a time of the monotonic clock."""
        count: int = await self._ask("ended", since)
        return count

    async def between(self, begin: float, end: float) -> list[float]:
        """Return the latencies, in seconds, of plans that ended within an interval of the monotonic clock."""
        found: list[float] = await self._ask("between", begin, end)
        return found

    async def disperse(self, timeout: float) -> int:
        """Stop submitting, and wait for the running plans; return how many there were.

        Raises:
            BenchmarkFailed: a plan did not complete, or completed twice.
        """
        count: int = await self._ask("disperse", timeout)
        return count

    async def _ask(self, *words: Any) -> Any:
        self._pipe.send(words)
        found = await asyncio.to_thread(self._pipe.recv)
        if isinstance(found, str):
            raise BenchmarkFailed(found)
        return found


@asynccontextmanager
async def crowd(settings: Settings, size: int) -> AsyncIterator[Crowd]:
    """Keep ``size`` plans running until the context exits."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_drive, args=(theirs, settings, size), daemon=True)
    process.start()
    try:
        if not await asyncio.to_thread(pipe.poll, START_SECONDS) or pipe.recv() != "ready":
            raise RuntimeError("the driver of the crowd did not start")
        yield Crowd(pipe, process.pid or 0)
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


def _drive(pipe: Connection, settings: Settings, size: int) -> None:
    die_with_parent()
    uvloop.run(_serve(pipe, settings, size))


async def _serve(pipe: Connection, settings: Settings, size: int) -> None:
    bus = await connect(settings.nats, settings.bus)
    plans = Plans(bus, size)
    await plans.open()
    pipe.send("ready")
    while True:
        try:
            ask, *about = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        match ask:
            case "ended":
                pipe.send(plans.ended(*about))
            case "between":
                pipe.send(plans.between(*about))
            case _:
                pipe.send(await plans.disperse(*about))


class Plans:
    """The plans of a crowd, driven in its own process.

    Args:
        bus: A connection; the caller closes it.
        size: Number of concurrent plans.
    """

    def __init__(self, bus: Bus, size: int) -> None:
        self._bus = bus
        self._size = size
        self._ended: list[tuple[float, float]] = []
        """End on the monotonic clock and latency in seconds, for each ended plan."""
        self._started: dict[str, float] = {}
        self._to_submit: asyncio.Queue[None] = asyncio.Queue()
        self._submitted = 0
        self._statuses: Counter[str] = Counter()
        self._unknown = 0
        self._closing = False

    async def open(self) -> None:
        """Submit the first plans; each that ends triggers the next."""
        prefix = self._bus.subjects.prefix
        await self._bus.subscribe(f"{prefix}.action-results.*.{w4.RESPONSE}", self._responded)
        for _ in range(self._size):
            self._to_submit.put_nowait(None)
        self._pump = asyncio.create_task(self._submit())

    async def close(self) -> None:
        """Stop submitting, without waiting for running plans."""
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def disperse(self, timeout: float) -> int | str:
        """Stop submitting, and wait for the running plans; return their number, or an error message."""
        self._closing = True
        deadline = time.monotonic() + timeout
        while self._started and time.monotonic() < deadline:  # noqa: ASYNC110 - after the clock has stopped
            await asyncio.sleep(0.05)
        completed = self._statuses["completed"]
        if self._started or completed != len(self._ended) or self._unknown:
            return (
                f"of {self._submitted} plans {completed} completed and {len(self._started)} have not ended; "
                f"{self._unknown} final responses were duplicates; statuses: {dict(self._statuses)}"
            )
        return completed

    def ended(self, since: float) -> int:
        """Return the number of plans that have ended; see :meth:`Crowd.ended`."""
        return sum(at >= since for at, _ in self._ended)

    def between(self, begin: float, end: float) -> list[float]:
        """Return the latencies of plans; see :meth:`Crowd.between`."""
        return [taken for at, taken in self._ended if begin <= at < end]

    async def _submit(self) -> None:
        while True:
            await self._to_submit.get()
            count = 1
            while count < CHUNK and not self._to_submit.empty():
                self._to_submit.get_nowait()
                count += 1
            if not self._closing:
                await self._bus.emit([self._goal() for _ in range(count)])

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
        effect = publication(self._bus, event)
        self._started[plan] = time.monotonic()
        return effect

    async def _responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        now = time.monotonic()
        started = self._started.pop(subject.split(".", 3)[2], None)
        if started is None:
            self._unknown += 1
            return
        self._ended.append((now, now - started))
        self._statuses[load(payload, content_type)["data"]["status"]] += 1
        if not self._closing:
            self._to_submit.put_nowait(None)
