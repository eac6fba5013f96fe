"""EffectExecutor and EffectAttempt: tasks whose effects have a record in the ledger.

The record is written before the handler is called, and again with the outcome; the answer is sent after that. What is
read decides nothing by itself but the repetition of an outcome, since it may come from a replica that lags: an act
begins only after a compare-and-set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from plancast.app_code import contained
from plancast.effects.effect import Effect, Outcome, address_of, idempotency_key
from plancast.effects.ledger import EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast.effects.wire import RESOLUTION, EffectNote, attempt_in
from plancast.errors import NotBegun, RetryableError, TerminalError
from plancast.plan.event_fields import error_text
from plancast.settings import WorkerSettings
from plancast.worker import TaskContext, TaskDefinition
from plancast_actors.workers.delivery_record import DeliveryRecord
from plancast_actors.workers.effect_answer import answer_of, failure_of, is_of_plan
from plancast_actors.workers.effect_delivery import (
    LONGEST_WAIT,
    EffectDelivery,
    EffectRequests,
    HeldBack,
    address_in,
)
from plancast_actors.workers.executor import TaskExecutor, UnsendableResult, sendable
from plancast_actors.workers.responses import Response, make_response, response_event_of
from plancast_actors.workers.withdrawals import IN_FLIGHT, TaskWithdrawn
from plancast_bus.clock import Clock
from plancast_bus.errors import InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.registry import Registry

logger = logging.getLogger(__name__)
MAX_WITHDRAWN: Final = 16
"""Withdrawn requests that a record remembers."""
_NO_END: Final = "an attempt was begun, and its end is not known"


class EffectExecutor(EffectRequests):
    """Executes the tasks of one type whose effects are recorded.

    Args:
        executor: Calls the handlers.
        registry: Where the records are stored.
        settings: How long they are kept, and when a task is delivered again.
        clock: Their time.
    """

    def __init__(self, executor: TaskExecutor, registry: Registry, settings: WorkerSettings, clock: Clock) -> None:
        self.definition: TaskDefinition = executor.definition
        ledger = EffectLedger(registry, self.definition.event_type, settings.effects_seconds)
        super().__init__(executor, ledger, settings.ack_wait, clock)

    async def run(
        self, request: EventEnvelope, record: DeliveryRecord, attempt: int, abandoned: Exception | None = None
    ) -> Response | None:
        """Execute a task, or a person's decision about the effect of one, and make the response.

        Args:
            request: The request.
            record: That of its delivery.
            attempt: Number of the delivery.
            abandoned: Why there are no more attempts: the outcome is recorded without a further one.

        Raises:
            HeldBack: another delivery is at work on the effect.
            RetryableError: the handler or the look-up asks for a retry.
        """
        settles = IN_FLIGHT.get().settles
        if RESOLUTION in request.metadata:
            if settles:
                return None
            given = request.metadata[RESOLUTION]
            address = address_in(given)
            if address is None or given.get("outcome") not in ("done", "not_done", "give_up"):
                return self.executor.failure(request, TerminalError("the decision about an effect is invalid"))
            try:
                return await EffectAttempt(self, request, address, "", record, attempt, abandoned, given).run()
            except TerminalError as error:
                return self.executor.failure(request, error)
        effect: Any = self.definition.effect
        assert isinstance(effect, Effect)
        try:
            task = TaskContext(request, attempt)
            key, fields = effect.key_of(task), effect.fields_of(task)
            key.encode()  # a function may return text that no record can hold
        except Exception as error:  # nothing was done, and there is no effect to name
            if isinstance(error, RetryableError) and abandoned is None:
                raise
            return None if settles else self.executor.failure(request, error)
        address = address_of(effect, request, key, fields)
        if settles:
            return await Settlement(self, request, address, key, record, attempt, abandoned).run()
        of_delivery = EffectAttempt(self, request, address, key, record, attempt, abandoned)
        return await of_delivery.run(is_new=attempt == 1 and abandoned is None)


class EffectAttempt(EffectDelivery):
    """One delivery of a request whose effect is recorded."""

    def __init__(
        self,
        of: EffectExecutor,
        request: EventEnvelope,
        address: str,
        key: str,
        delivery: DeliveryRecord,
        deliveries: int,
        abandoned: Exception | None = None,
        decision: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(of, address, deliveries)
        self._definition = of.definition
        self._delivered = request
        self._request = request
        """The request that is acted on: for a person's decision the one that it is about."""
        self._key = key
        self._delivery = delivery
        self._abandoned = abandoned
        self._decision = decision
        self._end: EffectRecord | None = None
        """The record of the end of the attempt that this delivery has made."""

    async def _step(self, record: EffectRecord | None, version: int) -> Response | None:
        if self._end is not None:
            return await self._settled_late(self._end, record, version)
        if self._decision is not None:
            if record is None or record.state is EffectState.WITHDRAWN or not is_of_plan(record, self._delivered):
                self._refuse("the decision about an effect is refused: the plan has no such effect")
            about = attempt_in(self._decision)
            if record.attempt < about:
                self._refuse("the decision about an effect is refused: there was no such attempt")
            self._request, self._key = record.envelope, record.key
            # One that is delivered again says nothing of how an attempt has ended that was begun since.
            if record.state is EffectState.UNKNOWN and (record.attempt == about or not about):
                return await self._resolve(self._decision, record, version)
        if record is None:
            return await self._begin(None, version)
        if self._delivered.id in record.withdrawn:
            raise TaskWithdrawn
        if record.state is EffectState.WITHDRAWN:
            return await self._begin(record, version)
        own = record.task == self._task
        if record.state is EffectState.BEGUN:
            if record.writer == self._writer:  # the write has succeeded, and its acknowledgement was lost
                return await self._write_and_act(record, version)
            if record.begun_by == self._delivered.id:
                return await self._reconcile(record, version)
            if not self._is_lost(record):
                raise HeldBack(self._deliveries)
            if own:
                return await self._reconcile(record.asked_by(self._request), version)
            return await self._settle_for_owner(record, version)
        if not own and record.state is EffectState.UNKNOWN:
            raise HeldBack(self._deliveries, self._news(record), LONGEST_WAIT)
        if not own and record.state is EffectState.UNDOING:
            raise HeldBack(self._deliveries)
        if own and record.state is EffectState.FAILED and record.request_id != self._request.id:
            return await self._begin(record, version)
        if own and record.state is EffectState.UNKNOWN and record.request_id != self._request.id:
            # The plan has asked again: what becomes known later is the answer to its last request.
            record = self._moved(record.asked_by(self._request), EffectState.UNKNOWN)
            await self._write(record, version)
        return self._answer(record)

    @property
    def _repeats(self) -> bool:
        effect = self._definition.effect
        return effect is not None and effect.repeat == "safe"

    @property
    def _task(self) -> str:
        return idempotency_key(self._request)

    # Begin, act, end.

    async def _begin(self, before: EffectRecord | None, version: int) -> Response | None:
        begun = EffectRecord(
            state=EffectState.BEGUN,
            task=self._task,
            key=self._key,
            attempt=before.attempt + 1 if before is not None else 1,
            request_id=self._request.id,
            request=pack(self._request.to_wire()),
            begun_by=self._delivered.id,
            writer=self._writer,
            at=self._clock.time(),
            withdrawn=before.withdrawn if before is not None else (),
        )
        if self._abandoned is not None:
            return await self._fail(begun, version, self._abandoned)
        await self._delivery.begin()
        return await self._write_and_act(begun, version)

    async def _write_and_act(self, begun: EffectRecord, version: int) -> Response | None:
        begun, version = await self._write_fresh(begun, version)
        try:
            event_type, data = await self._act(partial(self._executor.answer, self._request, self._deliveries))
            if event_type is None:  # what is sent is checked by the executor
                data = sendable(data)
        except UnsendableResult as error:
            return await self._done_without_result(begun, version, error)
        except TerminalError as error:
            return await self._fail(begun, version, error)
        except RetryableError as error:
            if isinstance(error, NotBegun) and await self._take_back():
                raise
            if self._repeats or (self._definition.look_up is not None and not await self._is_overtaken(begun)):
                raise
            if self._definition.look_up is not None:
                return await self._end_overtaken(begun, version, error)
            return await self._leave_unknown(
                begun, version, "an attempt has asked for a retry, and its end is not known"
            )
        except Exception as error:
            if self._repeats:
                return await self._fail(begun, version, error)
            if await self._is_overtaken(begun):
                return await self._end_overtaken(begun, version, error)
            return await self._end_by_look_up(begun, version, error)
        return await self._done(begun, version, event_type, data)

    async def _take_back(self) -> bool:
        """Write that the attempt has begun nothing; False if an earlier one has, or may have."""
        assert self._acting is not None
        begun, version = self._acting
        if begun.answer is not None or begun.reason:
            return False
        await self._write(self._moved(begun, EffectState.WITHDRAWN), version)
        return True

    async def _is_overtaken(self, begun: EffectRecord) -> bool:
        """True if another process has begun a further attempt, and perhaps settled the request."""
        record, _ = await self._of.ledger.read(self._address)
        return record is not None and record.task == begun.task and record.attempt > begun.attempt

    async def _end_overtaken(self, begun: EffectRecord, version: int, error: Exception) -> Response | None:
        """End an attempt by its look-up now: its request is perhaps not delivered again."""
        try:
            return await self._end_by_look_up(begun, version, error)
        except RetryableError as failure:
            return await self._leave_unknown(begun, version, str(failure))

    async def _reconcile(self, begun: EffectRecord, version: int) -> Response | None:
        """Go on after an attempt of an earlier delivery whose end is not known."""
        if begun.answer is not None:  # an earlier attempt has done it meanwhile
            return await self._leave_unknown(begun, version, _NO_END)
        if self._abandoned is not None:
            return await self._abandon(begun, version, self._abandoned)
        outcome = await self._look_up(begun)
        if outcome.kind == "done":
            return await self._done_as_found(begun, version, outcome)
        if outcome.kind == "not_done" or self._repeats:
            return await self._begin(begun, version)
        return await self._leave_unknown(begun, version, outcome.reason or _NO_END)

    async def _settle_for_owner(self, record: EffectRecord, version: int) -> Response | None:
        """Find out what became of a lost attempt at another task of the key, whose request may be withdrawn.

        Raises:
            HeldBack: always: the record then says what this task is answered with.
        """
        me, self._request = self._request, record.envelope
        try:
            try:
                outcome = await self._look_up(record)
            except RetryableError as failure:
                outcome = Outcome.unknown(str(failure))
            error = TerminalError("the process of its attempt was lost")
            answer = await self._end_as_found(record, version, error, outcome)
        finally:
            self._request = me
        raise HeldBack(self._deliveries, answer)

    async def _abandon(self, begun: EffectRecord, version: int, error: Exception) -> Response | None:
        if not isinstance(error, RetryableError):  # processes died during it: the look-up may be the reason
            outcome = Outcome.unknown(str(error))
        else:
            try:
                outcome = await self._look_up(begun)
            except RetryableError as failure:
                return await self._leave_unknown(begun, version, str(failure))
        if outcome.kind == "unknown" and self._repeats:
            return await self._fail(begun, version, error)
        return await self._end_as_found(begun, version, error, outcome)

    async def _end_by_look_up(self, begun: EffectRecord, version: int, error: Exception) -> Response | None:
        return await self._end_as_found(begun, version, error, await self._look_up(begun))

    async def _end_as_found(
        self, begun: EffectRecord, version: int, error: Exception, outcome: Outcome
    ) -> Response | None:
        if outcome.kind == "done":
            return await self._done_as_found(begun, version, outcome)
        if outcome.kind == "not_done":
            return await self._fail(begun, version, error)
        return await self._leave_unknown(begun, version, outcome.reason or error_text(error))

    async def _look_up(self, begun: EffectRecord) -> Outcome:
        """Ask the app's look-up; without one the outcome is unknown.

        Raises:
            RetryableError: it has failed.
        """
        look_up = self._definition.look_up
        if look_up is None:
            return Outcome.unknown()
        await self._delivery.begin()
        task = TaskContext(begun.envelope, self._deliveries)
        try:
            outcome = await contained(partial(self._executor.call, look_up, self._request, task))
        except RetryableError:
            raise
        except Exception as error:
            raise RetryableError(f"the look-up has failed: {error_text(error)}") from error
        if not isinstance(outcome, Outcome):
            raise RetryableError(f"the look-up has returned {outcome!r:.80}, allowed: an Outcome")
        return outcome

    async def _resolve(self, decision: dict[str, Any], record: EffectRecord, version: int) -> Response | None:
        """Do what a person has decided about an unknown effect."""
        match decision["outcome"]:
            case "done":
                data = self._delivered.data
                result = data.get("result") if isinstance(data, Mapping) else None
                return await self._done_as_found(record, version, Outcome.done(result))
            case "not_done" if record.request_id in record.withdrawn:
                return await self._fail(record, version, TerminalError("it was not done, and its request is withdrawn"))
            case "not_done":
                return await self._begin(record, version)
            case _:
                return await self._fail(record, version, TerminalError("given up: it is not known whether it was done"))

    # The outcome.

    async def _done_as_found(self, begun: EffectRecord, version: int, outcome: Outcome) -> Response | None:
        try:
            data = sendable(outcome.result)
        except UnsendableResult as error:
            return await self._done_without_result(begun, version, error)
        return await self._done(begun, version, response_event_of(self._request, self._definition), data)

    async def _done(self, begun: EffectRecord, version: int, event_type: str | None, data: Any) -> Response | None:
        done = self._moved(begun, EffectState.DONE, answer=(event_type or "", data), reason="")
        try:
            return await self._finish(done, version)
        except (InvalidEnvelope, PayloadTooLarge) as error:
            failure = UnsendableResult(f"the handler's result cannot be sent: {error}")
            return await self._done_without_result(begun, version, failure)

    async def _done_without_result(self, begun: EffectRecord, version: int, error: Exception) -> Response | None:
        self._executor.log_failure(self._request, error)
        answer = failure_of(self._request, self._definition, error_text(error))
        return await self._finish(
            self._moved(begun, EffectState.DONE, answer=answer, reason=error_text(error)), version
        )

    async def _fail(self, begun: EffectRecord, version: int, error: Exception) -> Response | None:
        self._executor.log_failure(self._request, error)
        answer = failure_of(self._request, self._definition, error_text(error))
        return await self._finish(self._ended(begun, EffectState.FAILED, answer), version)

    async def _leave_unknown(self, begun: EffectRecord, version: int, reason: str) -> Response | None:
        reason = error_text(reason)  # of the app: it may hold what no record can, and credentials
        logger.warning("the outcome of a task is not known: %s", reason, extra=self._executor.about(self._request))
        return await self._finish(self._ended(begun, EffectState.UNKNOWN, begun.answer, reason), version)

    def _ended(
        self, begun: EffectRecord, state: EffectState, answer: tuple[str, Any] | None, reason: str = ""
    ) -> EffectRecord:
        """The record of an attempt's end; whatever that is, it is done if an earlier attempt has done it meanwhile, and
        not known to have failed if the end of one is not known."""
        if begun.state is EffectState.BEGUN and begun.answer is not None and state is not EffectState.DONE:
            state, answer, reason = EffectState.DONE, begun.answer, ""
        elif begun.state is EffectState.BEGUN and begun.reason and state is EffectState.FAILED:
            state, answer, reason = EffectState.UNKNOWN, None, begun.reason
        return self._moved(begun, state, answer=answer, reason=reason)

    async def _finish(self, end: EffectRecord, version: int) -> Response | None:
        if self._acting is not None:  # else nothing was done here, and after a conflict all is decided anew
            self._end = end
        await self._write(end, version)
        return self._answer(end)

    async def _settled_late(self, end: EffectRecord, record: EffectRecord | None, version: int) -> Response | None:
        """Record the end of this delivery's attempt although another process has written since.

        A known outcome replaces an unknown one, and one that was done replaces everything that says less.
        """
        if record is None:
            return await self._finish(end, version)
        if record.writer == self._writer and record.state is end.state:
            return self._answer(record)
        is_later = record.task == end.task and record.attempt > end.attempt
        if is_later and record.state is EffectState.BEGUN and end.state is not EffectState.FAILED:
            # Answered, and perhaps undone, at the end of that attempt only. Its process keeps the request alive.
            told = {"answer": end.answer or record.answer, "reason": end.reason or record.reason}
            await self._write(self._moved(record, EffectState.BEGUN, **told), version)
            raise HeldBack(self._deliveries, longest=None)
        if is_later and record.state is EffectState.FAILED and end.state is EffectState.UNKNOWN:
            # Numbered like a further attempt: its plan has been told that this one has failed.
            unknown = self._moved(
                record, EffectState.UNKNOWN, attempt=record.attempt + 1, answer=None, reason=end.reason
            )
            await self._write(unknown, version)
            return self._answer(unknown)
        same = record.task == end.task and record.attempt == end.attempt
        replaced: tuple[EffectState, ...] = ()
        if end.state is EffectState.DONE and record.task == end.task:
            replaced = (EffectState.BEGUN, EffectState.UNKNOWN, EffectState.FAILED)
        elif same:
            replaced = (EffectState.BEGUN, EffectState.UNKNOWN)[: 1 + (end.state is EffectState.FAILED)]
        if record.state in replaced:
            late = self._ended(record, end.state, end.answer, end.reason)
            await self._write(late, version)
            return self._answer(late, suffix=":late" if record.state is EffectState.FAILED else "")
        if record.state is EffectState.BEGUN or record.task != end.task:
            raise HeldBack(self._deliveries)
        return self._answer(record)

    def _news(self, record: EffectRecord) -> Response | None:
        """The answer that tells the plan which other task's effect this one waits for; None if it was sent before."""
        answer = self._answer(record)
        return answer if answer is not None and self._of.is_news(answer.to_wire()["id"]) else None

    def _answer(self, record: EffectRecord, suffix: str = "") -> Response | None:
        if record.state is EffectState.DONE:
            self._executor.counts.answered += 1
        return answer_of(record, self._address, self._request, self._definition, suffix)


class Settlement(EffectAttempt):
    """One delivery of the copy of a withdrawn request: nothing is begun any more, and what was begun gets an end."""

    async def _step(self, record: EffectRecord | None, version: int) -> Response | None:
        of_request = record is not None and record.request_id == self._request.id
        own = record is not None and record.task == self._task
        if record is None or record.state is EffectState.WITHDRAWN:
            await self._forbid(record, EffectState.WITHDRAWN, version)
            return self._without_effect("withdrawn")
        if own and record.state is EffectState.FAILED and not of_request:  # a further attempt may have been fetched
            await self._forbid(record, EffectState.FAILED, version)
            return self._without_effect("withdrawn")
        if not own:  # what was read may be out of date, but the effect stays that of the other task
            return self._without_effect("withdrawn" if is_of_plan(record, self._request) else "failed")
        if record.state is not EffectState.BEGUN:
            return self._answer(record)
        if not self._is_lost(record):
            raise HeldBack(self._deliveries, longest=LONGEST_WAIT)
        if record.begun_by == self._request.id:
            return await self._settle(record, version)
        raise HeldBack(self._deliveries)  # the request that has begun it goes on, or is settled

    async def _forbid(self, before: EffectRecord | None, state: EffectState, version: int) -> None:
        """Write that the request is not to begin, also if another process has fetched it."""
        if before is None:
            before = EffectRecord(state, self._task, self._key).asked_by(self._request)
        if self._request.id not in before.withdrawn:
            await self._write(self._moved(before, state, withdrawn=self._withdrawn(before)), version)

    async def _settle(self, begun: EffectRecord, version: int) -> Response | None:
        """Find out what became of an attempt whose process is gone; it is not repeated, even where it could be."""
        begun = begun._replace(withdrawn=self._withdrawn(begun))
        error = TerminalError("the process of its attempt was lost, and its request is withdrawn")
        if self._abandoned is not None:
            return await self._leave_unknown(begun, version, error_text(self._abandoned))
        return await self._end_by_look_up(begun, version, error)

    def _withdrawn(self, record: EffectRecord) -> tuple[str, ...]:
        return (*record.withdrawn, self._request.id)[-MAX_WITHDRAWN:]

    def _without_effect(self, outcome: str) -> Response | None:
        """The answer to a request of which nothing was begun; one that waited for another plan's effect has failed."""
        reason = "its request was withdrawn before it began"
        event_type, data = failure_of(self._request, self._definition, reason)
        if not event_type:
            return None
        note = EffectNote(self._address, self._key, outcome, event_type=self._definition.event_type)
        return make_response(self._request, self._definition, event_type, data, note.metadata(), ":withdrawn")
