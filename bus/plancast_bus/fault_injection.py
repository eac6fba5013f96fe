"""Fault injection: named crash points where tests kill the process, or drop, delay or duplicate a message.

Disabled unless a test installs a hook or the process starts with ``PLANCAST_CRASH_POINTS``; a disabled point costs one
check of :data:`armed`. Nothing on the wire can enable it. Use::

    if fault_injection.armed:
        await fault_injection.reach(CrashPoint.TURN_COMMIT_AFTER, correlation_id)
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
from plancast_bus.ports.bus import Delivery
from plancast_bus.ports.effects import CancelTimer, Effect, SetTimer, effect_kind

VARIABLE: Final = "PLANCAST_CRASH_POINTS"
"""Environment variable that names a folder. A file ``turn.commit.after.3`` in it kills the process that reaches that
point the third time."""

Passage = Literal["pass", "drop", "duplicate"]
"""A hook's decision on a message. At points without a message only ``pass`` is allowed."""

Hook = Callable[["CrashPoint", str], Awaitable[Passage | None]]
"""Called with the point and its subject or correlation id. May wait and raise; None means ``pass``."""


class CrashPoint(StrEnum):
    """All crash points. A message passes at those in :data:`MESSAGES`."""

    TURN_LOAD_BEFORE = "turn.load.before"
    """The plan actor is about to read the checkpoint."""
    TURN_LOAD_AFTER = "turn.load.after"
    """The plan is activated, its last effects are sent again, its event is not handled."""
    TURN_HANDLE_BEFORE = "turn.handle.before"
    """The plan is in memory, and its event is about to be handled."""
    TURN_HANDLE_AFTER = "turn.handle.after"
    """The event is handled: everything is staged, nothing is durable."""
    VALUES_PUT_BEFORE = "values.put.before"
    """Large values of the turn are about to be stored."""
    VALUES_PUT_AFTER = "values.put.after"
    """They are stored, and no checkpoint refers to them."""
    TURN_COMMIT_BEFORE = "turn.commit.before"
    """The checkpoint is about to be written."""
    TURN_COMMIT_AFTER = "turn.commit.after"
    """The checkpoint is durable, and none of its effects is sent."""
    TURN_EMIT_BEFORE = "turn.emit.before"
    """A turn's effects are about to be sent, for the first time or again at an activation."""
    TURN_EMIT_AFTER = "turn.emit.after"
    """All effects of a turn are sent and acknowledged."""
    TURN_ACK_BEFORE = "turn.ack.before"
    """A plan actor has finished an event, and its host has not recorded the outcome."""
    TURN_ACK_AFTER = "turn.ack.after"
    """The host has recorded the outcome, and the dispatcher has not received it."""

    EFFECT_BEFORE = "effect.before"
    """One effect is about to be sent, after those before it in the outbox. Drop: it is not acknowledged."""
    EFFECT_AFTER = "effect.after"
    """One effect has arrived; those after it are not sent. Drop: its acknowledgement is lost."""
    TIMER_SET_BEFORE = "timer.set.before"
    """``effect.before`` of an effect that sets a timer."""
    TIMER_SET_AFTER = "timer.set.after"
    """``effect.after`` of an effect that sets a timer."""
    TIMER_CANCEL_BEFORE = "timer.cancel.before"
    """``effect.before`` of an effect that cancels a timer."""
    TIMER_CANCEL_AFTER = "timer.cancel.after"
    """``effect.after`` of an effect that cancels a timer."""
    TIMER_DUE = "timer.due"
    """The plan actor has received a due timer and not handled it."""

    DISPATCHER_FETCHED = "dispatcher.fetched"
    """A dispatcher has fetched an event and not recorded it. Drop: it is redelivered after ``ack_wait``."""
    DISPATCHER_HAND_BEFORE = "dispatcher.hand.before"
    """A batch is about to be sent to a host. Drop: the host counts as lost."""
    DISPATCHER_REPORT_BEFORE = "dispatcher.report.before"
    """A host has reported, and the dispatcher has not read the report. Drop: the host counts as lost."""
    DISPATCHER_REPORT_AFTER = "dispatcher.report.after"
    """The dispatcher knows what is committed, and has acknowledged nothing of it."""
    DISPATCHER_ACK_BEFORE = "dispatcher.ack.before"
    """Acknowledgements are about to be sent. Drop: the events are redelivered after ``ack_wait``."""
    DISPATCHER_ACK_AFTER = "dispatcher.ack.after"
    """Acknowledgements are sent and not confirmed."""

    WORKER_FETCHED = "worker.fetched"
    """A worker has fetched a task and not recorded it. Drop: it is redelivered after ``ack_wait``."""
    WORKER_HANDLE_BEFORE = "worker.handle.before"
    """The handler of a task is about to be called."""
    WORKER_HANDLE_AFTER = "worker.handle.after"
    """The task is done, and its response is not sent. Drop: the response is not acknowledged."""
    WORKER_ANSWER_AFTER = "worker.answer.after"
    """The response is durable, and the task is not acknowledged."""
    WORKER_ACK_BEFORE = "worker.ack.before"
    """Acknowledgements of tasks are about to be sent. Drop: the tasks are redelivered after ``ack_wait``."""
    WORKER_ACK_AFTER = "worker.ack.after"
    """Acknowledgements of tasks are sent and not confirmed."""

    REASONER_ASK_BEFORE = "reasoner.ask.before"
    """The pool has no stored reply, and is about to call a model."""
    REASONER_KEEP_BEFORE = "reasoner.keep.before"
    """A model has sent a billed reply, which is not stored."""
    REASONER_KEEP_AFTER = "reasoner.keep.after"
    """A model's reply is stored, and the caller does not have it."""


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
"""Points where a hook may drop or duplicate a message."""
_EFFECTS: Final[dict[type[Effect], tuple[CrashPoint, CrashPoint]]] = {
    SetTimer: (CrashPoint.TIMER_SET_BEFORE, CrashPoint.TIMER_SET_AFTER),
    CancelTimer: (CrashPoint.TIMER_CANCEL_BEFORE, CrashPoint.TIMER_CANCEL_AFTER),
}
_COPIES: Final = {None: 1, "pass": 1, "drop": 0, "duplicate": 2}

armed = False
"""A hook is installed; checked before each point."""
_hook: Hook | None = None


async def reach(point: CrashPoint, about: str) -> int:
    """Reach a point; return how often its message is to be passed on: 0, 1 or 2 times.

    Raises:
        ValueError: a hook drops or duplicates where no message passes.
        Exception: any exception of a hook.
    """
    passage = await _hook(point, about) if _hook is not None else None
    if passage not in (None, "pass") and point not in MESSAGES:
        raise ValueError(f"no message passes at {point}, so the hook cannot {passage} one")
    return _COPIES[passage]


async def pass_deliveries(point: CrashPoint, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Reach a point with each of some deliveries; return those that are passed on, each as often as the hook says."""
    return [each for each in deliveries for _ in range(await reach(point, each.subject))]


async def one_by_one(effects: Sequence[Effect], execute: Callable[[Effect], Awaitable[int]]) -> list[int]:
    """Execute effects one at a time, each between its two points and acknowledged before the next.

    Raises:
        BusError: at least one was not acknowledged; the others were executed nevertheless.
    """
    sequences: list[int] = []
    failure: BusError | None = None
    for effect in effects:
        try:
            sequences.append(await _between_its_points(effect, execute))
        except BusError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return sequences


async def _between_its_points(effect: Effect, execute: Callable[[Effect], Awaitable[int]]) -> int:
    before, after = _EFFECTS.get(type(effect), (CrashPoint.EFFECT_BEFORE, CrashPoint.EFFECT_AFTER))
    about = f"{effect_kind(effect)} {getattr(effect, 'subject', '') or getattr(effect, 'plan', '')}"
    sequences = [await execute(effect) for _ in range(await reach(before, about))]
    if not sequences or not await reach(after, about):
        raise BusUnavailable(f"a crash point has lost: {about}")
    return sequences[0]


@contextlib.asynccontextmanager
async def installed(hook: Hook) -> AsyncIterator[None]:
    """Install a hook for every point of this process while the context lasts.

    Raises:
        RuntimeError: another hook is installed.
    """
    if _hook is not None:
        raise RuntimeError("another hook is installed at the crash points")
    _install(hook)
    try:
        yield
    finally:
        _install(None)


def _install(hook: Hook | None) -> None:
    global _hook, armed
    _hook, armed = hook, hook is not None


class SelfKill:
    """The hook of real processes: kills this one with SIGKILL at the points that files in a folder name.

    A process claims a file by renaming it, so that each file kills once, across processes and restarts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[CrashPoint] = Counter()

    async def __call__(self, point: CrashPoint, about: str) -> Passage:
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
