"""FastTurn: a turn that runs no code of the app, taken by callbacks instead of a task.

A state machine's turn waits only for the acknowledgements of its commit and of its effects. This module handles the
successful case; anything else goes to :mod:`plancast_actors.plan_actors.slow_path`, which starts from the checkpoint
and finds there how far the fast turn came. Crash points are passed here as on the slow path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.plan_actors.activation import Activation, digest_of
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_actors.plan_actors.reports import Reports
from plancast_actors.telemetry.samples import Laps, laps_of
from plancast_bus import fault_injection
from plancast_bus.errors import CommitConflict
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.lazy_object import NotLoaded
from plancast_bus.fault_injection import CrashPoint

_T = TypeVar("_T")


class FastTurn:
    """A turn on the fast path.

    Its steps are a generator, resumed by the callbacks of the futures that it yields. A task would cost as much as the
    state machine itself.
    """

    __slots__ = (
        "_committing", "_digest", "_ended", "_laps", "_state", "_steps", "_turn", "_waiting", "inbound", "reports",
    )  # fmt: skip

    def __init__(
        self, state: Activation, inbound: Inbound, reports: Reports, turn: Turn, digest: bytes, laps: Laps | None
    ) -> None:
        self.inbound = inbound
        self.reports = reports
        self._state = state
        self._turn = turn
        self._digest = digest
        self._laps = laps
        self._steps = self._take()
        self._committing = False
        """True if the checkpoint may have been stored."""
        self._ended: Callable[[bool], None] | None = None
        """None before the turn begins, and after it was stopped."""
        self._waiting: asyncio.Future[Any] | None = None

    @classmethod
    def create(cls, state: Activation, inbound: Inbound, reports: Reports) -> FastTurn | None:
        """The turn of an event, not begun; None if the event needs the slow path.

        Raises:
            InvalidEnvelope: the event cannot be decoded.
        """
        if inbound.crash_reason or inbound.content_type in REFERENCE_TYPES:
            return None
        laps = laps_of(state.host.samples, inbound.token)
        event, is_timer, in_full = state.host.decode(inbound)
        digest = digest_of(event.id)
        if not (state.loaded or state.assume_new(event)) or digest in state.processed:
            return None
        # A timer first looks for undelivered events.
        if is_timer or not state.host.environment.runs_itself(event, state.plan):
            return None
        turn = state.turn(inbound, event, is_timer)
        if turn.new_child is not None:  # it may be refused
            turn.close()
            return None
        if in_full and not turn.outbox.trace:  # else the timeline has the event with the trace of its turn
            turn.packed_event = inbound.payload
        return cls(state, inbound, reports, turn, digest, laps)

    def begin(self, ended: Callable[[bool], None]) -> None:
        """Take the turn; ``ended`` is called with True at its end, with False if the slow path must take the event."""
        self._ended = ended
        self._resume(None)

    def stop(self) -> None:
        """Abandon the turn; ``ended`` is not called."""
        self._ended = None
        if self._waiting is not None:
            self._waiting.cancel()

    def _take(self) -> Generator[asyncio.Future[Any], Any, bool]:
        """Take the turn, step by step; returns whether it is done."""
        state, turn, bus = self._state, self._turn, self._state.host.bus
        if fault_injection.armed:
            yield self._reach(CrashPoint.TURN_HANDLE_BEFORE)
        if self._run() is not TurnOutcome.COMMIT:
            return False  # it has changed nothing
        if not state.may_stage(turn, turn.now):
            raise LookupError("the state machine is not in the store yet")
        self._lap("turn")
        if fault_injection.armed:
            yield self._reach(CrashPoint.TURN_HANDLE_AFTER)
        checkpoint = state.stage(turn, self._digest)
        if state.has_unstored_values:
            yield asyncio.ensure_future(state.store_values())
        if fault_injection.armed:
            yield self._reach(CrashPoint.TURN_COMMIT_BEFORE)
        committing = bus.checkpoints.begin_commit(checkpoint)
        self._committing = True
        try:
            version = yield committing
        except CommitConflict:
            state.host.commits_refused += 1
            raise
        if state.has_old_values:
            yield asyncio.ensure_future(state.renew_values())
        state.committed(turn, checkpoint, version)
        self._lap("commit")
        if not state.may_stage(turn, state.host.clock.time()):
            raise LookupError("the commit took days: the state machine has to be stored again")
        if fault_injection.armed:
            yield self._reach(CrashPoint.TURN_COMMIT_AFTER)
        if checkpoint.outbox:
            if fault_injection.armed:
                yield self._reach(CrashPoint.TURN_EMIT_BEFORE)
            sequences = yield bus.begin_emit(checkpoint.outbox)
            state.emitted_at(checkpoint.outbox, sequences)
            self._lap("emit")
            if fault_injection.armed:
                yield self._reach(CrashPoint.TURN_EMIT_AFTER)
        if fault_injection.armed:
            yield self._reach(CrashPoint.TURN_ACK_BEFORE)
        self.reports.add(Outcome(self.inbound.token, "done", 0.0))
        with suppress(Exception):
            if fault_injection.armed:
                yield self._reach(CrashPoint.TURN_ACK_AFTER)
        return True

    def _run(self) -> TurnOutcome:
        """Run the turn; conditions of a state machine are code of the app, too."""
        mark = self._state.host.mark(self.inbound)
        if mark is None:
            return run_synchronously(self._turn.run())
        try:
            return run_synchronously(mark.steps(self._turn.run()))
        finally:
            mark.end()

    def _reach(self, point: CrashPoint) -> asyncio.Future[Any]:
        return asyncio.ensure_future(fault_injection.reach(point, self._state.correlation_id))

    def _lap(self, stage: str) -> None:
        if self._laps is not None:
            self._laps.end(stage)

    def _resume(self, waited: asyncio.Future[Any] | None) -> None:
        """Take the steps up to the next future."""
        error = _error(waited) if waited is not None else None
        if self._ended is None:
            return  # stopped
        result = waited.result() if waited is not None and error is None else None
        try:
            step = self._steps.throw(error) if error is not None else self._steps.send(result)
        except StopIteration as stopped:
            self._end(stopped.value)
        except NotLoaded as needed:
            self._state.need(needed.names)
            self._end(False)
        except (Exception, asyncio.CancelledError):  # the slow path runs into it again, and handles it
            if self._committing:
                self._state.conflicts += 1
                self._state.unload()
            else:
                self._state.unload_turn()
            self._end(False)
        else:
            self._waiting = step
            step.add_done_callback(self._resume)

    def _end(self, done: bool) -> None:
        self._turn.close()
        assert self._ended is not None
        self._ended(done)


def run_synchronously(work: Coroutine[Any, Any, _T] | Generator[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits.

    Raises:
        RuntimeError: it waits.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    work.close()
    raise RuntimeError("a turn on the fast path waits")


def _error(future: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if future.cancelled() else future.exception()
