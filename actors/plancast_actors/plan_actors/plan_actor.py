"""PlanActor: the mailbox of one plan, whose events are taken one at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import ref

from plancast.app_code import contained
from plancast.errors import HandlerAborted, TerminalError
from plancast.plan.control_events import CANCEL, cancel_reason
from plancast.turn.timers import deadline_error
from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.liveness.crash_record import Mark
from plancast_actors.plan_actors.activation import Activation
from plancast_actors.plan_actors.fast_path import FastTurn
from plancast_actors.plan_actors.parking import PARK
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_actors.plan_actors.reports import Reports
from plancast_actors.plan_actors.slow_path import Interrupted, SlowTurn, UndecodableEvent
from plancast_bus import fault_injection
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.fault_injection import CrashPoint

CANCEL_SECONDS = 5.0
"""Seconds a handler has to end after its time limit."""
MAX_SLEEP_SECONDS = 86_400.0
"""Longest sleep at a time: event loops cannot sleep for years."""


class PlanActor:
    """Owns one plan: takes its events one at a time, and commits each turn before its effects become visible.

    It may be dropped whenever it is idle: its :class:`Activation` never holds more than the checkpoint does.

    Args:
        state: The plan.
        rested: Called when the mailbox is empty.
    """

    __slots__ = (
        "__weakref__", "_current", "_fast", "_handling", "_mark", "_model_requests", "_parked", "_rested", "_running",
        "_stopped_by", "_task", "host", "last_used", "mailbox", "state",
    )  # fmt: skip

    def __init__(self, state: Activation, rested: Callable[[PlanActor], None]) -> None:
        self.state = state
        self.host = state.host
        self.mailbox: deque[tuple[Inbound, Reports]] = deque()
        self.last_used = 0.0
        self._rested = rested
        self._fast: FastTurn | None = None
        """The turn on the fast path,"""
        self._task: asyncio.Task[None] | None = None
        """or the task that takes events on the slow path."""
        self._current: tuple[Inbound, Reports] | None = None
        """The event on the slow path."""
        self._mark: Mark | None = None
        """Names it while code of the app runs for it; None if the host keeps no marks."""
        self._handling: asyncio.Task[TurnOutcome] | None = None
        self._running: Turn | None = None
        self._stopped_by: EventEnvelope | None = None
        """The cancellation that has stopped the running handler."""
        self._parked = False
        """True if the turn waits, or has waited, for a model."""
        self._model_requests = 0

    @property
    def idle(self) -> bool:
        """True if no event is in the mailbox or being taken; only then may the actor be dropped."""
        return self._task is None and self._fast is None and not self.mailbox

    @property
    def finished(self) -> bool:
        """True if nothing is lost when the actor is dropped for good."""
        return (self.state.plan is None or self.state.plan.status.finished) and not self.state.unsettled

    def deliver(self, inbound: Inbound, reports: Reports) -> None:
        """Put an event into the mailbox. A cancellation interrupts the running handler."""
        cancellation = self._cancellation(inbound)
        if cancellation is not None and self._handling is not None:
            self.mailbox.appendleft((inbound, reports))
            self._stopped_by = cancellation
            self._handling.cancel()
        else:
            self.mailbox.append((inbound, reports))
        if self._parked:
            reports.park(inbound.token)
        if self._task is None and self._fast is None:
            self._take_next()

    async def stop(self) -> None:
        """Abandon the mailbox and the current turn; none of these events was acknowledged."""
        self.mailbox.clear()
        if self._fast is not None:
            self._fast.stop()
            self._fast = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _take_next(self) -> None:
        """Take the next event, on the fast path if possible."""
        while self.mailbox and not self.state.conflicts:
            try:
                fast = FastTurn.create(self.state, *self.mailbox[0])
            except InvalidEnvelope as error:
                self._reject(*self.mailbox.popleft(), error)
                continue
            if fast is None:
                break
            self._fast = fast
            self.mailbox.popleft()
            fast.begin(self._fast_turn_ended)
            return
        if self.mailbox:
            self._task = asyncio.get_running_loop().create_task(self._take_slowly())
        else:
            self._rested(self)

    def _fast_turn_ended(self, done: bool) -> None:
        fast, self._fast = self._fast, None
        assert fast is not None
        if done:
            self.state.turn_ended()
            self._take_next()
        else:
            self.mailbox.appendleft((fast.inbound, fast.reports))
            self._task = asyncio.get_running_loop().create_task(self._take_slowly())

    async def _take_slowly(self) -> None:
        """Take all events of the mailbox on the slow path."""
        PARK.set(ref(self))
        try:
            while self.mailbox:
                self._unpark()
                self._current = inbound, reports = self.mailbox.popleft()
                turn = SlowTurn(self.state, inbound, self._run)
                try:
                    outcome = await turn.take()
                    if fault_injection.armed:
                        await self._reach(CrashPoint.TURN_ACK_BEFORE)
                except UndecodableEvent as error:
                    self._reject(inbound, reports, error)
                    continue
                except Interrupted:
                    self.state.unload()
                    self.mailbox.insert(1, (inbound, reports))
                    continue
                except (asyncio.CancelledError, GeneratorExit):
                    raise
                except BaseException as error:
                    outcome = await turn.crashed(error)
                reports.add(outcome)
                if fault_injection.armed:
                    await self._reach(CrashPoint.TURN_ACK_AFTER)
        finally:
            self._task = self._current = None
            self._unpark()
            self._rested(self)

    def _reject(self, inbound: Inbound, reports: Reports, error: Exception) -> None:
        """Dead-letter an undecodable event; it is reported once that is durable, and blocks no other meanwhile."""
        self.host.note_dead_letter("undecodable")
        stored = partial(reports.add, Outcome(inbound.token, "done", 0.0))
        extra = {"correlation_id": self.state.correlation_id, "stream": inbound.stream}
        self.host.undecodable.add(inbound.to_delivery(), str(error), stored, extra)

    # Handlers.

    async def _run(self, turn: Turn) -> TurnOutcome:
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_HANDLE_BEFORE)
        self._mark = self.host.mark(self._current[0]) if self._current is not None else None
        try:
            with self.state.scope():
                outcome = await (self._run_handlers(turn) if self.host.has_handlers else self._run_code(turn))
        finally:
            if self._mark is not None:
                self._mark.end()
        if self.state.laps is not None:
            self.state.laps.end("decided_turn" if self._parked else "turn")
        if fault_injection.armed:
            await self._reach(CrashPoint.TURN_HANDLE_AFTER)
        return outcome

    async def _run_code(self, turn: Turn) -> TurnOutcome:
        mark = self._mark
        return await contained(turn.run if mark is None else lambda: mark.steps(turn.run()))

    async def _run_handlers(self, turn: Turn) -> TurnOutcome:
        """Run a turn within its time limit, until a cancellation arrives."""
        self._handling, self._running = asyncio.get_running_loop().create_task(self._run_code(turn)), turn
        limit = self.host.settings.plans.turn_seconds or None
        deadline = turn.deadline
        alarm = asyncio.ensure_future(self._sleep_until(deadline)) if deadline is not None else None
        ends = (self._handling,) if alarm is None else (self._handling, alarm)
        try:
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            while self._model_requests and self._stopped_by is None and not any(each.done() for each in ends):
                # Reasoners have time limits of their own.
                await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not self._handling.done():
                self._handling.cancel()
                await asyncio.wait((self._handling,), timeout=CANCEL_SECONDS)
                if self._stopped_by is None and alarm is not None and alarm.done():
                    assert deadline is not None
                    raise TerminalError(deadline_error(deadline))
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
            if alarm is not None:
                alarm.cancel()
            self._handling.cancel()
            self._handling = self._running = self._stopped_by = None

    async def _sleep_until(self, time: float) -> None:
        clock = self.host.clock
        while (seconds := time - clock.time()) > 0:
            await clock.sleep(min(seconds, MAX_SLEEP_SECONDS))

    def _cancellation(self, inbound: Inbound) -> EventEnvelope | None:
        """The decoded event if it may cancel the plan whose handler is running."""
        turn = self._running
        if turn is None or (turn.plan or turn.goal) is None or not inbound.subject.endswith("." + CANCEL):
            return None
        try:
            event, _, _ = self.host.decode(inbound)
        except InvalidEnvelope:
            return None
        return event if event.topic == EventTopic.PLAN_EVENTS and not turn.foreign(event) else None

    # Parking.

    def model_requested(self) -> None:
        """Park the turn: its event and the mailbox no longer count against ``max_outstanding``."""
        self._model_requests += 1
        if self._mark is not None:
            self._mark.park(True)
        if self._current is not None and not self._parked:
            self._parked = True
            self.host.parked += 1
            for inbound, reports in (self._current, *self.mailbox):
                reports.park(inbound.token)

    def model_replied(self) -> None:
        """Note that a model request has ended, with a reply or an error."""
        self._model_requests -= 1
        if self._mark is not None and not self._model_requests:
            self._mark.park(False)

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self.host.parked -= 1

    async def _reach(self, point: CrashPoint) -> None:
        await fault_injection.reach(point, self.state.correlation_id)
