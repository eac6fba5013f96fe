"""Dispatcher: reads the streams, sends events to the hosts of their plans, acknowledges what is committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from functools import cached_property
from typing import Any

from plancast_actors.dispatch.inflight import InFlight, InFlightEvent, Kind
from plancast_actors.dispatch.router import HostDirectory, Router, correlation_token
from plancast_actors.dispatch.suspects import QuarantineDirectory, Suspects
from plancast_actors.dispatcher_options import CONSUMER_PREFIX, DispatcherOptions, consumer_specs
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_actors.telemetry.hot_keys import HotKeys
from plancast_actors.telemetry.samples import UNSAMPLED, Samples
from plancast_bus import fault_injection, outage_log
from plancast_bus.errors import BusError, BusUnavailable, InvalidSubject
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Bus, Consumer, Delivery, Subscription
from plancast_bus.retry import retrying
from plancast_bus.topics import Source

__all__ = ("CONSUMER_PREFIX", "Dispatcher", "DispatcherOptions", "HostDirectory", "consumer_specs")

logger = logging.getLogger(__name__)
KINDS: dict[Source, Kind] = {"results": "work", "timers": "work", "facts": "facts", "requests": "goals"}
RESTORE_SECONDS = 5.0
"""Pause between two looks at whether all streams and consumers are there."""
KEEP_ALIVE_ROUNDS = 10
"""Rounds between two ack extensions of an event; many events are spread over them."""


class Dispatcher:
    """Reads its shards, and keeps every event in flight until its plan's turn is committed.

    ``bus`` is a connection used by this dispatcher only. Without ``quarantine``, events that end hosts are tried in the
    hosts of their plans.
    """

    def __init__(
        self, bus: Bus, hosts: HostDirectory, options: DispatcherOptions, quarantine: QuarantineDirectory | None = None
    ) -> None:
        self.bus = bus
        self.hosts = hosts
        self.options = options
        self.quarantine = quarantine
        self.dispatched = self.acknowledged = self.retried = self.deferred = self.crashed = self.redelivered = 0
        self.samples: Samples | None = None
        """Receives measured latencies; None measures none."""
        # The first token is random: a host may still report to an earlier dispatcher with this name.
        self.in_flight = InFlight(options, secrets.randbits(48))
        self._hot = {"plans": HotKeys(), "tenants": HotKeys()}
        """Counts of sampled events."""
        self._dispatched_at: dict[int, float] = {}
        """When sampled events were dispatched, by token."""
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._consumers: list[Consumer] = []
        self._served: list[Subscription] = []
        """Serves values to logins."""
        self._acks: dict[Consumer, list[Delivery]] = {}
        self._background: set[asyncio.Task[None]] = set()

    @cached_property
    def router(self) -> Router:
        apart, options = self.quarantine, self.options
        suspects = Suspects(self.bus, apart, options, self._settle) if apart is not None else None
        return Router(self.bus, self.hosts, options, self._settle, self._spawn, suspects)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        router = self.router
        for spec in consumer_specs(self.bus.subjects, self.options):
            consumer = self.bus.consume(spec)
            self._consumers.append(consumer)
            self._readers.append(loop.create_task(self._read(consumer, KINDS[spec.source])))
        self._readers.append(loop.create_task(self._dispatch_when_possible(router)))
        self._tasks = [
            loop.create_task(each) for each in (self._keep_alive(), self._serve_logins(), self._keep_streams())
        ]

    async def _serve_logins(self) -> None:
        for serve in (self.bus.serve_values, self.bus.serve_snapshots):
            self._served.append(await retrying(serve, logger, retried=BusUnavailable))

    async def _keep_streams(self) -> None:
        """Have streams and consumers made again that an operator deletes."""
        while True:
            try:
                await self.bus.restore(self.options.tasks)
            except BusError as error:
                outage_log.warn(logger, "it is not known whether all streams are there: %s", error)
            await asyncio.sleep(RESTORE_SECONDS)

    async def drain(self, timeout: float = 10.0, *, parked: bool = True) -> bool:
        """Stop reading, and wait until no event is in flight; True if reached in time.

        Events that were not dispatched are redelivered at once, to another dispatcher.

        Args:
            timeout: Seconds.
            parked: Whether to wait for parked events, too.
        """
        for task in self._readers:
            task.cancel()
        await self._close_consumers()  # at once: what they have requested would wait here for the events in flight
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (self.in_flight.out if parked else self.in_flight.outstanding) or self._background:
                    self._room.clear()
                    await asyncio.gather(*self._background)
                    if self.in_flight.out if parked else self.in_flight.outstanding:
                        await self._room.wait()
        for event in self.in_flight.give_back():
            await _ignore_outage(event.consumer.nak(event.delivery))
        return not self.in_flight.out

    def reclaim(self) -> None:
        """Have events redelivered that an earlier reader of these shards has read and not acknowledged."""
        for consumer in self._consumers:
            consumer.reclaim()

    async def _close_consumers(self) -> None:
        while self._consumers:
            await self._consumers.pop().close()

    async def share(self, options: DispatcherOptions) -> None:
        """Stop, and read the shards that it has among another number of dispatchers."""
        await self.stop()
        self.options, self.in_flight = options, InFlight(options, secrets.randbits(48))
        self._dispatched_at.clear()
        self._acks.clear()
        self._readers.clear()
        del self.router
        if not options.stands_by:
            await self.start()

    async def stop(self) -> None:
        """Stop at once; events in flight are redelivered."""
        tasks = [*self._readers, *self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.router.close()
        await self._close_consumers()
        while self._served:
            await self._served.pop().close()

    async def status(self) -> dict[str, Any]:
        return {
            "name": self.options.name,
            "shards": self.options.own_shards,
            "outstanding": self.in_flight.outstanding,
            "parked": self.in_flight.parked,
            "waiting": self.in_flight.waiting,
            "dispatched": self.dispatched,
            "acknowledged": self.acknowledged,
            "retried": self.retried,
            "put_off": self.deferred,
            "dedicated_hosts": self.router.dedicated,
            "crashed": self.crashed,
            "hot": {kind: [total, found] for kind, (total, found) in self.hot().items()},
            "hosts_lost": sum(link.lost for link in self.router.links),
        }

    # Reading.

    async def _read(self, consumer: Consumer, kind: Kind) -> None:
        while True:
            wanted = self.in_flight.wanted(kind)
            if kind == "goals":
                wanted = -(-wanted // len(self.options.goals))  # each goal type has a consumer
            if wanted <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                deliveries = await consumer.fetch(wanted)
                if fault_injection.armed:
                    deliveries = await fault_injection.pass_deliveries(CrashPoint.DISPATCHER_FETCHED, deliveries)
                await self._take_in(consumer, kind, deliveries)
                await self._dispatch(self.router)
            except BusError as error:  # any error may be temporary
                outage_log.warn(logger, "cannot read: %s", error)
                await asyncio.sleep(0.5)

    async def _take_in(self, consumer: Consumer, kind: Kind, deliveries: list[Delivery]) -> None:
        now = asyncio.get_running_loop().time()
        responses = []
        deferred = []
        for delivery in deliveries:
            if delivery.attempt > 1:
                self.redelivered += 1
            if delivery.is_response and not self._is_heard(delivery):
                responses.append(delivery)
            elif (delay := self.in_flight.take_in(consumer, delivery, kind, now)) is not None:
                deferred.append((delivery, delay))
        if self.samples is not None:
            self._note_ages("stored", consumer, deliveries, self.dispatched)
        self.dispatched += len(deliveries) - len(deferred)
        self.deferred += len(deferred)
        for delivery, delay in deferred:
            await _ignore_outage(consumer.nak(delivery, delay))
        if responses:
            await consumer.ack(responses)

    def _is_heard(self, delivery: Delivery) -> bool:
        """True if event handlers listen to a final response, which no plan takes."""
        if not self.options.listened:
            return False
        try:
            address = self.bus.subjects.parse_stored(delivery.subject)
        except InvalidSubject:  # a publisher may set the header of responses, too
            return False
        return self.options.hears_response(address.topic, address.event_type)

    # Dispatching.

    async def _dispatch_when_possible(self, router: Router) -> None:
        while True:
            await self._dispatch(router)
            self._room.clear()
            await self._room.wait()

    async def _dispatch(self, router: Router) -> None:
        while (event := self.in_flight.next()) is not None:
            if self.samples is not None and not event.token & UNSAMPLED:
                self._note_dispatched(event)
            link = router.route(event.delivery) or await router.look_up(event.delivery)
            link.put(Inbound.of(event.delivery, event.token))

    # Settling.

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Acknowledge committed events, redeliver or dead-letter the others."""
        scheduled = bool(self._acks)
        for token, kind, delay in outcomes:
            if self.samples is not None and not token & UNSAMPLED:
                self._note_reported(token, kind)
            if kind == "parked":
                self.in_flight.park(token)
                continue
            event = self.in_flight.settle(token)
            if event is None:
                continue
            if kind == "crashed":
                self.crashed += 1
                self._spawn(self._dead_letter(event))
            elif kind == "done":
                self._acks.setdefault(event.consumer, []).append(event.delivery)
            else:
                self.retried += 1
                self._spawn(event.consumer.nak(event.delivery, delay))
        if self._acks and not scheduled:
            self._spawn(self._acknowledge())
        self._room.set()

    async def _dead_letter(self, event: InFlightEvent) -> None:
        """Dead-letter an event that crashes every host, even without running code for it."""
        detail = "every plan host ends when it reads this event, or the plan that it is for"
        subject = event.delivery.subject
        about = {"correlation_id": self.bus.subjects.correlation_of(subject), "subject": subject}
        logger.error("event dead-lettered (crashes-host): %s", detail, extra=about)
        await self.bus.dead_letters.put(event.delivery, "crashes-host", detail)
        await event.consumer.ack([event.delivery])

    async def _acknowledge(self) -> None:
        ready, self._acks = self._acks, {}
        for consumer, deliveries in ready.items():
            if fault_injection.armed:
                deliveries = await fault_injection.pass_deliveries(CrashPoint.DISPATCHER_ACK_BEFORE, deliveries)
            if self.samples is not None:
                self._note_ages("whole", consumer, deliveries, self.acknowledged)
            await _ignore_outage(consumer.ack(deliveries))
            if fault_injection.armed and deliveries:
                await fault_injection.reach(CrashPoint.DISPATCHER_ACK_AFTER, deliveries[0].subject)
            self.acknowledged += len(deliveries)

    # Measuring one event in 64.

    def _note_ages(self, stage: str, consumer: Consumer, deliveries: list[Delivery], before: int) -> None:
        """Sample how long ago deliveries were stored; ``before``: how many came before them."""
        assert self.samples is not None
        for delivery in deliveries[-before % (UNSAMPLED + 1) :: UNSAMPLED + 1]:
            age = consumer.age(delivery)
            if age is not None:
                self.samples.stage(stage, age)

    def _note_dispatched(self, event: InFlightEvent) -> None:
        assert self.samples is not None
        now = self._dispatched_at[event.token] = asyncio.get_running_loop().time()
        self._hot["plans"].note(correlation_token(event.delivery.subject), now)
        if event.delivery.tenant:
            self._hot["tenants"].note(event.delivery.tenant, now)
        self.samples.stage("waiting", now - event.came)

    def hot(self) -> dict[str, tuple[int, dict[str, int]]]:
        """All sampled events of the last minutes, and those of the busiest plans and tenants, by kind."""
        now = asyncio.get_running_loop().time()
        return {kind: keys.counts(now) for kind, keys in self._hot.items()}

    def _note_reported(self, token: int, kind: str) -> None:
        assert self.samples is not None
        dispatched_at = self._dispatched_at.pop(token, None)
        if dispatched_at is not None and kind == "done":
            self.samples.stage("host", asyncio.get_running_loop().time() - dispatched_at)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_ignore_outage(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # never awaited if the task was cancelled at once

    async def _keep_alive(self) -> None:
        every = self.options.ack_wait / 3
        while True:
            await asyncio.sleep(every / KEEP_ALIVE_ROUNDS)
            now = asyncio.get_running_loop().time()
            due = self.in_flight.to_keep_alive(now - every, now, KEEP_ALIVE_ROUNDS - 2)
            for consumer, deliveries in due.items():
                await _ignore_outage(consumer.in_progress(deliveries))


async def _ignore_outage(work: Coroutine[Any, Any, None]) -> None:
    """Await an acknowledgement; if the bus is unavailable, the event is redelivered anyway."""
    try:
        await work
    except BusUnavailable as error:
        logger.info("the bus is away: %s", error)
