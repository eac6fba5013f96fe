"""TracedTaskReader: a task reader that makes a span of each task. Used where tracing is on."""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import SpanKind

from plancast.errors import RetryableError
from plancast.telemetry.trace_scope import WORK
from plancast.telemetry.tracing import Tracing, processing
from plancast_actors.workers.delivery_record import DeliveryRecord
from plancast_actors.workers.reader import TaskReader
from plancast_actors.workers.withdrawals import InFlight
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.events.trace_context import trace_id_of


class TracedTaskReader(TaskReader):
    """Reads tasks of one type; a task's span lasts until its response is durable."""

    def __init__(self, tracing: Tracing, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tracing = tracing

    async def _execute(self, held: InFlight, request: EventEnvelope) -> None:
        delivery = held.delivery
        about = processing(request, self._bus.subjects, delivery.payload, self._spec.name)
        about["plancast.worker"] = self._capacity.worker.name
        if request.plan_id:
            about["plancast.plan_id"] = request.plan_id
        if delivery.attempt > 1:
            about["plancast.attempt"] = delivery.attempt
        work = self._tracing.begin(f"task {request.type}", SpanKind.CONSUMER, about, delivery.trace)
        if work.trace:
            request.trace_id = trace_id_of(work.trace)
        try:
            with self._tracing.within(work):
                await super()._execute(held, request)
        except BaseException as error:
            work.fail(type(error).__name__)
            raise
        finally:
            work.end()

    async def _retry(
        self, held: InFlight, request: EventEnvelope, record: DeliveryRecord, error: RetryableError
    ) -> bool:
        again = await super()._retry(held, request, record, error)
        if again and (work := WORK.get()) is not None:
            work.fail(type(error).__name__)
        return again
