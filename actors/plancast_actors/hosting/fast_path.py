"""QuickTurn: a turn that runs nobody's code, taken without a task of its own.

A state machine's turn waits for two things only, the acknowledgements of its commit and of its effects, so callbacks
do. What they meet is the good case: whatever else happens, the event goes the long way, :meth:`PlanActor._take`, which
begins from the checkpoint and finds there how far this turn has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.hosting.activation import digest_of
from plancast_actors.hosting.protocol import Inbound
from plancast_actors.telemetry.samples import Laps, laps_of
from plancast_bus.errors import CommitConflict
from plancast_bus.ports.checkpoints import Checkpoint

if TYPE_CHECKING:
    from plancast_actors.hosting.plan_actor import PlanActor
    from plancast_actors.hosting.reports import Reports

_T = TypeVar("_T")


class QuickTurn:
    """A turn whose commit, or whose effects, are under way."""

    __slots__ = ("_actor", "_checkpoint", "_laps", "_turn", "inbound", "reports")

    def __init__(
        self, actor: PlanActor, inbound: Inbound, reports: Reports, turn: Turn, checkpoint: Checkpoint
    ) -> None:
        self.inbound = inbound
        self.reports = reports
        self._actor = actor
        self._turn = turn
        self._checkpoint = checkpoint
        self._laps: Laps | None = None

    @classmethod
    def begin(cls, actor: PlanActor, inbound: Inbound, reports: Reports) -> QuickTurn | None:
        """Take the turn up to its commit; None when the event has to go the long way.

        Raises:
            InvalidEnvelope: it is no event.
        """
        if inbound.convicted:
            return None
        state, host = actor.state, actor.host
        laps = None if host.samples is None else laps_of(host.samples, inbound.token)
        event, is_timer, in_full = host.decode(inbound)
        digest = digest_of(event.id)
        if not (state.loaded or actor.is_surely_new(event)) or digest in state.processed:
            return None
        # A timer looks for what came before it.
        if is_timer or not host.environment.runs_itself(event, state.plan):
            return None
        turn = actor.turn(inbound, event, is_timer)
        if turn.new_child is not None:  # it may be refused
            turn.close()
            return None
        if in_full and not turn.outbox.trace:  # else the event is noted with the trace of its turn
            turn.packed_event = inbound.payload
        try:
            verdict = at_once(turn.run())
            if verdict is not TurnOutcome.COMMIT:
                turn.close()  # it has changed nothing
                return None
            if not state.may_stage(turn, turn.now):
                raise LookupError("the state machine is not in the store yet")
            checkpoint = state.stage(turn, digest)
            committing = host.bus.checkpoints.begin_commit(checkpoint)
        except Exception:
            # The long way does it again, and knows what to make of the error.
            turn.close()
            state.unload_turn()
            return None
        taken = cls(actor, inbound, reports, turn, checkpoint)
        if laps is not None:
            taken._laps = laps
            laps.end("turn")
        committing.add_done_callback(taken._committed)
        return taken

    def _committed(self, committing: asyncio.Future[int]) -> None:
        version = _result(committing)
        if self._actor.quick is not self:
            return  # the actor was stopped
        state, now = self._actor.state, self._actor.host.clock.time()
        if version is None:
            if not committing.cancelled() and isinstance(committing.exception(), CommitConflict):
                self._actor.host.commits_refused += 1
            self._fail()
            return
        state.committed(self._turn, self._checkpoint, version)
        if self._laps is not None:
            self._laps.end("commit")
        effects = self._checkpoint.outbox
        if not state.may_stage(self._turn, now):
            self._fail()  # the commit took days: the state machine has to be put into the store again
        elif effects:
            try:
                emitting = self._actor.host.bus.begin_emit(effects)
            except Exception:
                self._fail()
            else:
                emitting.add_done_callback(self._emitted)
        else:
            self._end()

    def _emitted(self, emitting: asyncio.Future[list[int]]) -> None:
        sequences = _result(emitting)
        if self._actor.quick is not self:
            return
        if sequences is None:
            self._fail()
            return
        self._actor.state.emitted_at(self._checkpoint.outbox, sequences)
        if self._laps is not None:
            self._laps.end("emit")
        self._end()

    def _end(self) -> None:
        self._turn.close()
        self._actor.took(self)

    def _fail(self) -> None:
        self._turn.close()
        self._actor.take_again(self)


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """What a coroutine returns that has nothing to wait for.

    Raises:
        RuntimeError: it waits.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    work.close()
    raise RuntimeError("it waits")


def _result(future: asyncio.Future[_T]) -> _T | None:
    """What a future brings; None when that is an error."""
    return None if future.cancelled() or future.exception() is not None else future.result()
