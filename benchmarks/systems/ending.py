"""Cleans up: whatever ends a benchmark, no process that it started survives.

A run is a child of the process that the user started. The parent only waits, adopts processes that are orphaned
below it, and ends all of them when the run is over. SIGTERM and SIGHUP become Ctrl-C for the run, which then stops its
servers in order; Ray's own SIGTERM handler, which exits at once, is not used. If the parent is killed with
SIGKILL, the kernel signals the run; if the run is killed, the parent ends the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from benchmarks.systems.processes import below
from benchmarks.systems.scratch import sweep

STOP_SECONDS = 45.0
"""Seconds that a run may take to stop its processes after a signal."""
LEAVE_SECONDS = 5.0
"""Seconds that remaining processes may take to end after SIGTERM, before SIGKILL."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent (the thread that started it) ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)


def dying_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """Return the same as a ``preexec_fn`` for a process that is yet to start."""
    return partial(die_with_parent, number)


def supervised(run: Callable[[], int | None]) -> int:
    """Run in a child process, and end its remaining processes after it; return its exit code, or 130."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    sweep()
    supervisor = os.getpid()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
        die_with_parent(signal.SIGINT)
        if os.getppid() != supervisor:
            os._exit(130)
        try:
            return run() or 0
        except (KeyboardInterrupt, asyncio.CancelledError):
            return 130
    signals: list[float] = []

    def end(number: int, frame: FrameType | None) -> None:
        signals.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT if len(signals) == 1 else signal.SIGKILL)
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the child too
    status = _reap(child)
    signal.setitimer(signal.ITIMER_REAL, 0)
    _end_rest()
    sweep()
    return 130 if signals or status < 0 else status


def _reap(child: int) -> int:
    """Wait for the child, and reap adopted processes meanwhile; return the exit code of the child."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _end_rest() -> None:
    """End all processes below this one."""
    begin = time.monotonic()
    signalled: set[int] = set()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = below(os.getpid())
        if not left:
            return
        late = time.monotonic() > begin + LEAVE_SECONDS
        for pid in left:
            if late or pid not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                signalled.add(pid)
        time.sleep(0.05)
