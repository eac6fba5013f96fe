"""FastTurn: a turn that runs no code of the app, taken by callbacks instead of a task.

A state machine's turn waits only for the acknowledgements of its commit and of its effects. This module handles the
successful case; anything else goes to :mod:`plancast_actors.hosting.slow_path`, which starts from the checkpoint and
finds there how far the fast turn came. Crash points are passed here as on the slow path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.hosting.activation import Activation, digest_of
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_actors.hosting.reports import Reports
from plancast_actors.telemetry.samples import Laps, laps_of
from plancast_bus import fault_injection
from plancast_bus.errors import CommitConflict
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.checkpoints import Checkpoint

_T = TypeVar("_T")


class FastTurn:
    """A turn on the fast path; calls ``ended(done)`` at its end, with False when the slow path must take the event."""

    __slots__ = ("_checkpoint", "_digest", "_ended", "_laps", "_state", "_turn", "_waiting", "inbound", "reports")

    def __init__(
        self, state: Activation, inbound: Inbound, reports: Reports, turn: Turn, digest: bytes, laps: Laps | None
    ) -> None:
        self.inbound = inbound
        self.reports = reports
        self._state = state
        self._turn = turn
        self._digest = digest
        self._laps = laps
        self._checkpoint: Checkpoint | None = None
        """What is committed; None before the commit has begun."""
        self._ended: Callable[[bool], None] | None = None
        """None once the turn is stopped."""
        self._waiting: asyncio.Future[Any] | None = None

    @classmethod
    def create(cls, state: Activation, inbound: Inbound, reports: Reports) -> FastTurn | None:
        """The turn of an event, not begun; None if the event needs the slow path.

        Raises:
            InvalidEnvelope: the event cannot be decoded.
        """
        if inbound.crash_reason:
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
        """Take the turn."""
        self._ended = ended
        self._pass(CrashPoint.TURN_HANDLE_BEFORE, self._run)

    def stop(self) -> None:
        """Abandon the turn; ``ended`` is not called."""
        self._ended = None
        if self._waiting is not None:
            self._waiting.cancel()

    def _run(self) -> None:
        state, turn = self._state, self._turn
        try:
            if run_synchronously(turn.run()) is not TurnOutcome.COMMIT:  # it has changed nothing
                self._end(False)
                return
            if not state.may_stage(turn, turn.now):
                raise LookupError("the state machine is not in the store yet")
        except Exception:  # the slow path runs into it again, and handles it
            self._fall_back()
            return
        if self._laps is not None:
            self._laps.end("turn")
        self._pass(CrashPoint.TURN_HANDLE_AFTER, self._stage)

    def _stage(self) -> None:
        try:
            checkpoint = self._state.stage(self._turn, self._digest)
        except Exception:
            self._fall_back()
        else:
            self._pass(CrashPoint.TURN_COMMIT_BEFORE, lambda: self._commit(checkpoint))

    def _commit(self, checkpoint: Checkpoint) -> None:
        try:
            committing = self._state.host.bus.checkpoints.begin_commit(checkpoint)
        except Exception:
            self._fall_back()
        else:
            self._checkpoint = checkpoint
            self._wait(committing, self._committed)

    def _committed(self, committing: asyncio.Future[int]) -> None:
        version, checkpoint = _result(committing), self._checkpoint
        if self._ended is None or checkpoint is None:
            return
        if version is None:
            if not committing.cancelled() and isinstance(committing.exception(), CommitConflict):
                self._state.host.commits_refused += 1
            self._fall_back()
            return
        self._state.committed(self._turn, checkpoint, version)
        if self._laps is not None:
            self._laps.end("commit")
        if not self._state.may_stage(self._turn, self._state.host.clock.time()):
            self._fall_back()  # the commit took days: the state machine has to be stored again
        else:
            self._pass(CrashPoint.TURN_COMMIT_AFTER, self._emit if checkpoint.outbox else self._report_before)

    def _emit(self) -> None:
        self._pass(CrashPoint.TURN_EMIT_BEFORE, self._send)

    def _send(self) -> None:
        assert self._checkpoint is not None
        try:
            emitting = self._state.host.bus.begin_emit(self._checkpoint.outbox)
        except Exception:
            self._fall_back()
        else:
            self._wait(emitting, self._emitted)

    def _emitted(self, emitting: asyncio.Future[list[int]]) -> None:
        sequences = _result(emitting)
        if self._ended is None or self._checkpoint is None:
            return
        if sequences is None:
            self._fall_back()
            return
        self._state.emitted_at(self._checkpoint.outbox, sequences)
        if self._laps is not None:
            self._laps.end("emit")
        self._pass(CrashPoint.TURN_EMIT_AFTER, self._report_before)

    def _report_before(self) -> None:
        self._pass(CrashPoint.TURN_ACK_BEFORE, self._report)

    def _report(self) -> None:
        self.reports.add(Outcome(self.inbound.token, "done", 0.0))
        self._pass(CrashPoint.TURN_ACK_AFTER, self._finish, self._finish)

    def _finish(self) -> None:
        self._end(True)

    # Continuations.

    def _pass(self, point: CrashPoint, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Call ``then``, after the crash point if points are armed; ``otherwise`` if the point raises."""
        if not fault_injection.armed:
            then()
            return

        def passed(reached: asyncio.Future[int]) -> None:
            failed = _result(reached) is None
            if self._ended is not None:
                (otherwise or self._fall_back)() if failed else then()

        self._wait(asyncio.ensure_future(fault_injection.reach(point, self._state.correlation_id)), passed)

    def _wait(self, future: asyncio.Future[_T], then: Callable[[asyncio.Future[_T]], None]) -> None:
        self._waiting = future
        future.add_done_callback(then)

    def _fall_back(self) -> None:
        """Leave the event to the slow path, which starts from the checkpoint once a commit was tried."""
        if self._checkpoint is None:
            self._state.unload_turn()
        else:
            self._state.conflicts += 1
            self._state.unload()
        self._end(False)

    def _end(self, done: bool) -> None:
        self._turn.close()
        if self._ended is not None:
            self._ended(done)


def run_synchronously(work: Coroutine[Any, Any, _T]) -> _T:
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


def _result(future: asyncio.Future[_T]) -> _T | None:
    """The result of a future; None if it failed."""
    return None if future.cancelled() or future.exception() is not None else future.result()
