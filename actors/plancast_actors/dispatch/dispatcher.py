"""Dispatcher: reads the streams, hands each plan's events to the host of the plan, acknowledges what is committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from typing import Any

from plancast_actors.dispatch.inflight import Held, InHand, Kind
from plancast_actors.dispatch.router import HostDirectory, Router
from plancast_actors.dispatcher_options import CONSUMER_PREFIX, DispatcherOptions, consumer_specs
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_actors.telemetry.samples import UNSAMPLED, Samples
from plancast_bus import fault_injection
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Bus, Consumer, Delivery
from plancast_bus.topics import Source

__all__ = ("CONSUMER_PREFIX", "Dispatcher", "DispatcherOptions", "HostDirectory", "consumer_specs")

logger = logging.getLogger(__name__)
KINDS: dict[Source, Kind] = {"results": "work", "timers": "work", "facts": "facts", "requests": "goals"}
KEEP_ALIVE_ROUNDS = 10
"""Of the time between two signs of life; those of many events are spread over them."""


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
        self.dispatched = self.acknowledged = self.retried = self.put_off = self.crashed = self.redelivered = 0
        self.samples: Samples | None = None
        """Where latencies are kept; None measures none."""
        # Tokens do not count from 0: a host may still report to a dispatcher of this name that is gone.
        self.in_hand = InHand(options, secrets.randbits(48))
        self._handed_at: dict[int, float] = {}
        """When sampled events were handed over, by their tokens."""
        self._router: Router | None = None
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self._acks: dict[Consumer, list[Delivery]] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def router(self) -> Router:
        """Where events go."""
        if self._router is None:
            self._router = Router(self.bus, self.hosts, self.options, self._settle, self._spawn)
        return self._router

    async def start(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        router = self.router
        for spec in consumer_specs(self.bus.subjects, self.options):
            consumer = self.bus.consume(spec)
            self._consumers.append(consumer)
            self._readers.append(loop.create_task(self._read(consumer, KINDS[spec.source])))
        self._readers.append(loop.create_task(self._hand_over_when_there_is_room(router)))
        self._tasks = [loop.create_task(self._keep_alive())]

    async def drain(self, timeout: float = 10.0) -> bool:
        """Stop reading, and wait until nothing is outstanding; True when that was reached in time.

        Turns that wait for a model are waited for too. What was not handed over is given back at the end, for
        another dispatcher to have at once.
        """
        for task in self._readers:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.in_hand.out or self._background:
                    self._room.clear()
                    await asyncio.gather(*self._background)
                    if self.in_hand.out:
                        await self._room.wait()
        await self._close_consumers()
        for held in self.in_hand.give_back():
            await _without_bus(held.consumer.nak(held.delivery))
        return not self.in_hand.out

    async def _close_consumers(self) -> None:
        while self._consumers:
            await self._consumers.pop().close()

    async def stop(self) -> None:
        """Stop at once; what is outstanding is delivered again."""
        tasks = [*self._readers, *self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.router.close()
        await self._close_consumers()

    async def status(self) -> dict[str, Any]:
        """What the dispatcher does, for people."""
        return {
            "name": self.options.name,
            "shards": self.options.own_shards,
            "outstanding": self.in_hand.outstanding,
            "parked": self.in_hand.parked,
            "waiting": self.in_hand.waiting,
            "dispatched": self.dispatched,
            "acknowledged": self.acknowledged,
            "retried": self.retried,
            "put_off": self.put_off,
            "dedicated_hosts": self.router.dedicated,
            "crashed": self.crashed,
            "hosts_lost": sum(link.lost for link in self.router.links),
        }

    # Reading.

    async def _read(self, consumer: Consumer, kind: Kind) -> None:
        while True:
            wanted = self.in_hand.wanted(kind)
            if kind == "goals":
                wanted = -(-wanted // len(self.options.goals))  # each has a consumer
            if wanted <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                deliveries = await consumer.fetch(wanted)
                if fault_injection.armed:
                    deliveries = await _at_point(CrashPoint.DISPATCHER_FETCHED, deliveries)
                await self._take_in(consumer, kind, deliveries)
                await self._hand_over(self.router)
            except BusError as error:  # whatever the stream says, it may say otherwise when its server is well again
                logger.warning("cannot read: %s", error)
                await asyncio.sleep(0.5)

    async def _take_in(self, consumer: Consumer, kind: Kind, deliveries: list[Delivery]) -> None:
        now = asyncio.get_running_loop().time()
        responses = []
        put_off = []
        for delivery in deliveries:
            if delivery.attempt > 1:
                self.redelivered += 1
            if delivery.is_response:
                responses.append(delivery)
            elif (delay := self.in_hand.take_in(consumer, delivery, kind, now)) is not None:
                put_off.append((delivery, delay))
        if self.samples is not None:
            self._note_ages("stored", consumer, deliveries, self.dispatched)
        self.dispatched += len(deliveries) - len(put_off)
        self.put_off += len(put_off)
        for delivery, delay in put_off:
            await _without_bus(consumer.nak(delivery, delay))
        if responses:
            await consumer.ack(responses)

    # Handing over.

    async def _hand_over_when_there_is_room(self, router: Router) -> None:
        while True:
            await self._hand_over(router)
            self._room.clear()
            await self._room.wait()

    async def _hand_over(self, router: Router) -> None:
        while (held := self.in_hand.next()) is not None:
            if self.samples is not None and not held.token & UNSAMPLED:
                self._note_handed(held)
            link = router.route(held.delivery) or await router.look_up(held.delivery)
            link.put(Inbound.of(held.delivery, held.token))

    # Settling.

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Acknowledge what is durable; have the rest delivered again."""
        scheduled = bool(self._acks)
        for token, kind, delay in outcomes:
            if self.samples is not None and not token & UNSAMPLED:
                self._note_reported(token, kind)
            if kind == "parked":
                self.in_hand.park(token)
                continue
            held = self.in_hand.settle(token)
            if held is None:
                continue
            if kind == "crashed":
                self.crashed += 1
                self._spawn(self._put_aside(held))
            elif kind == "done":
                self._acks.setdefault(held.consumer, []).append(held.delivery)
            else:
                self.retried += 1
                self._spawn(held.consumer.nak(held.delivery, delay))
        if self._acks and not scheduled:
            self._spawn(self._acknowledge())
        self._room.set()

    async def _put_aside(self, held: Held) -> None:
        """Give up an event that no host survives, not even to fail its plan."""
        detail = "every plan host ends when it reads this event, or the plan that it is for"
        logger.error("event put aside (crashes-host): %s", detail, extra={"subject": held.delivery.subject})
        await self.bus.dead_letters.put(held.delivery, "crashes-host", detail)
        await held.consumer.ack([held.delivery])

    async def _acknowledge(self) -> None:
        ready, self._acks = self._acks, {}
        for consumer, deliveries in ready.items():
            if fault_injection.armed:
                deliveries = await _at_point(CrashPoint.DISPATCHER_ACK_BEFORE, deliveries)
            if self.samples is not None:
                self._note_ages("whole", consumer, deliveries, self.acknowledged)
            await _without_bus(consumer.ack(deliveries))
            if fault_injection.armed and deliveries:
                await fault_injection.reach(CrashPoint.DISPATCHER_ACK_AFTER, deliveries[0].subject)
            self.acknowledged += len(deliveries)

    # Measuring one event in 64.

    def _note_ages(self, stage: str, consumer: Consumer, deliveries: list[Delivery], before: int) -> None:
        """Of how long ago these were stored, so many having come before them."""
        assert self.samples is not None
        for delivery in deliveries[-before % (UNSAMPLED + 1) :: UNSAMPLED + 1]:
            age = consumer.age(delivery)
            if age is not None:
                self.samples.stage(stage, age)

    def _note_handed(self, held: Held) -> None:
        assert self.samples is not None
        now = self._handed_at[held.token] = asyncio.get_running_loop().time()
        self.samples.stage("waiting", now - held.came)

    def _note_reported(self, token: int, kind: str) -> None:
        assert self.samples is not None
        handed_at = self._handed_at.pop(token, None)
        if handed_at is not None and kind == "done":
            self.samples.stage("host", asyncio.get_running_loop().time() - handed_at)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_without_bus(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # it has not begun, when it was cancelled at once

    async def _keep_alive(self) -> None:
        """Start the acknowledgement time anew of events that are still in hand."""
        every = self.options.ack_wait / 3
        while True:
            await asyncio.sleep(every / KEEP_ALIVE_ROUNDS)
            now = asyncio.get_running_loop().time()
            due = self.in_hand.to_keep_alive(now - every, now, KEEP_ALIVE_ROUNDS - 2)
            for consumer, deliveries in due.items():
                await _without_bus(consumer.in_progress(deliveries))


async def _at_point(point: CrashPoint, deliveries: list[Delivery]) -> list[Delivery]:
    """What of them goes on, each as often as the point lets it."""
    return [each for each in deliveries for _ in range(await fault_injection.reach(point, each.subject))]


async def _without_bus(work: Coroutine[Any, Any, None]) -> None:
    """Do what the stream makes good when it is lost: what is not acknowledged is delivered again."""
    try:
        await work
    except BusUnavailable as error:
        logger.info("the bus is away: %s", error)
