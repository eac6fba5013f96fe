"""PlanActor: the live object that owns one plan. Its mailbox, one turn at a time, and what becomes of each event."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from plancast.app_code import contained
from plancast.context import GoalContext
from plancast.errors import HandlerAborted, RetryableError, TerminalError, UnstorablePlan
from plancast.plan.control_events import CANCEL, cancel_reason
from plancast.plan.event_fields import error_text
from plancast.plan_tree import KEPT_SECONDS, Place
from plancast.telemetry.logging import IN_HAND, about
from plancast.telemetry.redaction import redact
from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.hosting.activation import EXPIRED, Activation, Emitted, digest_of
from plancast_actors.hosting.backlog import Backlog
from plancast_actors.hosting.fast_path import QuickTurn
from plancast_actors.hosting.parking import PARK
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_actors.telemetry.samples import laps_of
from plancast_bus import fault_injection
from plancast_bus.errors import (
    BusUnavailable,
    CommitConflict,
    InvalidEnvelope,
    PayloadTooLarge,
)
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Delivery
from plancast_bus.ports.effects import Publish
from plancast_bus.ports.trees import tree_name

if TYPE_CHECKING:
    from plancast_actors.hosting.plan_host import PlanHost
    from plancast_actors.hosting.reports import Reports

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
CANCEL_SECONDS = 5.0
"""How long a handler may take to end once its time is over."""
MOST_DELIVERIES = 1_000
"""Deliveries after which an event for an unknown plan is put aside, however long it has waited."""


class Interrupted(Exception):
    """Raised when a cancellation has stopped the handler of a turn; the turn leaves no trace."""


class Unreadable(Exception):
    """Raised when an event is none; says why."""


class PlanActor:
    """Owns one plan: takes its events in turn, and makes each turn durable before its effects are seen.

    It may be dropped whenever it is idle: its :class:`Activation` never holds more than the checkpoint does.
    """

    __slots__ = (
        "_asking", "_conflicts", "_handling", "_parked", "_running", "_stopped_by", "_taken", "_task",
        "correlation_id", "host", "last_used", "mailbox", "quick", "state",
    )  # fmt: skip

    def __init__(self, host: PlanHost, correlation_id: str) -> None:
        self.host = host
        self.correlation_id = correlation_id
        self.mailbox: deque[tuple[Inbound, Reports]] = deque()
        self.last_used = 0.0
        self._task: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[TurnOutcome] | None = None
        self._running: Turn | None = None
        self._stopped_by: EventEnvelope | None = None
        """The cancellation that has stopped the running handler."""
        self._conflicts = 0
        self.quick: QuickTurn | None = None
        """The turn that is taken without a task."""
        self._taken: tuple[Inbound, Reports] | None = None
        """The event whose turn it is."""
        self._parked = False
        """Whether that turn waits, or has waited, for a model."""
        self._asking = 0
        """Questions that the turn waits for."""
        self.state = Activation(host, correlation_id)

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand; only then may the actor be dropped."""
        return self._task is None and self.quick is None and not self.mailbox

    @property
    def finished(self) -> bool:
        """Whether its plan needs nothing any more."""
        return self.state.plan is None or self.state.plan.status.finished

    @property
    def emitted(self) -> Emitted | None:
        """See :attr:`Activation.emitted`; for idle actors."""
        return self.state.emitted

    def deliver(self, inbound: Inbound, reports: Reports) -> None:
        """Put an event into the mailbox. A cancellation interrupts the handler that is running."""
        cancellation = self._cancellation(inbound)
        if cancellation is not None and self._handling is not None:
            self.mailbox.appendleft((inbound, reports))
            self._stopped_by = cancellation
            self._handling.cancel()
        else:
            self.mailbox.append((inbound, reports))
        if self._parked:
            reports.park(inbound.token)
        if self._task is None and self.quick is None:
            self._go_on()

    def _go_on(self) -> None:
        """Take the next event of the mailbox, without a task where that is possible."""
        while self.mailbox and not fault_injection.armed and not self._conflicts:
            try:
                self.quick = QuickTurn.begin(self, *self.mailbox[0])
            except InvalidEnvelope as error:
                self._set_aside(*self.mailbox.popleft(), error)
                continue
            if self.quick is None:
                break
            self.mailbox.popleft()
            return
        if self.mailbox:
            self._task = asyncio.get_running_loop().create_task(self._work())
        else:
            self.host.rested(self)

    def took(self, quick: QuickTurn) -> None:
        """A quick turn is done: durable, and its effects are out."""
        self.quick = None
        quick.reports.add(Outcome(quick.inbound.token, "done", 0.0))
        self._go_on()

    def take_again(self, quick: QuickTurn) -> None:
        """A quick turn came to an end that it does not understand: the checkpoint tells how far it came."""
        self.quick = None
        self._conflicts += 1
        self.state.unload()
        self.mailbox.appendleft((quick.inbound, quick.reports))
        self._task = asyncio.get_running_loop().create_task(self._work())

    def asks(self) -> None:
        """The turn waits for a model: what is in hand does, and is no longer to be counted with what is under way."""
        self._asking += 1
        if self._taken is not None and not self._parked:
            self._parked = True
            self.host.parked += 1
            for inbound, reports in (self._taken, *self.mailbox):
                reports.park(inbound.token)

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self.host.parked -= 1

    def hears(self) -> None:
        """A model has answered, or will not."""
        self._asking -= 1

    def _cancellation(self, inbound: Inbound) -> EventEnvelope | None:
        """The event, when it is one that may cancel the plan whose handler is running."""
        turn = self._running
        if turn is None or (turn.plan or turn.goal) is None or not inbound.subject.endswith("." + CANCEL):
            return None
        try:
            event, _, _ = self.host.decode(inbound)
        except InvalidEnvelope:
            return None
        return event if event.topic == EventTopic.PLAN_EVENTS and turn.same_tenant(event) else None

    async def stop(self) -> None:
        """Drop what is in hand; nothing of it was acknowledged."""
        self.mailbox.clear()
        self.quick = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        PARK.set(self)
        try:
            while self.mailbox:
                self._unpark()
                self._taken = inbound, reports = self.mailbox.popleft()
                try:
                    outcome = await self._take(inbound)
                    if fault_injection.armed:
                        await self._reach(CrashPoint.TURN_ACK_BEFORE)
                except Unreadable as error:
                    self._set_aside(inbound, reports, error)
                    continue
                except Interrupted:
                    self.state.unload()
                    self.mailbox.insert(1, (inbound, reports))
                    continue
                except (asyncio.CancelledError, GeneratorExit):
                    raise
                except BaseException as error:
                    outcome = await self._crashed(inbound, error)
                reports.add(outcome)
                if fault_injection.armed:
                    await self._reach(CrashPoint.TURN_ACK_AFTER)
        finally:
            self._task = self._taken = None
            self._unpark()
            self.host.rested(self)

    async def _take(self, inbound: Inbound) -> Outcome:
        done = Outcome(inbound.token, "done", 0.0)
        IN_HAND.set(None)  # what was in hand before is not what this is about
        if inbound.convicted:
            await self._put_aside(inbound, "crashes-host", inbound.convicted)
            await self._fail_without_running(inbound, inbound.convicted)
            return done
        if early := self.host.retries.early(inbound, self.host.clock.time()):
            return Outcome(inbound.token, "retry", early)
        try:
            event, is_timer, in_full = self.host.decode(inbound)
        except InvalidEnvelope as error:
            raise Unreadable(str(error)) from error
        digest = digest_of(event.id)
        IN_HAND.set(partial(self._about, event))
        laps = self.state.laps = laps_of(self.host.samples, inbound.token)
        if fault_injection.armed and is_timer:
            await self._reach(CrashPoint.TIMER_DUE)
        backlog, looked_before = None, False
        while True:
            if not self.state.loaded and not self.is_surely_new(event):
                await self.state.patiently(self.state.load)
            if is_timer and event.type == EXPIRED:
                await self.state.patiently(partial(self.state.forget, event))
                return done
            if digest in self.state.processed:
                self._conflicts = 0
                await self.state.keep()
                return done
            if is_timer and self._may_give_up(event):
                looked_before = backlog is not None
                backlog = backlog or Backlog(self.host.bus, self.correlation_id)
                if (postponed := await self._take_backlog(backlog, event, inbound)) is not None:
                    return postponed
            turn = self.turn(inbound, event, is_timer)
            if in_full and not turn.outbox.trace:  # else the event is noted with the trace of its turn
                turn.packed_event = inbound.payload
            if (place := turn.new_child) is not None and (refusal := await self._refusal(event, place)):
                await self.state.patiently(self.state.load)
                if self.state.plan is not None:
                    continue  # it has begun, before the bounds were changed
                logger.info("a child plan is refused: %s", refusal, extra={"correlation_id": self.correlation_id})
                if await turn.fail(TerminalError(f"the plan was refused: {refusal}")) is TurnOutcome.REFUSE:
                    await self._put_aside(inbound, "refused", turn.reason)
                else:
                    await self.state.emit(tuple(turn.effects))
                self.state.unload_turn()
                turn.close()
                return done
            try:
                if fault_injection.armed:
                    await self._reach(CrashPoint.TURN_HANDLE_BEFORE)
                verdict = await self._run(turn)
                if laps is not None:
                    laps.end("decided_turn" if self._parked else "turn")
                if fault_injection.armed:
                    await self._reach(CrashPoint.TURN_HANDLE_AFTER)
            except Interrupted as interrupted:
                if turn.goal is None:
                    raise
                # There is no plan yet that could be cancelled: the goal's own turn ends it.
                self.state.unload_turn()
                turn = self.turn(inbound, event, is_timer)
                verdict = await turn.cancel(str(interrupted))
            except BusUnavailable as error:
                logger.warning("turn is tried again: %s", error, extra={"correlation_id": self.correlation_id})
                self.state.unload()
                return Outcome(inbound.token, "retry", 1.0)
            except RetryableError as error:
                again = self._again(inbound, self.host.settings.hosts.max_handler_attempts, error.retry_after or 0.0)
                if again is not None:
                    logger.info("turn is tried again: %s", error, extra={"correlation_id": self.correlation_id})
                    self.state.unload()
                    return again
                turn, verdict = await self._failed(inbound, event, is_timer, error)
            except Exception as error:
                why = error_text(error)
                logger.warning("turn failed: %s", why, exc_info=True, extra={"correlation_id": self.correlation_id})
                turn, verdict = await self._failed(inbound, event, is_timer, error)
            if verdict is TurnOutcome.UNKNOWN:
                return await self._unknown(inbound, event)
            if verdict is TurnOutcome.REFUSE:
                await self._put_aside(inbound, "refused", turn.reason)
                return done
            if verdict is TurnOutcome.EMIT:
                await self.state.emit(tuple(turn.effects))
                return done
            if verdict is TurnOutcome.IGNORE:
                turn.close()
                if await self.state.patiently(self.state.is_stale):
                    # No commit has shown it: the event may be for a turn that another host has taken meanwhile.
                    await self.state.patiently(self.state.load)
                    continue
                return done
            try:
                # Code may take its time. Once, else events without end would keep a timer from counting.
                unread = backlog if self.host.has_handlers and not looked_before else None
                if unread is not None and await self.state.patiently(unread.has_more):
                    self.state.unload()
                    continue
                await self.state.commit(turn, digest)
            except CommitConflict:
                # Somebody else has taken a turn of this plan: what we know is stale.
                self._conflicts += 1
                self.host.commits_refused += 1
                self.state.unload()
                await asyncio.sleep(min(1.0, random.random() * 0.01 * 2 ** min(self._conflicts, 7)))
                await self.state.patiently(self.state.load)
                continue
            except (PayloadTooLarge, InvalidEnvelope, UnstorablePlan) as error:
                turn, verdict = await self._failed(inbound, event, is_timer, error)
                await self.state.commit(turn, digest)
            self._conflicts = 0
            turn.close()
            return done

    # The turn.

    def turn(self, inbound: Inbound, event: EventEnvelope, is_timer: bool) -> Turn:
        """The turn that an event is to have."""
        turn = Turn(
            self.host.environment,
            self.correlation_id,
            event,
            self.state.plan,
            self.state.revision + 1,
            self.host.clock.time(),
            is_timer,
        )
        if inbound.trace:
            turn.belongs_to(inbound.trace)
        return turn

    async def _run(self, turn: Turn) -> TurnOutcome:
        if not self.host.has_handlers:
            return await contained(turn.run)
        self._handling, self._running = asyncio.get_running_loop().create_task(contained(turn.run)), turn
        limit = self.host.settings.plans.turn_seconds or None
        try:
            await asyncio.wait((self._handling,), timeout=limit)
            while self._asking and not self._handling.done() and self._stopped_by is None:
                await asyncio.wait((self._handling,), timeout=limit)  # reasoners have time limits of their own
            if not self._handling.done():
                self._handling.cancel()
                await asyncio.wait((self._handling,), timeout=CANCEL_SECONDS)
                if self._stopped_by is None:
                    raise TerminalError(
                        f"deadline_exceeded: the turn for {turn.event.type} (event {turn.event.id}) took longer than "
                        f"{limit:g} s (PLANCAST_PLANS__TURN_SECONDS)"
                    )
                raise Interrupted(cancel_reason(self._stopped_by))
            if not self._handling.cancelled():
                return self._handling.result()
            if self._stopped_by is None:
                raise HandlerAborted("CancelledError: the handler was cancelled from within, and not by plancast")
            raise Interrupted(cancel_reason(self._stopped_by))
        finally:
            self._handling.cancel()
            self._handling = self._running = self._stopped_by = None

    async def _crashed(self, inbound: Inbound, error: BaseException) -> Outcome:
        """A defect of ours: the event is not lost, and the plan starts from its checkpoint; but not for ever."""
        logger.error("turn crashed", exc_info=error, extra={"correlation_id": self.correlation_id})
        self.state.unload()
        attempts = self.host.settings.hosts.max_turn_attempts
        again = self._again(inbound, attempts)
        if again is not None:
            return again
        detail = f"the event could not be handled in {attempts} attempts: {error_text(error)}"
        try:
            await self._put_aside(inbound, "crashes-turn", detail)
            await self._fail_without_running(inbound, detail)
        except Exception as failure:
            logger.error("its plan cannot be failed either", exc_info=failure, extra={"subject": inbound.subject})
            self.state.unload()
        return Outcome(inbound.token, "done", 0.0)

    def _again(self, inbound: Inbound, attempts: int, delay: float = 0.0) -> Outcome | None:
        """Have an event tried again, after a delay or a backoff; None when it was tried as often as it may be."""
        times = self.host.retries.count(inbound)
        if times >= attempts:
            return None
        delay = delay or min(30.0, 0.5 * 2**times)
        self.host.retries.hold(inbound, self.host.clock.time() + delay)
        return Outcome(inbound.token, "retry", delay)

    async def _take_backlog(self, backlog: Backlog, timer: EventEnvelope, inbound: Inbound) -> Outcome | None:
        """Take what is durable and was not delivered yet, as when a dispatcher was lost, before a timer gives it up.

        Returns what becomes of the timer when an event cannot be taken now; else None.
        """
        while self._may_give_up(timer):
            earlier = await self.state.patiently(partial(backlog.read, inbound.token))
            if earlier is None:
                break
            outcome = await self._take(earlier)
            if outcome.kind != "done":
                return outcome
        IN_HAND.set(partial(self._about, timer))
        return None

    def _may_give_up(self, timer: EventEnvelope) -> bool:
        """Whether the request of a timer is still open."""
        return self.state.plan is not None and timer.parent_event_id in self.state.plan.requests

    async def _fail_without_running(self, inbound: Inbound, detail: str) -> None:
        """Fail the plan that an event is for, running nothing of the app's; a goal's plan fails before it began."""
        try:
            event, is_timer, _ = self.host.decode(inbound)
        except InvalidEnvelope:
            return
        while True:
            self.state.unload()
            await self.state.patiently(self.state.load)
            turn = self.turn(inbound, event, is_timer)
            may = self.state.plan is None or (not self.finished and turn.same_tenant(event))
            if not may or digest_of(event.id) in self.state.processed:
                return
            if await turn.fail(TerminalError(detail)) is not TurnOutcome.COMMIT:
                return
            try:
                await self.state.commit(turn, digest_of(event.id))
            except CommitConflict:
                self.host.commits_refused += 1
                await asyncio.sleep(random.random())
                continue
            turn.close()
            return

    async def _refusal(self, goal: EventEnvelope, place: Place) -> str:
        """Why a child plan may not begin; empty when it may, and is in its tree from now on.

        A tree is joined before anything of the plan is run or stored, and once however often its goal comes: a host
        that dies in between leaves no plan behind that is not counted.
        """
        bounds = self.host.settings.plans
        if too_deep := place.too_deep(bounds):
            return too_deep
        name = tree_name(GoalContext.from_event(goal, None).tenant_id, place.root)
        ttl, others = KEPT_SECONDS + bounds.retention_seconds, bounds.max_tree - 1
        joined = await self.state.patiently(lambda: self.host.bus.trees.join(name, self.correlation_id, others, ttl))
        return "" if joined else place.too_many(bounds)

    async def _failed(
        self, inbound: Inbound, event: EventEnvelope, is_timer: bool, error: BaseException
    ) -> tuple[Turn, TurnOutcome]:
        """A turn that fails the plan, from the checkpoint: nothing that the broken turn did remains."""
        event, is_timer, _ = self.host.decode(inbound)  # handlers may have written into the one that they were given
        if not self.state.unload_turn():
            await self.state.patiently(self.state.load)
        turn = self.turn(inbound, event, is_timer)
        return turn, await turn.fail(error)

    def is_surely_new(self, event: EventEnvelope) -> bool:
        """A goal most probably has no plan yet. The commit proves it, so that no read is needed."""
        if self._conflicts or event.topic != "action-requests" or event.type not in self.host.environment.goals:
            return False
        self.state.loaded = True
        return True

    async def _unknown(self, inbound: Inbound, event: EventEnvelope) -> Outcome:
        """An event may overtake the goal that it belongs to; it gets time, and is then put aside."""
        self.state.unload()
        owner = await self.state.patiently(lambda: self.host.bus.checkpoints.get_alias(self.correlation_id))
        if owner is not None and owner != self.correlation_id:
            await self.state.emit((self._readdressed(event, owner, inbound.trace),))
            return Outcome(inbound.token, "done", 0.0)
        if self.host.is_fact(event.topic) or self._is_own_timer(inbound):
            return Outcome(inbound.token, "done", 0.0)
        times, waited = self.host.retries.wait(inbound, self.host.clock.time())
        delay = 0.1 * 2 ** min(times - 1, 6)
        # A flood of such events is more than a host remembers: then the stream's count ends it.
        if waited + delay <= self.host.settings.dispatchers.unknown_plan_seconds and inbound.attempt < MOST_DELIVERIES:
            return Outcome(inbound.token, "retry", delay)
        await self._put_aside(inbound, "no-plan", f"no plan has the correlation id {self.correlation_id!r}")
        return Outcome(inbound.token, "done", 0.0)

    def _readdressed(self, event: EventEnvelope, owner: str, trace: str) -> Publish:
        """The event, to the plan that its correlation id stands for; under its own id the stream would drop it."""
        bus = self.host.bus
        payload, content_type = bus.encode(event.model_copy(update={"correlation_id": owner}))
        subject = bus.subjects.event(event.topic, owner, event.type)
        return Publish(subject, payload, f"readdressed:{digest_of(event.id).hex()}", content_type, "", trace)

    def _is_own_timer(self, inbound: Inbound) -> bool:
        return inbound.subject.startswith(self.host.bus.subjects.store + ".")

    def _set_aside(self, inbound: Inbound, reports: Reports, error: Exception) -> None:
        """Put an event aside that is none; it is reported when that is durable, and holds up no other meanwhile."""
        self._note_aside("undecodable")
        kept = partial(reports.add, Outcome(inbound.token, "done", 0.0))
        self.host.poison.add(self._delivery(inbound), str(error), kept, self._place(inbound))

    async def _put_aside(self, inbound: Inbound, reason: str, detail: str) -> None:
        logger.warning(
            "event put aside (%s): %s",
            reason,
            detail,
            extra=self._place(inbound),
        )
        self._note_aside(reason)
        delivery = self._delivery(inbound)
        await self.state.patiently(lambda: self.host.bus.dead_letters.put(delivery, reason, redact(detail)))

    def _place(self, inbound: Inbound) -> dict[str, Any]:
        return {"correlation_id": self.correlation_id, "stream": inbound.stream}

    def _note_aside(self, reason: str) -> None:
        self.host.put_aside += 1
        self.host.reasons[reason] += 1

    @staticmethod
    def _delivery(inbound: Inbound) -> Delivery:
        return Delivery(
            inbound.subject, inbound.payload, inbound.content_type, inbound.message_id, inbound.stream,
            inbound.sequence, inbound.attempt, "",
        )  # fmt: skip

    def _about(self, event: EventEnvelope) -> dict[str, Any]:
        """What a log record says of the turn that it was made in."""
        plan = self.state.plan
        return about(event) | {"plan_id": plan.plan_id if plan is not None else event.plan_id or self.correlation_id}

    async def _reach(self, point: CrashPoint) -> None:
        await fault_injection.reach(point, self.correlation_id)
