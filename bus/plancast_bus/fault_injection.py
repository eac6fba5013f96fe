"""Crash points: named places where a test kills the process, or drops, delays or duplicates a message.

Off unless a test installs a hook, or the process was started with ``PLANCAST_CRASH_POINTS`` set; then a point costs
one test of :data:`armed`. What comes over the wire cannot arm anything. The way to pass one::

    if crash_points.armed:
        await crash_points.reach(CrashPoint.TURN_COMMIT_AFTER, correlation_id)
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.ports.effects import CancelTimer, Effect, SetTimer, effect_kind

VARIABLE: Final = "PLANCAST_CRASH_POINTS"
"""Names a folder. By a file ``turn.commit.after.3`` in it, a process that gets there the third time kills itself."""

Passage = Literal["pass", "drop", "duplicate"]
"""What a hook says of a message: it goes on, is lost, or goes on twice. Where none passes only ``pass`` is right."""

Hook = Callable[["CrashPoint", str], Awaitable[Passage | None]]
"""Called with the point, and what it is about (a correlation id, a subject). May wait, and raise; None is ``pass``."""


class CrashPoint(StrEnum):
    """All points there are. Those in :data:`MESSAGES` have a message pass."""

    TURN_LOAD_BEFORE = "turn.load.before"
    """The plan actor knows nothing, and is about to read the checkpoint."""
    TURN_LOAD_AFTER = "turn.load.after"
    """The plan is activated, its last effects are out again, its event is not handled."""
    TURN_HANDLE_BEFORE = "turn.handle.before"
    """The plan is in memory, and its event is about to be handled."""
    TURN_HANDLE_AFTER = "turn.handle.after"
    """The event is handled: everything is staged, nothing is durable."""
    TURN_COMMIT_BEFORE = "turn.commit.before"
    """The checkpoint is made, and about to be written."""
    TURN_COMMIT_AFTER = "turn.commit.after"
    """The checkpoint is durable, and none of its effects is out."""
    TURN_EMIT_BEFORE = "turn.emit.before"
    """A turn's effects are about to go out: for the first time, or again at an activation."""
    TURN_EMIT_AFTER = "turn.emit.after"
    """All effects of a turn are out and acknowledged."""
    TURN_ACK_BEFORE = "turn.ack.before"
    """A plan actor is done with an event, and its host has not noted it for the dispatcher."""
    TURN_ACK_AFTER = "turn.ack.after"
    """The host has noted the outcome, and the dispatcher has not taken it."""

    EFFECT_BEFORE = "effect.before"
    """One effect is about to go out; those before it in the outbox are. Dropped, it counts as not acknowledged."""
    EFFECT_AFTER = "effect.after"
    """One effect has arrived; those behind it are not out. Dropped is its acknowledgement."""
    TIMER_SET_BEFORE = "timer.set.before"
    """As ``effect.before``, of an effect that sets a timer."""
    TIMER_SET_AFTER = "timer.set.after"
    """As ``effect.after``, of an effect that has set a timer."""
    TIMER_CANCEL_BEFORE = "timer.cancel.before"
    """As ``effect.before``, of an effect that cancels a timer."""
    TIMER_CANCEL_AFTER = "timer.cancel.after"
    """As ``effect.after``, of an effect that has cancelled a timer."""
    TIMER_DUE = "timer.due"
    """A due timer is with its plan's actor, which has not looked at it."""

    DISPATCHER_FETCHED = "dispatcher.fetched"
    """A dispatcher has an event from a stream, and has not noted it. Dropped, it comes again after ``ack_wait``."""
    DISPATCHER_HAND_BEFORE = "dispatcher.hand.before"
    """A batch is about to go to a host. Dropped, the host counts as lost."""
    DISPATCHER_REPORT_BEFORE = "dispatcher.report.before"
    """A host has reported, and the dispatcher has not read it. Dropped, the host counts as lost."""
    DISPATCHER_REPORT_AFTER = "dispatcher.report.after"
    """The dispatcher knows what is committed, and has acknowledged none of it."""
    DISPATCHER_ACK_BEFORE = "dispatcher.ack.before"
    """Acknowledgements are about to go to the stream. Dropped, the events come again after ``ack_wait``."""
    DISPATCHER_ACK_AFTER = "dispatcher.ack.after"
    """Acknowledgements are on their way to the stream, and not confirmed."""

    WORKER_FETCHED = "worker.fetched"
    """A worker has a task from the stream, and has not noted it. Dropped, it comes again after ``ack_wait``."""
    WORKER_HANDLE_BEFORE = "worker.handle.before"
    """The handler of a task is about to be called."""
    WORKER_HANDLE_AFTER = "worker.handle.after"
    """The task is done, and its answer is nowhere. Dropped, the answer counts as not acknowledged."""
    WORKER_ANSWER_AFTER = "worker.answer.after"
    """The answer is durable, and the task is not acknowledged."""
    WORKER_ACK_BEFORE = "worker.ack.before"
    """Acknowledgements of tasks are about to go. Dropped, the tasks are done again after ``ack_wait``."""
    WORKER_ACK_AFTER = "worker.ack.after"
    """Acknowledgements of tasks are on their way, and not confirmed."""

    REASONER_ASK_BEFORE = "reasoner.ask.before"
    """The pool has no kept answer, and is about to have a model asked."""
    REASONER_KEEP_BEFORE = "reasoner.keep.before"
    """A model has answered, which is to be paid for, and the answer is not kept."""
    REASONER_KEEP_AFTER = "reasoner.keep.after"
    """A model's answer is kept, and whoever asked does not have it."""


MESSAGES: Final = frozenset(
    {
        CrashPoint.EFFECT_BEFORE,
        CrashPoint.EFFECT_AFTER,
        CrashPoint.TIMER_SET_BEFORE,
        CrashPoint.TIMER_SET_AFTER,
        CrashPoint.TIMER_CANCEL_BEFORE,
        CrashPoint.TIMER_CANCEL_AFTER,
        CrashPoint.DISPATCHER_FETCHED,
        CrashPoint.DISPATCHER_HAND_BEFORE,
        CrashPoint.DISPATCHER_REPORT_BEFORE,
        CrashPoint.DISPATCHER_ACK_BEFORE,
        CrashPoint.WORKER_FETCHED,
        CrashPoint.WORKER_HANDLE_AFTER,
        CrashPoint.WORKER_ACK_BEFORE,
    }
)
"""The points where a message passes, which a hook may drop or duplicate."""
_EFFECTS: Final[dict[type[Effect], tuple[CrashPoint, CrashPoint]]] = {
    SetTimer: (CrashPoint.TIMER_SET_BEFORE, CrashPoint.TIMER_SET_AFTER),
    CancelTimer: (CrashPoint.TIMER_CANCEL_BEFORE, CrashPoint.TIMER_CANCEL_AFTER),
}
_COPIES: Final = {None: 1, "pass": 1, "drop": 0, "duplicate": 2}

armed = False
"""Whether anything may happen at a point; whoever passes one asks this first."""
_hook: Hook | None = None


async def reach(point: CrashPoint, about: str) -> int:
    """Be at a point; returns how often the message that passes there goes on: once, never, or twice.

    Raises:
        ValueError: a hook drops or duplicates where no message passes.
        Exception: whatever a hook raises.
    """
    passage = await _hook(point, about) if _hook is not None else None
    if passage not in (None, "pass") and point not in MESSAGES:
        raise ValueError(f"no message passes at {point}, so none can be said to {passage}")
    return _COPIES[passage]


async def one_by_one(effects: Sequence[Effect], carry_out: Callable[[Effect], Awaitable[int]]) -> list[int]:
    """Carry out effects where points are armed: each between its two points, and acknowledged before the next.

    Raises:
        BusError: at least one was not acknowledged; the others were carried out all the same.
    """
    sequences: list[int] = []
    failure: BusError | None = None
    for effect in effects:
        try:
            sequences.append(await _between_its_points(effect, carry_out))
        except BusError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return sequences


async def _between_its_points(effect: Effect, carry_out: Callable[[Effect], Awaitable[int]]) -> int:
    before, after = _EFFECTS.get(type(effect), (CrashPoint.EFFECT_BEFORE, CrashPoint.EFFECT_AFTER))
    about = f"{effect_kind(effect)} {getattr(effect, 'subject', '') or getattr(effect, 'plan', '')}"
    sequences = [await carry_out(effect) for _ in range(await reach(before, about))]
    if not sequences or not await reach(after, about):
        raise BusUnavailable(f"a crash point has lost: {about}")
    return sequences[0]


@contextlib.asynccontextmanager
async def installed(hook: Hook) -> AsyncIterator[None]:
    """Have a hook called at every point of this process while the context lasts.

    Raises:
        RuntimeError: another hook is installed.
    """
    if _hook is not None:
        raise RuntimeError("another hook is at the crash points")
    _install(hook)
    try:
        yield
    finally:
        _install(None)


def _install(hook: Hook | None) -> None:
    global _hook, armed
    _hook, armed = hook, hook is not None


class SelfKill:
    """The hook of real processes: it kills this one with SIGKILL where a file in a folder says so.

    A process claims a file by renaming it, so each kills once, whichever process and restart comes first.

    Args:
        folder: Looked into at each point; files may come and go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[CrashPoint] = Counter()

    async def __call__(self, point: CrashPoint, about: str) -> Passage:
        """Count, and die or go on."""
        self._counts[point] += 1
        name = f"{point}.{self._counts[point]}"
        try:
            os.rename(self._folder / name, self._folder / f"claimed-{name}-by-{os.getpid()}")
        except OSError:
            return "pass"
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(f"killed at {name}")


if os.environ.get(VARIABLE):
    _install(SelfKill(Path(os.environ[VARIABLE])))
