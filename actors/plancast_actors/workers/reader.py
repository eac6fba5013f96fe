"""TaskReader: reads the tasks of one kind, has them done, answers, and then acknowledges."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from plancast.errors import RetryableError, TerminalError
from plancast.telemetry.logging import IN_HAND
from plancast.telemetry.redaction import redact
from plancast.telemetry.trace_scope import TRACE
from plancast_actors.dead_letters import DeadLetterWriter
from plancast_actors.workers.delivery_record import TaskRecord
from plancast_actors.workers.executor import TaskExecutor, given_up
from plancast_actors.workers.responses import Answer, RequestTooLarge, read_request
from plancast_bus import fault_injection
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, BusUnavailable, InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.trace_context import trace_id_of
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Bus, Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.effects import Publish
from plancast_bus.retry import FIRST_PAUSE, LONGEST_PAUSE, retrying

logger = logging.getLogger(__name__)

FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
"""Seconds after which a task is tried again; they double from the first to the longest."""
SHUFFLE_SECONDS = 1.0
"""Within which tasks during which processes have ended begin in any order."""
CANCEL_SECONDS = 5.0
"""How long a handler may take to end once it is cancelled."""


class _Held:
    """A task in hand: from its delivery until it is acknowledged or given back."""

    __slots__ = ("delivery", "task")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.task: asyncio.Task[None] | None = None


class TaskReader:
    """Reads the tasks of one kind. A task is acknowledged only when its answer is durable."""

    def __init__(
        self, bus: Bus, executor: TaskExecutor, spec: ConsumerSpec, clock: Clock, max_event_bytes: int
    ) -> None:
        self._bus = bus
        self._executor = executor
        self._room = executor.room
        self._counts = executor.counts
        self._event_type = executor.definition.event_type
        self._spec = spec
        self._clock = clock
        self._max_event_bytes = max_event_bytes
        self._consumer: Consumer = bus.consume(spec)
        self._closing = False
        self._held: dict[int, _Held] = {}
        self.redelivered = 0
        self._settled: list[_Held] = []
        self._any_settled = asyncio.Event()
        self._undecodable, self._too_large = (
            DeadLetterWriter(bus, reason, logger) for reason in ("undecodable", "too-large")
        )
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read())
        self._others = [loop.create_task(self._keep_alive()), loop.create_task(self._acknowledge())]

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The tasks in hand."""
        return [held.task for held in self._held.values() if held.task is not None and not held.task.done()]

    async def stop_reading(self) -> None:
        """Take no more tasks; those in hand go on."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Give back what is still in hand, and let the consumer go."""
        running = self.running
        self._closing = True
        for task in (*running, *self._others):
            task.cancel()
        await asyncio.wait((*running, *self._others), timeout=CANCEL_SECONDS)
        await asyncio.gather(self._undecodable.stop(), self._too_large.stop())
        with suppress(BusError):
            await self._flush()
        for held in self._held.values():
            with suppress(BusError):
                await self._consumer.nak(held.delivery)
            self._room.leave()
        self._held.clear()
        with suppress(BusError):
            await self._consumer.close()

    # Reading, keeping alive, acknowledging.

    async def _read(self) -> None:
        pause = FIRST_PAUSE
        while True:
            free = await self._room.free()
            try:
                deliveries = await self._consumer.fetch(free)
            except Exception as error:
                logger.warning(
                    "tasks cannot be read, trying on: %s",
                    error,
                    exc_info=None if isinstance(error, BusError) else error,
                    extra={"task": self._event_type},
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                if not isinstance(error, BusUnavailable):
                    await self._renew()
                continue
            pause = FIRST_PAUSE
            loop = asyncio.get_running_loop()
            if fault_injection.armed:
                deliveries = await _at_point(CrashPoint.WORKER_FETCHED, deliveries)
            for delivery in deliveries:
                if delivery.attempt > 1:
                    self.redelivered += 1
                held = self._held.get(delivery.sequence)
                if held is not None:  # its time to be acknowledged ran out while it was being done
                    held.delivery = delivery
                    continue
                held = self._held[delivery.sequence] = _Held(delivery)
                self._room.enter()
                held.task = loop.create_task(self._process(held))

    async def _renew(self) -> None:
        """A new reader of the same consumer; what the old one has given out stays in hand."""
        with suppress(BusError):
            await self._consumer.close()
        with suppress(BusError):
            self._consumer = self._bus.consume(self._spec)

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(self._spec.ack_wait / 3)
            if self._held:
                with suppress(BusError):
                    await self._consumer.in_progress([held.delivery for held in self._held.values()])

    async def _acknowledge(self) -> None:
        while True:
            await self._any_settled.wait()
            self._any_settled.clear()
            try:
                await self._flush()
            except BusError as error:
                logger.warning("acknowledging later: %s", error, extra={"task": self._event_type})
                await asyncio.sleep(FIRST_PAUSE)
                self._any_settled.set()

    async def _flush(self) -> None:
        batch, self._settled = self._settled, []
        try:
            if fault_injection.armed and batch:
                acks = await _at_point(CrashPoint.WORKER_ACK_BEFORE, [held.delivery for held in batch])
                await self._consumer.ack(acks)
                await fault_injection.reach(CrashPoint.WORKER_ACK_AFTER, self._event_type)
            elif batch:
                await self._consumer.ack([held.delivery for held in batch])
        except BaseException:
            self._settled[:0] = batch
            raise
        for held in batch:
            self._release(held)

    def _release(self, held: _Held) -> None:
        if self._held.pop(held.delivery.sequence, None) is not None:
            self._room.leave()

    def _settle(self, held: _Held) -> None:
        self._settled.append(held)
        self._any_settled.set()

    # One task.

    async def _process(self, held: _Held) -> None:
        """Do one task, until it is settled or given back."""
        delivery = held.delivery
        try:
            try:
                request = read_request(delivery, self._bus.subjects, self._max_event_bytes)
            except InvalidEnvelope as error:
                self._refuse(held, error)
                return
            IN_HAND.set(request)
            if delivery.trace:
                TRACE.set(delivery.trace)
                request.trace_id = trace_id_of(delivery.trace)
            await self._do_task(held, request)
        except asyncio.CancelledError:
            if not self._closing:  # its handler has cancelled it: the place is free, and the task comes again
                self._release(held)
            raise
        except Exception:
            logger.exception("a task could not be handled, it is given back", extra={"task": self._event_type})
            await self._give_back(held, LONGEST_PAUSE)

    def _refuse(self, held: _Held, error: InvalidEnvelope) -> None:
        """Put a request aside that is none; it is acknowledged when that is durable, and takes no room meanwhile."""
        self._counts.put_aside += 1
        poison = self._too_large if isinstance(error, RequestTooLarge) else self._undecodable
        poison.add(held.delivery, str(error), partial(self._settle, held), {"task": self._event_type})
        self._release(held)

    async def _do_task(self, held: _Held, request: EventEnvelope) -> None:
        """Do a task that could be read."""
        if held.delivery.attempt == 1 and self._executor.trusted and not fault_injection.armed:
            await self._do_first(held, request)
        else:
            await self._do_noting(held, request)

    async def _do_first(self, held: _Held, request: EventEnvelope) -> None:
        """Do a task at its first delivery, as nearly all are: nothing is known of it, and nothing is to be noted."""
        delivery, places = held.delivery, self._room.places
        try:
            if not places.take():
                await places.wait()
            try:
                answer = await self._executor.run(request, 1)
            finally:
                places.leave()
        except RetryableError as error:
            if await self._is_tried_again(held, request, self._record(delivery, request), error):
                return
            answer = self._executor.failure(request, error)
        if answer is not None:
            await self._publish(request, answer)
        self._settle(held)

    async def _do_noting(self, held: _Held, request: EventEnvelope) -> None:
        """Do a task that may have been begun before: what is known of it counts, and what becomes of it is noted."""
        record = self._record(held.delivery, request)
        try:
            await self._do(held, request, record)
        except asyncio.CancelledError:
            if self._closing:
                await record.interrupted()
            raise

    async def _do(self, held: _Held, request: EventEnvelope, record: TaskRecord) -> None:
        if record.watched:
            await record.read()
        if record.answered:
            self._settle(held)
            return
        if self._executor.is_given_up(record.lost):
            await self._put_aside(held.delivery, "crashes-worker", given_up(record.lost))
            answer = self._executor.failure(request, TerminalError(given_up(record.lost)))
        else:
            try:
                run = self._run_by_itself if record.lost else self._run
                answer = await run(request, record, held.delivery.attempt)
            except RetryableError as error:
                if await self._is_tried_again(held, request, record, error):
                    return
                answer = self._executor.failure(request, error)
        if answer is not None:
            await self._publish(request, answer)
            if fault_injection.armed:
                await fault_injection.reach(CrashPoint.WORKER_ANSWER_AFTER, answer.to_wire()["id"])
        await record.done()
        self._settle(held)

    def _record(self, delivery: Delivery, request: EventEnvelope) -> TaskRecord:
        return TaskRecord(self._bus.registry, self._event_type, delivery, request.id, self._executor.trusted)

    async def _run(self, request: EventEnvelope, record: TaskRecord, attempt: int) -> Answer | None:
        await self._room.places.wait()
        try:
            if fault_injection.armed:
                await fault_injection.reach(CrashPoint.WORKER_HANDLE_BEFORE, request.id)
            await record.begin()
            return await self._executor.run(request, attempt)
        finally:
            self._room.places.leave()

    async def _run_by_itself(self, request: EventEnvelope, record: TaskRecord, attempt: int) -> Answer | None:
        """Do a task during which processes have ended: one such task at a time, in any order.

        They come back together. One that ends its process at once would otherwise take the same others along each time.
        """
        await asyncio.sleep(random.random() * SHUFFLE_SECONDS)
        async with self._room.suspects:
            return await self._run(request, record, attempt)

    async def _put_aside(self, delivery: Delivery, reason: str, detail: str) -> None:
        logger.warning(
            "a request becomes a dead letter: %s", detail, extra={"task": self._event_type, "reason": reason}
        )
        await self._patiently(lambda: self._bus.dead_letters.put(delivery, reason, redact(detail)))
        self._counts.put_aside += 1

    async def _is_tried_again(
        self, held: _Held, request: EventEnvelope, record: TaskRecord, error: RetryableError
    ) -> bool:
        """Give a task back to be tried again, unless it was tried often enough."""
        if not await record.may_try_again(self._room.worker.max_attempts):
            return False
        attempt, delay = held.delivery.attempt, error.retry_after
        if delay is None:
            delay = min(FIRST_RETRY * 2 ** min(record.tried, 10), LONGEST_RETRY)
        await record.try_again(max(delay, 0.0))
        self._counts.retried += 1
        logger.info("task is tried again in %g s", delay, extra=self._executor.about(request) | {"attempt": attempt})
        await self._give_back(held, max(delay, 0.0))
        return True

    async def _give_back(self, held: _Held, delay: float) -> None:
        self._release(held)
        with suppress(BusError):  # then it comes again when its time to be acknowledged is over
            await self._consumer.nak(held.delivery, delay)

    async def _publish(self, request: EventEnvelope, answer: Answer) -> None:
        """Publish an answer however long it takes; one that cannot be sent is replaced by a failure that says so."""
        try:
            sending = None if fault_injection.armed else self._begin_to_send(answer)
            if sending is not None:
                await sending
                return
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject):
            pass  # it is said in full below
        except BusError as error:
            logger.warning("trying on: %s", error, extra={"task": self._event_type})
            await asyncio.sleep(FIRST_PAUSE)
        event = answer.to_envelope()
        send = self._send_at_point if fault_injection.armed else self._send
        try:
            await self._patiently(lambda: send(event))
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            failure = self._executor.failure(request, TerminalError(f"the answer cannot be sent: {error}"))
            if failure is not None:
                event = failure.to_envelope()
                await self._patiently(lambda: self._send(event))

    def _begin_to_send(self, answer: Answer) -> asyncio.Future[list[int]] | None:
        """Send an answer to a plan at once; None for another, and for one that may be too large."""
        bus, said = self._bus, answer.to_wire()
        if said["topic"] != EventTopic.ACTION_RESULTS:
            return None
        payload, content_type = bus.encode(answer)
        if len(payload) > self._max_event_bytes:
            return None
        subject = bus.subjects.event(said["topic"], said["correlation_id"], said["type"])
        return bus.begin_emit((Publish(subject, payload, said["id"], content_type, "", TRACE.get()),))

    async def _send(self, answer: EventEnvelope) -> None:
        await self._bus.publish(answer, trace=TRACE.get())

    async def _send_at_point(self, answer: EventEnvelope) -> None:
        copies = await fault_injection.reach(CrashPoint.WORKER_HANDLE_AFTER, answer.id)
        if not copies:
            raise BusUnavailable("a crash point has lost the answer")
        for _ in range(copies):
            await self._send(answer)

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        await retrying(act, logger, first=FIRST_PAUSE, fields={"task": self._event_type})


async def _at_point(point: CrashPoint, deliveries: list[Delivery]) -> list[Delivery]:
    """What of them goes on, each as often as the point lets it."""
    return [each for each in deliveries for _ in range(await fault_injection.reach(point, each.subject))]
