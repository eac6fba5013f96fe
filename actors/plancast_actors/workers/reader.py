"""TaskReader: fetches tasks of one type, executes them, publishes their responses and acknowledges them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from plancast.effects.wire import RESOLUTION
from plancast.errors import RetryableError, TerminalError
from plancast.telemetry.logging import LOG_CONTEXT
from plancast.telemetry.redaction import redact
from plancast.telemetry.trace_scope import TRACE
from plancast_actors.dead_letters import DeadLetterWriter
from plancast_actors.workers.delivery_record import DeliveryRecord
from plancast_actors.workers.effect_attempt import EffectExecutor
from plancast_actors.workers.effect_delivery import HeldBack
from plancast_actors.workers.executor import TaskExecutor, given_up
from plancast_actors.workers.responses import RequestTooLarge, Response, read_request
from plancast_actors.workers.withdrawals import IN_FLIGHT, InFlight, TaskWithdrawn, follow_withdrawals
from plancast_bus import fault_injection, outage_log
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, BusUnavailable, InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.event_data import delivered_in_full
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.trace_context import trace_id_of
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Bus, Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.effects import Publish
from plancast_bus.retry import FIRST_PAUSE, LONGEST_PAUSE, retrying

logger = logging.getLogger(__name__)

FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
"""Seconds before a retry; they double from the first to the longest."""
SHUFFLE_SECONDS = 1.0
"""Random delay of tasks during which processes have died."""
CANCEL_SECONDS = 5.0
"""Seconds for handlers to end after a cancellation."""


class TaskReader:
    """Reads tasks of one type. A task is acknowledged only when its response is durable."""

    def __init__(
        self, bus: Bus, executor: TaskExecutor, spec: ConsumerSpec, clock: Clock, max_event_bytes: int
    ) -> None:
        self._bus = bus
        self._executor = executor
        self._effects = executor.effects
        self._capacity = executor.capacity
        self._counts = executor.counts
        self._event_type = executor.definition.event_type
        self._spec = spec
        self._clock = clock
        self._max_event_bytes = max_event_bytes
        self._consumer: Consumer = bus.consume(spec)
        self._closing = False
        self._in_flight: dict[int, InFlight] = {}
        self.redelivered = 0
        self._settled: list[InFlight] = []
        self._any_settled = asyncio.Event()
        self._undecodable = DeadLetterWriter(bus, "undecodable", logger)
        self._too_large = DeadLetterWriter(bus, "too-large", logger)
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read())
        withdrawals = follow_withdrawals(bus, self._event_type, self._in_flight)
        self._others = [loop.create_task(each) for each in (self._keep_alive(), self._acknowledge(), withdrawals)]

    @property
    def running(self) -> list[asyncio.Task[None]]:
        return [held.task for held in self._in_flight.values() if held.task is not None and not held.task.done()]

    async def stop_reading(self) -> None:
        """Fetch no more tasks, and return those that were requested; those in flight go on."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        with suppress(BusError):
            await self._consumer.close()

    async def close(self) -> None:
        """Cancel the tasks in flight, return them to the stream, and close the consumer."""
        running = self.running
        self._closing = True
        for task in (*running, *self._others):
            task.cancel()
        await asyncio.wait((*running, *self._others), timeout=CANCEL_SECONDS)
        await asyncio.gather(self._undecodable.stop(), self._too_large.stop())
        with suppress(BusError):
            await self._flush()
        for held in self._in_flight.values():
            with suppress(BusError):
                await self._consumer.nak(held.delivery)
            self._capacity.leave()
        self._in_flight.clear()

    # Fetch, heartbeat, acknowledge.

    async def _read(self) -> None:
        pause = FIRST_PAUSE
        while True:
            free = await self._capacity.free()
            try:
                deliveries = await self._consumer.fetch(free)
            except Exception as error:
                message, extra = "tasks cannot be fetched, retrying: %s", {"task": self._event_type}
                if isinstance(error, BusError):
                    outage_log.warn(logger, message, error, extra=extra)
                else:
                    logger.warning(message, error, exc_info=error, extra=extra)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                if not isinstance(error, BusUnavailable):
                    await self._renew()
                continue
            pause = FIRST_PAUSE
            loop = asyncio.get_running_loop()
            if fault_injection.armed:
                deliveries = await fault_injection.pass_deliveries(CrashPoint.WORKER_FETCHED, deliveries)
            for delivery in deliveries:
                if delivery.attempt > 1:
                    self.redelivered += 1
                held = self._in_flight.get(delivery.sequence)
                if held is not None:  # redelivered while it runs, as its ack_wait has expired
                    held.delivery = delivery
                    continue
                settles = self._bus.subjects.is_withdrawn(delivery.subject)
                held = self._in_flight[delivery.sequence] = InFlight(delivery, settles=settles)
                self._capacity.enter()
                held.task = loop.create_task(self._process(held))

    async def _renew(self) -> None:
        """Subscribe anew to the same consumer; tasks in flight go on."""
        with suppress(BusError):
            await self._consumer.close()
        with suppress(BusError):
            self._consumer = self._bus.consume(self._spec)

    async def _keep_alive(self) -> None:
        kept: asyncio.Task[None] | None = None
        try:
            while True:
                await self._clock.sleep(self._spec.ack_wait / 3)
                if self._in_flight:
                    with suppress(BusError):
                        await self._consumer.in_progress([held.delivery for held in self._in_flight.values()])
                if self._effects is not None and self._effects.acting and (kept is None or kept.done()):
                    kept = asyncio.get_running_loop().create_task(self._effects.keep_alive())
        finally:
            if kept is not None:
                kept.cancel()

    async def _acknowledge(self) -> None:
        while True:
            await self._any_settled.wait()
            self._any_settled.clear()
            try:
                await self._flush()
            except BusError as error:
                outage_log.warn(logger, "acknowledgements are retried: %s", error, extra={"task": self._event_type})
                await asyncio.sleep(FIRST_PAUSE)
                self._any_settled.set()

    async def _flush(self) -> None:
        batch, self._settled = self._settled, []
        try:
            if fault_injection.armed and batch:
                acks = await fault_injection.pass_deliveries(
                    CrashPoint.WORKER_ACK_BEFORE, [held.delivery for held in batch]
                )
                await self._consumer.ack(acks)
                await fault_injection.reach(CrashPoint.WORKER_ACK_AFTER, self._event_type)
            elif batch:
                await self._consumer.ack([held.delivery for held in batch])
        except BaseException:
            self._settled[:0] = batch
            raise
        for held in batch:
            self._release(held)

    def _release(self, held: InFlight) -> None:
        if self._in_flight.pop(held.delivery.sequence, None) is not None:
            self._capacity.leave()

    def _settle(self, held: InFlight) -> None:
        self._settled.append(held)
        self._any_settled.set()

    # One task.

    async def _process(self, held: InFlight) -> None:
        """Process one delivery until it is settled or returned to the stream."""
        delivery = held.delivery
        IN_FLIGHT.set(held)
        try:
            try:
                request = await self._request(delivery)
            except InvalidEnvelope as error:
                self._refuse(held, error)
                return
            LOG_CONTEXT.set(request)
            if delivery.trace:
                TRACE.set(delivery.trace)
                request.trace_id = trace_id_of(delivery.trace)
            await self._execute(held, request)
        except asyncio.CancelledError:
            if not self._closing:  # cancelled by its own handler; it is redelivered
                self._release(held)
            raise
        except TaskWithdrawn:
            self._counts.cancelled += 1
            logger.info("a task was cancelled: its request was withdrawn", extra={"task": self._event_type})
            self._settle(held)
        except Exception:
            logger.exception("a task could not be processed and is returned", extra={"task": self._event_type})
            await self._return(held, LONGEST_PAUSE)

    async def _request(self, delivery: Delivery) -> EventEnvelope:
        if delivery.content_type not in REFERENCE_TYPES:
            return read_request(delivery, self._bus.subjects, self._max_event_bytes)
        read = partial(delivered_in_full, self._bus, delivery)
        whole = await retrying(read, logger, first=FIRST_PAUSE, fields={"task": self._event_type})
        return read_request(whole, self._bus.subjects, len(whole.payload))

    def _refuse(self, held: InFlight, error: InvalidEnvelope) -> None:
        """Dead-letter a malformed request; it is acknowledged when that is durable, without taking capacity."""
        self._counts.put_aside += 1
        poison = self._too_large if isinstance(error, RequestTooLarge) else self._undecodable
        about = {"task": self._event_type, "correlation_id": self._bus.subjects.correlation_of(held.delivery.subject)}
        poison.add(held.delivery, str(error), partial(self._settle, held), about)
        self._release(held)

    async def _execute(self, held: InFlight, request: EventEnvelope) -> None:
        record = DeliveryRecord(self._bus.registry, self._event_type, held.delivery, request.id, self._executor.trusted)
        try:
            await self._attempt(held, request, record)
        except HeldBack as held_back:
            await record.interrupted()
            if held_back.answer is not None:
                await self._publish(request, held_back.answer)
            if held_back.delay is None:
                self._release(held)
            else:
                await self._return(held, held_back.delay)
        except asyncio.CancelledError:
            if self._closing:
                await record.interrupted()
            raise

    async def _attempt(self, held: InFlight, request: EventEnvelope, record: DeliveryRecord) -> None:
        if held.settles and not isinstance(self._effects, EffectExecutor):  # nothing is recorded of it
            self._settle(held)
            return
        if record.watched:
            await record.read()
        if record.answered:
            self._settle(held)
            return
        if self._executor.is_given_up(record.lost):
            error = TerminalError(given_up(record.lost))
            response = await self._failure(request, record, held.delivery.attempt, error)
            await self._dead_letter(held.delivery, "crashes-worker", str(error))
        else:
            try:
                run = self._run_alone if record.lost else self._run
                response = await run(request, record, held.delivery.attempt)
            except RetryableError as failure:
                # The stream delivers no withdrawn request again: what is recorded gets its end now.
                if not held.withdrawn and await self._retry(held, request, record, failure):
                    return
                response = await self._failure(request, record, held.delivery.attempt, failure)
        if response is not None:
            await self._publish(request, response)
            if fault_injection.armed:
                await fault_injection.reach(CrashPoint.WORKER_ANSWER_AFTER, response.to_wire()["id"])
        await record.done()
        self._settle(held)

    async def _run(self, request: EventEnvelope, record: DeliveryRecord, attempt: int) -> Response | None:
        async with self._capacity.slots:
            if fault_injection.armed:
                await fault_injection.reach(CrashPoint.WORKER_HANDLE_BEFORE, request.id)
            if attempt == 1 and IN_FLIGHT.get().withdrawn:
                raise TaskWithdrawn
            if self._effects is not None:
                return await self._effects.run(request, record, attempt)
            if RESOLUTION in request.metadata:  # its data are none of a task
                return self._executor.failure(request, TerminalError("the task has no recorded effect"))
            await record.begin()
            return await self._executor.run(request, attempt)

    async def _run_alone(self, request: EventEnvelope, record: DeliveryRecord, attempt: int) -> Response | None:
        """Run tasks during which processes have died one at a time, in random order.

        They are redelivered together: one that kills its process would otherwise interrupt the same others each time.
        """
        await asyncio.sleep(random.random() * SHUFFLE_SECONDS)
        async with self._capacity.suspects:
            return await self._run(request, record, attempt)

    async def _failure(
        self, request: EventEnvelope, record: DeliveryRecord, attempt: int, error: Exception
    ) -> Response | None:
        """Make the response of a task that gets no further attempt."""
        if self._effects is None:
            return self._executor.failure(request, error)
        return await self._effects.run(request, record, attempt, abandoned=error)

    async def _dead_letter(self, delivery: Delivery, reason: str, detail: str) -> None:
        about = {"task": self._event_type, "correlation_id": self._bus.subjects.correlation_of(delivery.subject)}
        logger.warning("a request becomes a dead letter: %s", detail, extra=about | {"reason": reason})
        await self._patiently(lambda: self._bus.dead_letters.put(delivery, reason, redact(detail)))
        self._counts.put_aside += 1

    async def _retry(
        self, held: InFlight, request: EventEnvelope, record: DeliveryRecord, error: RetryableError
    ) -> bool:
        """Return a task to the stream for a retry; False when it has no attempts left."""
        if not await record.may_try_again(self._capacity.worker.max_attempts):
            return False
        attempt, delay = held.delivery.attempt, error.retry_after
        if delay is None:
            delay = min(FIRST_RETRY * 2 ** min(record.tried, 10), LONGEST_RETRY)
        await record.try_again(max(delay, 0.0))
        self._counts.retried += 1
        logger.info("task is tried again in %g s", delay, extra=self._executor.about(request) | {"attempt": attempt})
        await self._return(held, max(delay, 0.0))
        return True

    async def _return(self, held: InFlight, delay: float) -> None:
        self._release(held)
        with suppress(BusError):  # then it is redelivered after ack_wait
            await self._consumer.nak(held.delivery, delay)

    async def _publish(self, request: EventEnvelope, response: Response) -> None:
        """Publish a response, retrying without limit; one that cannot be sent is replaced by a failure that says so."""
        try:
            for _ in range(await self._copies(response)):
                sending = self._send_fast(response)
                if sending is None:
                    break
                await sending
            else:
                return
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject):
            pass  # raised again below, with the whole envelope
        except BusError as error:
            outage_log.warn(logger, "retrying: %s", error, extra={"task": self._event_type})
            await asyncio.sleep(FIRST_PAUSE)
        event = response.to_envelope()
        try:
            await self._patiently(lambda: self._send(event))
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            failure = self._executor.failure(request, TerminalError(f"the response cannot be sent: {error}"))
            if failure is not None:  # of the response's id, request and effect
                fields = failure.to_wire()
                event = event.model_copy(update={"type": fields["type"], "data": fields["data"]})
                await self._patiently(lambda: self._send(event))

    def _send_fast(self, response: Response) -> asyncio.Future[list[int]] | None:
        """Send a response to a plan without an envelope; None for other topics, and for one that may be too large."""
        bus, fields = self._bus, response.to_wire()
        if fields["topic"] != EventTopic.ACTION_RESULTS:
            return None
        payload, content_type = bus.encode(response)
        if len(payload) > self._max_event_bytes:
            return None
        subject = bus.subjects.event(fields["topic"], fields["correlation_id"], fields["type"])
        return bus.begin_emit((Publish(subject, payload, fields["id"], content_type, "", TRACE.get()),))

    async def _send(self, response: EventEnvelope) -> None:
        await self._bus.publish(response, trace=TRACE.get())

    async def _copies(self, response: Response) -> int:
        if not fault_injection.armed:
            return 1
        copies = await fault_injection.reach(CrashPoint.WORKER_HANDLE_AFTER, response.to_wire()["id"])
        if not copies:
            raise BusUnavailable("a crash point has lost the response")
        return copies

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        await retrying(act, logger, first=FIRST_PAUSE, fields={"task": self._event_type})
