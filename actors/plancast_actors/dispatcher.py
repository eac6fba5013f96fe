"""Dispatcher: reads the streams, hands each plan's events to the host of the plan, acknowledges what is committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from plancast_actors.host_link import HostLink
from plancast_actors.inbound import HostPort, Inbound, Outcome
from plancast_bus.contracts import Bus, Consumer, ConsumerSpec, Delivery, Source
from plancast_bus.envelope import EventTopic
from plancast_bus.errors import BusUnavailable, InvalidSubject
from plancast_bus.subjects import Subjects

logger = logging.getLogger(__name__)
FACTS = (
    EventTopic.BUSINESS_FACTS,
    EventTopic.BILLING_EVENTS,
    EventTopic.NOTIFICATION_EVENTS,
    EventTopic.TASK_EVENTS,
)
CONSUMER_PREFIX = "plans-"
"""Names of the dispatchers' durable consumers begin so."""
MAX_KNOWN_PLACES = 100_000


@dataclass(frozen=True)
class DispatcherOptions:
    """How a dispatcher works."""

    index: int = 0
    """Its number, from 0."""
    count: int = 1
    """How many there are; each takes its share of the shards."""
    shards: int = 16
    max_outstanding: int = 4096
    """Events handed over and not yet committed."""
    max_batch: int = 512
    """Events in one call to a host."""
    ack_wait: float = 30.0
    """Seconds after which an event that nobody reports on is delivered again."""
    goals: tuple[str, ...] = ()
    """Goal event types of all planners."""
    dedicated_goals: frozenset[str] = frozenset()
    """Goals whose plans have a host of their own."""

    @property
    def name(self) -> str:
        """Unique among the dispatchers."""
        return f"dispatcher-{self.index}"

    @property
    def own_shards(self) -> list[int]:
        """The shards that this dispatcher reads."""
        return list(range(self.index, self.shards, self.count))


def consumer_specs(subjects: Subjects, options: DispatcherOptions) -> list[ConsumerSpec]:
    """The durable consumers of a dispatcher.

    Facts and timers are shared by all dispatchers, so that their position outlives a change of the number.
    """
    shards: list[int | str] = ["*"] if options.count == 1 else list(options.own_shards)
    suffix = "" if options.count == 1 else f"-{options.index}-of-{options.count}"

    def spec(name: str, source: Source, filters: Iterable[str]) -> ConsumerSpec:
        return ConsumerSpec(
            name=f"{CONSUMER_PREFIX}{name}",
            source=source,
            filters=tuple(filters),
            ack_wait=options.ack_wait,
            max_ack_pending=max(20_000, 2 * options.max_outstanding),
        )

    results = (EventTopic.ACTION_RESULTS, EventTopic.PLAN_EVENTS)
    goals = (subjects.stored("action-requests", shard, "*", goal) for goal in options.goals for shard in shards)
    specs = [
        spec("results" + suffix, "results", (subjects.stored(topic, shard) for topic in results for shard in shards)),
        spec("facts", "facts", (subjects.stored(topic) for topic in FACTS)),
        spec("timers", "timers", (subjects.timers_due(),)),
    ]
    return [*specs, spec("goals" + suffix, "requests", goals)] if options.goals else specs


class HostDirectory(Protocol):
    """Finds plan hosts."""

    @property
    def shared(self) -> list[HostPort]:
        """The shared hosts, in an order that all dispatchers agree on."""
        ...

    def dedicated(self, plan: str) -> HostPort:
        """The host of one plan's own, which is started when it is needed."""
        ...


class Dispatcher:
    """Reads its shards and keeps every event in hand until its plan's turn is committed.

    Args:
        bus: A connection of the dispatcher's own.
        hosts: Where plans live.
        options: How it works.
    """

    def __init__(self, bus: Bus, hosts: HostDirectory, options: DispatcherOptions) -> None:
        self.bus = bus
        self.hosts = hosts
        self.options = options
        self.dispatched = self.acknowledged = self.retried = 0
        self._outstanding: dict[int, tuple[Consumer, Delivery, float]] = {}
        self._links: dict[str, HostLink] = {}
        self._shared: list[HostLink] = []
        self._places: OrderedDict[str, bool] = OrderedDict()
        self._next_token = secrets.randbits(48)
        """Not from 0: a host may still report to a dispatcher of this name that is gone."""
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self._acks: dict[Consumer, list[Delivery]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._all_dedicated = bool(options.goals) and options.dedicated_goals.issuperset(options.goals)

    async def start(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        self._shared = [self._link(host) for host in self.hosts.shared]
        self._consumers = [self.bus.consume(spec) for spec in consumer_specs(self.bus.subjects, self.options)]
        self._tasks = [loop.create_task(self._read(consumer)) for consumer in self._consumers]
        self._tasks.append(loop.create_task(self._keep_alive()))

    async def drain(self, timeout: float = 10.0) -> bool:
        """Stop reading, and wait until nothing is outstanding; True when that was reached in time."""
        for task in self._tasks[: len(self._consumers)]:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._outstanding or self._background:
                    self._room.clear()
                    await asyncio.gather(*self._background)
                    if self._outstanding:
                        await self._room.wait()
        await self._close_consumers()
        return not self._outstanding

    async def _close_consumers(self) -> None:
        while self._consumers:
            await self._consumers.pop().close()

    async def stop(self) -> None:
        """Stop at once; what is outstanding is delivered again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in [*self._shared, *self._links.values()]:
            await link.close()
        await self._close_consumers()

    async def status(self) -> dict[str, Any]:
        """What the dispatcher does, for people."""
        return {
            "name": self.options.name,
            "shards": self.options.own_shards,
            "outstanding": len(self._outstanding),
            "dispatched": self.dispatched,
            "acknowledged": self.acknowledged,
            "retried": self.retried,
            "dedicated_hosts": len(self._links),
            "hosts_lost": sum(link.lost for link in [*self._shared, *self._links.values()]),
        }

    # Reading.

    async def _read(self, consumer: Consumer) -> None:
        while True:
            free = self.options.max_outstanding - len(self._outstanding)
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                await self._dispatch(consumer, await consumer.fetch(free))
            except BusUnavailable as error:
                logger.warning("cannot read: %s", error)
                await asyncio.sleep(0.5)

    async def _dispatch(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        now = asyncio.get_running_loop().time()
        responses = []
        for delivery in deliveries:
            if delivery.is_response:
                responses.append(delivery)
                continue
            self._next_token += 1
            token = self._next_token
            link = await self._route(delivery)
            self._outstanding[token] = (consumer, delivery, now)
            link.put(
                Inbound(
                    token,
                    delivery.subject,
                    delivery.payload,
                    delivery.content_type,
                    delivery.message_id,
                    delivery.stream,
                    delivery.sequence,
                    delivery.attempt,
                )
            )
        self.dispatched += len(deliveries)
        if responses:
            await consumer.ack(responses)

    # Routing.

    async def _route(self, delivery: Delivery) -> HostLink:
        correlation = _correlation_token(delivery.subject)
        if self.options.dedicated_goals and await self._is_dedicated(delivery, correlation):
            link = self._links.get(correlation)
            if link is None:
                self._forget_idle_links()
                address = self.bus.subjects.parse_stored(delivery.subject)
                link = self._links[correlation] = self._link(self.hosts.dedicated(address.correlation_id))
            return link
        return self._shared[zlib.crc32(correlation.encode()) % len(self._shared)]

    async def _is_dedicated(self, delivery: Delivery, correlation: str) -> bool:
        known = self._places.get(correlation)
        if known is None:
            known = await self._look_up_place(delivery)
            if known is None:
                return False
            self._places[correlation] = known
            if len(self._places) > MAX_KNOWN_PLACES:
                self._places.popitem(last=False)
        return known

    async def _look_up_place(self, delivery: Delivery) -> bool | None:
        """Where the plan lives: its goal says so, or its checkpoint; None when there is none yet."""
        try:
            address = self.bus.subjects.parse_stored(delivery.subject)
        except InvalidSubject:
            return None  # any host puts it aside
        if self._all_dedicated:
            return True
        if address.topic == EventTopic.ACTION_REQUESTS:
            return address.event_type in self.options.dedicated_goals
        try:
            checkpoint = await self.bus.checkpoints.load(address.correlation_id)
        except BusUnavailable:
            return None
        return None if checkpoint is None else checkpoint.summary.goal_event in self.options.dedicated_goals

    def _link(self, host: HostPort) -> HostLink:
        return HostLink(self.options.name, host, self.options.max_batch, self._settle)

    def _forget_idle_links(self) -> None:
        for key in [key for key, link in self._links.items() if link.idle]:
            link = self._links.pop(key)
            self._spawn(link.close())

    # Settling.

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Acknowledge what is durable; have the rest delivered again."""
        scheduled = bool(self._acks)
        for token, kind, delay in outcomes:
            held = self._outstanding.pop(token, None)
            if held is None:
                continue
            consumer, delivery, _ = held
            if kind == "done":
                self._acks.setdefault(consumer, []).append(delivery)
            else:
                self.retried += 1
                self._spawn(consumer.nak(delivery, delay))
        if self._acks and not scheduled:
            self._spawn(self._acknowledge())
        self._room.set()

    async def _acknowledge(self) -> None:
        ready, self._acks = self._acks, {}
        for consumer, deliveries in ready.items():
            await _without_bus(consumer.ack(deliveries))
            self.acknowledged += len(deliveries)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_without_bus(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _keep_alive(self) -> None:
        """Start the acknowledgement time anew of events that are still in hand."""
        every = self.options.ack_wait / 3
        while True:
            await asyncio.sleep(every)
            before = asyncio.get_running_loop().time() - every
            due: dict[Consumer, list[Delivery]] = {}
            for consumer, delivery, since in self._outstanding.values():
                if since <= before:
                    due.setdefault(consumer, []).append(delivery)
            for consumer, deliveries in due.items():
                await _without_bus(consumer.in_progress(deliveries))


async def _without_bus(work: Coroutine[Any, Any, None]) -> None:
    """Do what the stream makes good when it is lost: what is not acknowledged is delivered again."""
    try:
        await work
    except BusUnavailable as error:
        logger.info("the bus is away: %s", error)


def _correlation_token(subject: str) -> str:
    """The correlation id's token in a stored subject; in that of a due timer it stands one further."""
    parts = subject.split(".", 5)
    return parts[4] if parts[2] == "due" else parts[3]
