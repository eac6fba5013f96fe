"""Follows plans in flight: their turns, from the stream of checkpoints, and their final responses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from benchmarks.apps import w6_app
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.load.submitting import publication, submit
from benchmarks.systems.launcher import Running
from benchmarks.systems.script import goal
from plancast_bus.events.codec import load
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.messaging.stream_reader import StreamReader
from plancast_bus.jetstream.stores.checkpoint_mac import SUMMARY
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import Publish

LOOK_SECONDS = 0.02


class Turn(NamedTuple):
    """A committed turn."""

    time: float
    """Time on the server's clock, seconds since the epoch."""
    life: str
    """Host and incarnation that committed the turn."""


class Flight:
    """Plans of W6's app, submitted together."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._started: dict[str, float] = {}
        self._statuses: Counter[str] = Counter()
        self._repeated = 0
        self.turns: defaultdict[str, list[Turn]] = defaultdict(list)
        """Turns by plan, in order."""
        self.ended: dict[str, float] = {}
        """Arrival of final responses by plan, seconds since the epoch."""

    async def submit(self, plans: Sequence[str]) -> None:
        """Submit plans with these ids, as fast as the server accepts them."""
        goals = [publication(self._bus, goal(plan, number, w6_app.GOAL)) for number, plan in enumerate(plans)]
        self._started.update(dict.fromkeys(plans, 0.0))
        await submit(self._bus, goals, self._note)

    def forget(self) -> None:
        """Discard all plans so far."""
        self._started.clear()
        self._statuses.clear()
        self.turns.clear()
        self.ended.clear()

    async def until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait until a condition holds.

        Raises:
            BenchmarkFailed: it takes longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                counts = f"{len(self.turns)} have taken a turn and {len(self.ended)} have ended"
                raise BenchmarkFailed(f"of {len(self._started)} plans {counts} within {timeout:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    def all_moved(self) -> bool:
        """Return True when each plan has taken a turn."""
        return len(self.turns) == len(self._started)

    def all_ended(self) -> bool:
        """Return True when the final response of each plan has arrived."""
        return len(self.ended) == len(self._started)

    @property
    def lost(self) -> int:
        """Return the number of plans that did not complete."""
        return len(self._started) - self._statuses["completed"]

    def check(self) -> None:
        """Check that each plan has completed exactly once.

        Raises:
            BenchmarkFailed: a plan has not.
        """
        if self.lost or self._repeated:
            raise BenchmarkFailed(f"{self.lost} plans are lost, {self._repeated} final responses were duplicates")

    def outcome(self, plans: Sequence[str]) -> Outcome:
        """Return the latencies of some plans."""
        latencies = [self.ended[plan] - self._started[plan] for plan in plans]
        return Outcome(self.last_end(plans) - min(self._started[plan] for plan in plans), latencies)

    def last_end(self, plans: Sequence[str]) -> float:
        """Return the time of the last end of some plans, seconds since the epoch."""
        return max(self.ended[plan] for plan in plans)

    def _note(self, goals: Iterable[Publish]) -> None:
        now = time.time()
        self._started.update((each.message_id, now) for each in goals)

    async def _responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        plan = subject.split(".", 3)[2]
        if plan in self.ended:
            self._repeated += 1
        elif plan in self._started:
            self.ended[plan] = time.time()
            self._statuses[load(payload, content_type)["data"]["status"]] += 1

    async def _watch(self, reader: StreamReader) -> None:
        subjects = self._bus.subjects
        watching = reader.watch(StreamNames.of(subjects.prefix).checkpoints, f"{subjects.store}.checkpoints.*")
        async with aclosing(watching):
            async for message in watching:
                plan = message.subject.rpartition(".")[2]
                if plan in self._started:
                    summary = PlanSummary.from_header(message.headers[SUMMARY])
                    checkpoint = Checkpoint.decode(plan, message.payload, summary, message.sequence)
                    self.turns[plan].append(Turn(message.time, checkpoint.epoch.rpartition("-")[0]))


@asynccontextmanager
async def flight_over(running: Running) -> AsyncIterator[Flight]:
    """Follow plans of a deployment over a connection of its own."""
    bus = await connect(running.settings.nats, running.settings.bus)
    connection = Connection(running.settings.nats)
    await connection.open()
    requester = Requester(connection)
    await requester.open()
    flight = Flight(bus)
    reader = StreamReader(connection, JetStreamApi(requester))
    responses = f"{bus.subjects.prefix}.action-results.*.{w6_app.RESPONSE}"
    subscription = await bus.subscribe(responses, flight._responded)
    watching = asyncio.create_task(flight._watch(reader))
    try:
        yield flight
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await subscription.close()
        await connection.close()
        await bus.close()
