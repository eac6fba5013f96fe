"""UndoExecutor: undoes effects that are done, each by the handler of :meth:`Worker.compensate`."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Final

from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast.effects.wire import UNDO, EffectNote
from plancast.errors import RetryableError, TerminalError
from plancast.plan.event_fields import error_text
from plancast.settings import WorkerSettings
from plancast.worker import TaskContext
from plancast_actors.workers.delivery_record import DeliveryRecord
from plancast_actors.workers.effect_answer import failure_of, is_of_plan
from plancast_actors.workers.effect_delivery import EffectDelivery, EffectRequests, HeldBack, address_in
from plancast_actors.workers.executor import TaskExecutor
from plancast_actors.workers.responses import Response, make_response, response_event_of
from plancast_bus.clock import Clock
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.registry import Registry

MAX_FAILED: Final = 16
"""Failed requests for its undo that a record remembers."""


class UndoContext(TaskContext):
    """The task that was done, with the idempotency key of its undo."""

    @property
    def idempotency_key(self) -> str:
        """Key for services that take one: the same for all attempts at undoing this task."""
        return sha256(f"undo:{super().idempotency_key}".encode()).hexdigest()[:40]


class UndoExecutor(EffectRequests):
    """Executes the requests that undo the effects of one task type."""

    def __init__(self, executor: TaskExecutor, registry: Registry, settings: WorkerSettings, clock: Clock) -> None:
        ledger = EffectLedger(registry, executor.definition.undoes, settings.effects_seconds)
        super().__init__(executor, ledger, settings.ack_wait, clock)

    async def run(
        self, request: EventEnvelope, record: DeliveryRecord, attempt: int, abandoned: Exception | None = None
    ) -> Response | None:
        """Undo an effect, and make the response; arguments and errors as of :meth:`EffectExecutor.run`."""
        address = address_in(request.metadata.get(UNDO))
        if address is None:
            return self.executor.failure(request, TerminalError("the request names no effect to undo"))
        try:
            return await UndoAttempt(self, request, address, record, attempt, abandoned).run()
        except (HeldBack, RetryableError):
            raise
        except TerminalError as error:
            return self.executor.failure(request, error)


class UndoAttempt(EffectDelivery):
    """One delivery of a request to undo an effect."""

    def __init__(
        self,
        of: UndoExecutor,
        request: EventEnvelope,
        address: str,
        delivery: DeliveryRecord,
        deliveries: int,
        abandoned: Exception | None,
    ) -> None:
        super().__init__(of, address, deliveries)
        self._request = request
        self._delivery = delivery
        self._abandoned = abandoned
        self._called = False
        """True if the handler has undone the effect."""
        self._error: Exception | None = abandoned
        """Why the handler is not called again."""

    async def _step(self, record: EffectRecord | None, version: int) -> Response | None:
        if record is None or not is_of_plan(record, self._request):
            self._refuse("there is nothing to undo: the plan has no such effect, or its record has expired")
        own = record.undo == self._request.id
        if not own and not self._called and self._request.id in record.failed_undos:
            raise TerminalError("this undo has failed, and another request has taken its place")
        match record.state:
            case EffectState.UNDONE:
                return self._answer(record)
            case EffectState.DONE if own and record.reason and not self._called:  # only the answer was lost
                return self._answer(record)
            case EffectState.UNDOING if not own and not self._is_lost(record):
                raise HeldBack(self._deliveries)
            case EffectState.UNDOING | EffectState.DONE:
                pass
            case _:
                self._refuse(f"there is nothing to undo: the effect is {record.state}")
        if self._called:
            return await self._end(record, version, EffectState.UNDONE, "")
        if self._error is not None:
            taken_over = record.state is EffectState.UNDOING and record.writer != self._writer
            if taken_over and self._abandoned is None:
                raise HeldBack(self._deliveries)
            return await self._fail(record, version, self._error)
        return await self._undo(record, version)

    async def _undo(self, record: EffectRecord, version: int) -> Response | None:
        await self._delivery.begin()
        undoing = self._moved(record, EffectState.UNDOING, undo=self._request.id, reason="")
        undoing, version = await self._write_fresh(undoing, version)
        task = UndoContext(record.envelope, self._deliveries)
        result = record.answer[1] if record.answer is not None else None
        handler = self._executor.definition.handler
        try:
            await self._act(partial(self._executor.call, handler, self._request, task, result))
        except RetryableError:
            raise
        except Exception as error:
            self._error = error
            return await self._fail(undoing, version, error)
        self._called = True
        return await self._end(undoing, version, EffectState.UNDONE, "")

    async def _fail(self, record: EffectRecord, version: int, error: Exception) -> Response | None:
        self._executor.log_failure(self._request, error)
        return await self._end(record, version, EffectState.DONE, error_text(error))

    async def _end(self, record: EffectRecord, version: int, state: EffectState, reason: str) -> Response | None:
        failed = record.failed_undos
        if state is EffectState.DONE:
            failed = (*(each for each in failed if each != self._request.id), self._request.id)[-MAX_FAILED:]
        ended = self._moved(record, state, undo=self._request.id, reason=reason, failed_undos=failed)
        await self._write(ended, version)
        if state is EffectState.UNDONE:
            self._executor.counts.answered += 1
        return self._answer(ended)

    def _answer(self, record: EffectRecord) -> Response | None:
        definition, event_type = self._executor.definition, response_event_of(self._request, self._executor.definition)
        data: dict[str, object] = {"success": True, "key": record.key}
        if record.state is not EffectState.UNDONE:
            event_type, data = failure_of(self._request, definition, record.reason)
        if not event_type:
            return None
        note = EffectNote(self._address, record.key, record.state.value, undo=True, event_type=definition.undoes)
        return make_response(self._request, definition, event_type, data, note.metadata())
