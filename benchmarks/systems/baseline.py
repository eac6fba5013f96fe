"""The baseline: the JetStream operations of a workload, without plans.

For each plan there are the same messages, of the same sizes (recorded from a real plan, see
:mod:`benchmarks.systems.script`), with the same headers, in the same streams:

- a goal is pulled; one checkpoint is written by compare-and-set and its acknowledgement awaited; then the turn's
  requests (one in W1, ten in W2) are published and their acknowledgements awaited; then the goal is acknowledged;
- the same for each response: in W1 with the next request, in W2 with none, the last one with the final response (one
  write to the stream of responses, which the server republishes as an event, which is pulled and acknowledged too);
- an echo process pulls the requests, publishes the responses, awaits their acknowledgement, and acknowledges.

Order within a plan is kept, and different plans are pipelined, as in the product. The wire code is the
product's own (:mod:`plancast_bus.jetstream`: connection, publisher, pull consumer), on uvloop, as in Ray's actors.

It leaves out decoding and encoding of events, state machines, turns, timelines, deduplication,
in-progress signals of long turns, and Ray. Its processes remember only the last version and the number of
turns of each plan, which a compare-and-set needs.

Design choices, all in favour of the baseline:

- As many plain processes as the product has dispatchers and plan hosts together, each of them reading and writing
  its own shards: there is no hop between a reader and a writer.
- One echo process, as the product has one worker process.
- The settings of streams and server are the product's.
"""

from __future__ import annotations

import abc
import asyncio
import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Any

import uvloop

from benchmarks.systems.ending import die_with_parent
from benchmarks.systems.script import Script
from plancast_bus.clock import SystemClock
from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.messaging.consumer import PullConsumer
from plancast_bus.jetstream.messaging.publisher import Publisher, unchanged
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, SUMMARY, TTL, ttl_header
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects

MAX_OUTSTANDING = 4096
"""In-flight messages of one process; the product's dispatcher has the same limit."""
ACK_WAIT = 120.0
"""Seconds. Longer than the product's, since the baseline sends no in-progress signals for waiting messages."""
START_SECONDS = 30.0


@dataclass(frozen=True)
class Role:
    """Arguments of a process of the baseline."""

    nats: NatsSettings
    bus: BusSettings
    script: Script
    index: int = 0
    """Index among the processes that replace dispatchers and hosts."""
    count: int = 1
    """Number of these processes; each reads its share of the shards."""

    @property
    def own_shards(self) -> list[int]:
        """Return the shards of this process."""
        return list(range(self.index, self.bus.shards, self.count))


class Wire:
    """The product's connection, publisher and consumers, without the bus on top."""

    def __init__(self, connection: Connection, requester: Requester, settings: BusSettings) -> None:
        self.subjects = Subjects(settings.prefix)
        self.publisher = Publisher(requester, self.subjects, settings.group_commit)
        self._connection = connection
        self._api = JetStreamApi(requester)
        self._names = StreamNames.of(settings.prefix)

    @classmethod
    async def open(cls, role: Role) -> Wire:
        """Connect."""
        connection = Connection(role.nats)
        await connection.open()
        requester = Requester(connection)
        await requester.open()
        return cls(connection, requester, role.bus)

    def consume(self, spec: ConsumerSpec) -> PullConsumer:
        """Read a durable consumer."""
        stream = self._names.of_source(spec.source)
        return PullConsumer(self._connection, self._api, SystemClock(), stream, spec, self._names.responses)


class Reader(abc.ABC):
    """Pulls from consumers and handles each message in a task of its own, up to ``MAX_OUTSTANDING`` at once."""

    def __init__(self, consumers: Sequence[PullConsumer]) -> None:
        self._consumers = consumers
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled, or until a message cannot be handled."""
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                group.create_task(self._read(consumer, group))

    @abc.abstractmethod
    async def handle(self, delivery: Delivery) -> None:
        """Process a message before it is acknowledged."""

    async def _read(self, consumer: PullConsumer, group: asyncio.TaskGroup) -> None:
        while True:
            free = MAX_OUTSTANDING - len(self._tasks)
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            for delivery in await consumer.fetch(free):
                task = group.create_task(self._take(consumer, delivery))
                self._tasks.add(task)
                task.add_done_callback(self._taken)

    async def _take(self, consumer: PullConsumer, delivery: Delivery) -> None:
        if not delivery.is_response:
            await self.handle(delivery)
        await consumer.ack((delivery,))

    def _taken(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.set()


class Progress:
    """State of a plan; its lock serializes responses that arrive at the same time."""

    __slots__ = ("revision", "turn", "version")

    def __init__(self) -> None:
        self.revision = 0
        """Number of turns so far."""
        self.version = 0
        """Version of its checkpoint."""
        self.turn = asyncio.Lock()


class Plans(Reader):
    """Replaces dispatchers and plan hosts."""

    def __init__(self, role: Role, wire: Wire) -> None:
        subjects, shards = wire.subjects, role.own_shards
        suffix = f"{role.index}-of-{role.count}"
        filters = tuple(subjects.stored("*", shard) for shard in shards)
        goal = role.script.words.goal
        goals = tuple(subjects.stored(EventTopic.ACTION_REQUESTS, shard, "*", goal) for shard in shards)
        super().__init__(
            [
                wire.consume(ConsumerSpec(f"plans-results-{suffix}", "results", filters, ack_wait=ACK_WAIT)),
                wire.consume(ConsumerSpec(f"plans-goals-{suffix}", "requests", goals, ack_wait=ACK_WAIT)),
            ]
        )
        self._script = role.script
        self._subjects = subjects
        self._publisher = wire.publisher
        self._plans: defaultdict[str, Progress] = defaultdict(Progress)

    async def handle(self, delivery: Delivery) -> None:
        """Write the checkpoint, then send the effects."""
        plan = delivery.subject.split(".", 4)[3]
        progress = self._plans[plan]
        async with progress.turn:
            await self._take_turn(plan, progress)

    async def _take_turn(self, plan: str, progress: Progress) -> None:
        turn = self._script.turns[progress.revision]
        headers = {EXPECTED: str(progress.version), SUMMARY: turn.summary}
        if turn.expires_after > 0:
            headers[TTL] = ttl_header(turn.expires_after)
        ack = await self._publisher.publish_acked(self._subjects.checkpoint(plan), turn.checkpoint, headers)
        progress.revision += 1
        progress.version = ack.sequence
        ends = progress.revision == len(self._script.turns)
        if ends:
            self._plans.pop(plan, None)
            subject = self._subjects.response(EventTopic.ACTION_RESULTS, plan, self._script.words.response)
        else:
            subject = self._subjects.event(EventTopic.ACTION_REQUESTS, plan, self._script.words.request)
        replies = []
        for index, payload in enumerate(turn.sent):
            headers = {
                "Nats-Msg-Id": f"{plan}:{progress.revision}-{index}",
                "Content-Type": self._script.content_type,
            }
            if ends:
                headers[EXPECTED] = "0"
            replies.append(self._publisher.begin(subject, payload, headers, unchanged))
        for reply in replies:
            await self._publisher.settle(subject, reply)


class Echo(Reader):
    """Replaces the worker."""

    def __init__(self, role: Role, wire: Wire) -> None:
        filters = (wire.subjects.stored(EventTopic.ACTION_REQUESTS, "*", "*", role.script.words.request),)
        super().__init__([wire.consume(ConsumerSpec("tasks-echo", "requests", filters, ack_wait=ACK_WAIT))])
        self._answer = role.script.answers[0]
        self._answer_type = role.script.words.answer
        self._content_type = role.script.content_type
        self._subjects = wire.subjects
        self._publisher = wire.publisher

    async def handle(self, delivery: Delivery) -> None:
        """Publish the response."""
        plan = delivery.subject.split(".", 4)[3]
        subject = self._subjects.event(EventTopic.ACTION_RESULTS, plan, self._answer_type)
        headers = {"Nats-Msg-Id": f"answer:{delivery.message_id}", "Content-Type": self._content_type}
        await self._publisher.publish_acked(subject, self._answer, headers)


class Processes:
    """The processes of the baseline; they end with their parent process."""

    def __init__(self, nats: NatsSettings, bus: BusSettings, script: Script, count: int) -> None:
        roles: list[tuple[type[Plans] | type[Echo], Role]] = [
            (Plans, Role(nats, bus, script, index, count)) for index in range(count)
        ]
        roles.append((Echo, Role(nats, bus, script)))
        context = multiprocessing.get_context("spawn")
        self._ready: list[Event] = [context.Event() for _ in roles]
        self._processes: list[SpawnProcess] = [
            context.Process(target=_serve, args=(kind, role, ready), daemon=True)
            for (kind, role), ready in zip(roles, self._ready, strict=True)
        ]

    @property
    def pids(self) -> dict[str, list[int]]:
        """Return the process ids; ``plans`` replace dispatchers and hosts."""
        pids = [process.pid for process in self._processes if process.pid is not None]
        return {"plans": pids[:-1], "workers": pids[-1:]}

    def start(self) -> None:
        """Start all processes, and wait until they are connected."""
        for process in self._processes:
            process.start()
        for process, ready in zip(self._processes, self._ready, strict=True):
            if not ready.wait(START_SECONDS) or not process.is_alive():
                raise RuntimeError("a process of the baseline did not start")

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        for process in self._processes:
            if process.pid is not None:
                process.join(10)
                process.close()


def _serve(kind: type[Plans] | type[Echo], role: Role, ready: Event) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_run(kind, role, ready))


async def _run(kind: Any, role: Role, ready: Event) -> None:
    reader: Reader = kind(role, await Wire.open(role))
    ready.set()
    await reader.run()
