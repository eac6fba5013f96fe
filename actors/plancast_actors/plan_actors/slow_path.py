"""SlowTurn: one event taken by a task, through load, run, commit and emit, with every failure on the way."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakMethod

from plancast.context import GoalContext
from plancast.errors import InvalidGoal, RetryableError, TerminalError, UnstorablePlan
from plancast.plan.event_fields import error_text
from plancast.plan_tree import KEPT_SECONDS, Place
from plancast.telemetry.logging import LOG_CONTEXT, event_fields
from plancast.telemetry.redaction import redact
from plancast.turn.dependencies import UNKNOWN, answer_follower, is_follow
from plancast.turn.rollback import answer_unknown, is_rollback
from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.plan_actors.activation import EXPIRED, Activation, digest_of
from plancast_actors.plan_actors.backlog import Backlog
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_actors.telemetry.samples import laps_of
from plancast_bus import fault_injection, outage_log
from plancast_bus.errors import BusUnavailable, CommitConflict, InvalidEnvelope, PayloadTooLarge
from plancast_bus.event_data import in_full
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.lazy_object import NotLoaded
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.effects import Publish
from plancast_bus.ports.trees import tree_name
from plancast_bus.ports.values import HeldValues

logger = logging.getLogger(__name__)
MAX_DELIVERIES = 1_000
"""Deliveries after which an event for an unknown plan is dead-lettered, however long it has waited."""


class Interrupted(Exception):
    """Raised when a cancellation has stopped the handler of a turn; the turn leaves no trace."""


class UndecodableEvent(Exception):
    """Raised when an event cannot be decoded; says why."""


class SlowTurn:
    """Takes one event.

    Args:
        state: The plan.
        inbound: The event.
        run: Runs a turn; raises :class:`Interrupted`.
    """

    def __init__(self, state: Activation, inbound: Inbound, run: Callable[[Turn], Awaitable[TurnOutcome]]) -> None:
        self._state = state
        self._host = state.host
        self._inbound = inbound
        self._run_turn = run
        self._done = Outcome(inbound.token, "done", 0.0)
        self._event: EventEnvelope
        self._is_timer = self._in_full = False
        self._whole = b""
        """The event with its data in full, where its data is a reference."""
        self._held: HeldValues | None = None
        """The values of that data, which the plan's checkpoint may refer to."""
        self._digest = b""
        self._backlog: Backlog | None = None
        """Undelivered events of the plan; read before a timer times a request out."""
        self._backlog_was_read = False
        self._has_turn = False
        """The event had a turn already."""

    async def take(self) -> Outcome:
        """Take the event, from the checkpoint if need be; returns what becomes of its delivery.

        Raises:
            UndecodableEvent: nothing was done.
            Interrupted: a cancellation is to be taken first, then this event again.
        """
        try:
            outcome = await self._take()
            if outcome.kind == "retry":
                self._state.turn_failed("retry")
            return outcome
        except BaseException as error:
            self._state.turn_failed(type(error).__name__)
            raise
        finally:
            self._state.turn_ended()

    async def crashed(self, error: BaseException) -> Outcome:
        """Handle an unexpected error (a defect of plancast): retry the event, and fail its plan after some attempts."""
        logger.error("turn crashed", exc_info=error, extra=self._place())
        self._state.unload()
        attempts = self._host.settings.hosts.max_turn_attempts
        retry = self._retry(attempts)
        if retry is not None:
            self._state.need_none()
            return retry
        detail = f"the event could not be handled in {attempts} attempts: {error_text(error)}"
        try:
            await self._dead_letter("crashes-turn", detail)
            await self._fail_without_running(detail)
        except Exception as failure:
            logger.error("its plan cannot be failed either", exc_info=failure, extra={"subject": self._inbound.subject})
            self._state.unload()
        finally:
            self._state.need_none()
            self._state.turn_ended()
        return self._done

    async def _take(self) -> Outcome:
        inbound, host = self._inbound, self._host
        LOG_CONTEXT.set(None)  # log records must not name the event before
        if inbound.crash_reason:
            await self._dead_letter("crashes-host", inbound.crash_reason)
            await self._fail_without_running(inbound.crash_reason)
            return self._done
        if early := host.retries.early(inbound, host.clock.time()):
            return Outcome(inbound.token, "retry", early)
        await self._load_owner()
        try:
            await self._read()
        except InvalidEnvelope as error:
            raise UndecodableEvent(str(error)) from error
        self._set_log_context()
        self._state.laps = laps_of(host.samples, inbound.token)
        if fault_injection.armed and self._is_timer:
            await fault_injection.reach(CrashPoint.TIMER_DUE, self._state.correlation_id)
        while (outcome := await self._attempt()) is None:
            pass
        return outcome

    async def _load_owner(self) -> None:
        """Load the plan of an event whose data is stored apart: they are read with its tenant."""
        if self._inbound.content_type in REFERENCE_TYPES and not self._state.loaded:
            await self._state.patiently(self._state.load)

    async def _read(self) -> None:
        """Decode the event, and read its data if it is stored apart."""
        inbound, state, bus = self._inbound, self._state, self._host.bus
        if inbound.content_type in REFERENCE_TYPES:
            tenant = state.plan.tenant_id if state.plan is not None else None
            held: list[HeldValues] = []
            now = self._host.clock.time()
            read = partial(in_full, bus, inbound.payload, inbound.content_type, tenant=tenant, read_at=now, held=held)
            self._whole, _ = await state.patiently(read)
            self._held = held[0] if held else None
        self._decode()

    def _decode(self) -> None:
        self._event, self._is_timer, self._in_full = self._host.decode(self._inbound, self._whole)
        self._digest = digest_of(self._event.id)

    async def _attempt(self) -> Outcome | None:
        """Try to take the turn; None if it has to be tried again, from a newer checkpoint."""
        state = self._state
        if not state.loaded and not state.assume_new(self._event):
            await state.patiently(state.load)
        if self._is_timer and self._event.type == EXPIRED:
            await state.patiently(partial(state.forget, self._event))
            return self._done
        if self._digest in state.processed:
            state.conflicts = 0
            await state.store_machine()
            return self._done
        if self._is_timer and self._request_is_open():
            self._backlog_was_read = self._backlog is not None
            if (postponed := await self._take_backlog()) is not None:
                return postponed
        turn = self._turn()
        if self._in_full and not turn.outbox.trace:  # else the timeline has the event with the trace of its turn
            turn.packed_event = self._whole or self._inbound.payload
        if turn.needs_seals:
            await state.patiently(self._host.bus.seals.prepare)
        if (place := turn.new_child) is not None and (refusal := await self._refusal(place)):
            return await self._refuse_child(turn, refusal)
        try:
            ran = await self._run(turn)
        except NotLoaded as needed:
            turn.close()
            state.need(needed.names)
            return None
        return ran if ran is None or isinstance(ran, Outcome) else await self._conclude(*ran)

    async def _conclude(self, turn: Turn, result: TurnOutcome) -> Outcome | None:
        """Do what a turn that has run asks for; None if it has to be tried again, from a newer checkpoint."""
        if result is TurnOutcome.UNKNOWN:
            return await self._handle_unknown_plan()
        if result is TurnOutcome.REFUSE:
            await self._dead_letter("refused", turn.reason)
            return self._done
        if result is TurnOutcome.EMIT:
            await self._emit(turn)
            return self._done
        if result is TurnOutcome.IGNORE:
            turn.close()
            if await self._reload_stale():
                return None
            self._host.events_unwanted += turn.is_unwanted
            return self._done
        return await self._commit(turn)

    async def _reload_stale(self) -> bool:
        """Load the plan anew if another host has committed: the event may mean something else to it as it is now."""
        state = self._state
        if not await state.patiently(state.is_stale):
            return False
        await state.patiently(state.load)
        return True

    def _turn(self) -> Turn:
        if self._has_turn:
            self._decode()  # handlers may have changed the event
        self._has_turn = True
        turn = self._state.turn(self._inbound, self._event, self._is_timer)
        turn.held = self._held
        return turn

    async def _run(self, turn: Turn) -> tuple[Turn, TurnOutcome] | Outcome | None:
        """Run a turn; returns the turn to go on with (another one, if it failed), or the outcome of a retry.

        None if it has failed on an old state of the plan.

        Raises:
            NotLoaded: the turn is to be taken again with these results.
        """
        try:
            try:
                return turn, await self._run_turn(turn)
            except BaseException:
                self._state.abandon(turn)
                raise
        except NotLoaded:
            raise
        except Interrupted as interrupted:
            if turn.goal is None or self._state.revision:  # a plan that has waited for others exists
                raise
            # The plan to cancel does not exist yet: the goal's own turn ends it.
            self._state.unload_turn()
            turn = self._turn()
            return turn, await turn.cancel(str(interrupted))
        except BusUnavailable as error:
            outage_log.warn(logger, "turn is retried: %s", error_text(error), extra=self._place())
            self._state.unload()
            return Outcome(self._inbound.token, "retry", 1.0)
        except RetryableError as error:
            retry = self._retry(self._host.settings.hosts.max_handler_attempts, error.retry_after or 0.0)
            if retry is not None:
                logger.info("turn is retried: %s", error_text(error), extra=self._place())
                self._state.unload()
                return retry
            return await self._failed(error)
        except InvalidGoal as error:
            await self._dead_letter("refused", str(error))
            return await self._failed(error)
        except Exception as error:
            if await self._reload_stale():
                turn.close()
                return None
            logger.warning("turn failed: %s", error_text(error), exc_info=True, extra=self._place())
            return await self._failed(error)

    async def _commit(self, turn: Turn) -> Outcome | None:
        state = self._state
        try:
            # Events may have come while a handler ran. Looked for once: endless events must not hold up a timer.
            backlog = self._backlog if self._host.has_handlers and not self._backlog_was_read else None
            if backlog is not None and await state.patiently(backlog.has_more):
                state.abandon(turn)
                state.unload()
                return None
            await state.commit(turn, self._digest)
        except CommitConflict:  # another host has committed a turn of this plan
            state.abandon(turn)
            state.conflicts += 1
            self._host.commits_refused += 1
            state.unload()
            await asyncio.sleep(min(1.0, random.random() * 0.01 * 2 ** min(state.conflicts, 7)))
            await state.patiently(state.load)
            return None
        except (PayloadTooLarge, InvalidEnvelope, UnstorablePlan) as error:
            state.abandon(turn)
            turn, _ = await self._failed(error)
            state.fold()
            await state.commit(turn, self._digest)
        state.conflicts = 0
        turn.close()
        return self._done

    # Failures.

    async def _failed(self, error: BaseException) -> tuple[Turn, TurnOutcome]:
        """A new turn that fails the plan as its checkpoint has it; nothing of the broken turn remains."""
        self._state.turn_failed(type(error).__name__)
        if not self._state.unload_turn():
            await self._state.patiently(self._state.load)
        turn = self._turn()
        return turn, await turn.fail(error)

    async def _fail_without_running(self, detail: str) -> None:
        """Fail the event's plan without running any code of the app; a goal's plan fails before it began."""
        state = self._state
        await self._load_owner()
        try:
            await self._read()
        except InvalidEnvelope:
            return
        while True:
            state.unload()
            await state.patiently(state.load)
            turn = self._turn()
            may = state.plan is None or (not state.plan.status.finished and not turn.foreign(self._event))
            if not may or self._digest in state.processed:
                return
            if await turn.fail(TerminalError(detail)) is not TurnOutcome.COMMIT:
                return
            try:
                await state.commit(turn, self._digest)
            except CommitConflict:
                self._host.commits_refused += 1
                await asyncio.sleep(random.random())
                continue
            turn.close()
            return

    def _retry(self, attempts: int, delay: float = 0.0) -> Outcome | None:
        """Redeliver the event after a delay (by default exponential backoff); None after this number of attempts."""
        times = self._host.retries.count(self._inbound)
        if times >= attempts:
            return None
        delay = delay or min(30.0, 0.5 * 2**times)
        self._host.retries.hold(self._inbound, self._host.clock.time() + delay)
        return Outcome(self._inbound.token, "retry", delay)

    # Timers.

    async def _take_backlog(self) -> Outcome | None:
        """Take the plan's undelivered events (as after a dispatcher was lost) before the timer times its request out.

        Returns the outcome of the timer if one of those events cannot be taken now.
        """
        backlog = self._backlog = self._backlog or Backlog(self._host.bus, self._state.correlation_id)
        self._state.turn_ended()  # each of the events has a turn of its own
        while self._request_is_open():
            earlier = await self._state.patiently(partial(backlog.read, self._inbound.token))
            if earlier is None:
                break
            try:
                outcome = await SlowTurn(self._state, earlier, self._run_turn).take()
            except UndecodableEvent:
                continue  # its own delivery dead-letters it
            if outcome.kind != "done":
                return outcome
        self._set_log_context()
        return None

    def _request_is_open(self) -> bool:
        return self._state.plan is not None and self._event.parent_event_id in self._state.plan.requests

    # Child plans.

    async def _refusal(self, place: Place) -> str:
        """Why a child plan may not begin; empty if it may, and it then counts in its tree.

        It joins the tree before anything of it is run or stored, and once however often its goal is delivered: a host
        that crashes in between leaves no uncounted plan behind.
        """
        bounds, state = self._host.settings.plans, self._state
        if too_deep := place.too_deep(bounds):
            return too_deep
        name = tree_name(GoalContext.from_event(self._event, None).tenant_id, place.root)
        ttl, others = KEPT_SECONDS + bounds.retention_seconds, bounds.max_tree - 1
        joined = await state.patiently(lambda: self._host.bus.trees.join(name, state.correlation_id, others, ttl))
        return "" if joined else place.too_many(bounds)

    async def _refuse_child(self, turn: Turn, refusal: str) -> Outcome | None:
        state = self._state
        await state.patiently(state.load)
        if state.plan is not None:
            return None  # it began before the bounds were changed
        logger.info("child plan refused: %s", refusal, extra=self._place())
        if await turn.fail(TerminalError(f"the plan was refused: {refusal}")) is TurnOutcome.REFUSE:
            await self._dead_letter("refused", turn.reason)
        else:
            await self._emit(turn)
            if turn.plan is not None and turn.plan.parent_plan_id is None:  # nobody waits for its answer
                await self._dead_letter("refused", refusal)
        state.unload_turn()
        turn.close()
        return self._done

    # Events without a plan.

    async def _handle_unknown_plan(self) -> Outcome:
        """Readdress an event under an alias; retry one that may have overtaken its goal, then dead-letter it."""
        inbound, host, plan = self._inbound, self._host, self._state.correlation_id
        self._state.unload()
        owner = await self._state.patiently(lambda: host.bus.checkpoints.get_alias(plan))
        if owner is not None and owner != plan:
            await self._readdress(owner)
            return self._done
        if host.is_fact(self._event.topic) or inbound.subject.startswith(host.bus.subjects.store + "."):
            return self._done
        times, waited = host.retries.wait(inbound, host.clock.time())
        delay = 0.1 * 2 ** min(times - 1, 6)
        # Under a flood the host forgets some of these events; then the stream's delivery count ends it.
        if waited + delay <= host.settings.dispatchers.unknown_plan_seconds and inbound.attempt < MAX_DELIVERIES:
            return Outcome(inbound.token, "retry", delay)
        if is_follow(self._event) or is_rollback(self._event):
            return await self._answer_plan(delay)
        await self._dead_letter("no-plan", f"no plan has the correlation id {plan!r}")
        return self._done

    async def _answer_plan(self, delay: float) -> Outcome:
        """Tell a plan that waits for a plan without a checkpoint that it is unknown, unless its goal is queued."""
        bus, plan = self._host.bus, self._state.correlation_id
        queued = await self._state.patiently(lambda: bus.stored_events(EventTopic.ACTION_REQUESTS, plan, limit=1))
        if queued and self._inbound.attempt < MAX_DELIVERIES:
            return Outcome(self._inbound.token, "retry", delay)
        turn = self._turn()
        answered = answer_unknown(turn) if is_rollback(self._event) else answer_follower(turn, UNKNOWN)
        if answered is TurnOutcome.EMIT:
            await self._emit(turn)
        return self._done

    async def _readdress(self, owner: str) -> None:
        """Send the event to the plan that its correlation id is an alias of, as a new message of the stream."""
        bus, state = self._host.bus, self._state
        event = self._event.model_copy(update={"correlation_id": owner})
        payload, content_type = await state.patiently(partial(bus.prepare, event))
        subject = bus.subjects.event(event.topic, owner, event.type)
        message_id = f"readdressed:{self._digest.hex()}"
        await state.emit((Publish(subject, payload, message_id, content_type, "", self._inbound.trace),))

    async def _emit(self, turn: Turn) -> None:
        """Send the effects of a turn that commits nothing."""
        state, values, tenant = self._state, self._host.bus.values, self._event.tenant_id or ""
        for correlation_id, contents in turn.outbox.contents.items():
            await state.patiently(partial(values.put, tenant, correlation_id, contents))
        await state.emit(tuple(turn.effects))

    async def _dead_letter(self, reason: str, detail: str) -> None:
        extra = self._place() | {"stream": self._inbound.stream}
        logger.warning("event dead-lettered (%s): %s", reason, detail, extra=extra)
        self._host.note_dead_letter(reason)
        self._state.turn_failed(reason)
        delivery = self._inbound.to_delivery()
        await self._state.patiently(lambda: self._host.bus.dead_letters.put(delivery, reason, redact(detail)))

    def _place(self) -> dict[str, str]:
        return {"correlation_id": self._state.correlation_id}

    def _set_log_context(self) -> None:
        """Name the event in log records while it is taken; timers that begin in the turn may keep its context."""
        fields = WeakMethod(self._log_fields)
        LOG_CONTEXT.set(lambda: method() if (method := fields()) is not None else {})

    def _log_fields(self) -> dict[str, Any]:
        plan = self._state.plan
        plan_id = plan.plan_id if plan is not None else self._event.plan_id or self._state.correlation_id
        return event_fields(self._event) | {"plan_id": plan_id}
