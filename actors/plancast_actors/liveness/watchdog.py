"""Watchdog and BlockWatch: kill a process whose event loop hangs, so that Ray restarts it."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from plancast_actors.liveness.crash_record import BLOCKED, OWN_END, STALLED, Marks

logger = logging.getLogger(__name__)
CHECKS = 10
"""Checks within the time limit."""
LAST_RESORT = 1.5
"""Multiple of the time limit after which the process is killed even if C code holds the GIL, so no thread runs."""
STDERR = 2


own_marks: list[Marks] = []
"""The marks of this process, if it keeps any."""


def end_process(reason: str) -> None:
    """End this process like a crash, so that Ray restarts it."""
    logger.critical("%s; the process ends, to be restarted", reason)
    _note_end(OWN_END)
    os._exit(1)


def _note_end(cause: int) -> None:
    for marks in own_marks:
        marks.note_end(cause)


class Watchdog:
    """Watches an event loop from a thread.

    The loop increments a counter several times within ``seconds``. If it stops, all stacks are written to standard
    error and the process is killed (SIGKILL). Checks are counted, not time, so a suspended machine is no hang.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._marks = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the running loop until :meth:`stop`."""
        self._mark(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _mark(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._stopped.is_set():
            return
        self._marks += 1
        faulthandler.dump_traceback_later(LAST_RESORT * self._seconds, exit=True, file=STDERR)
        loop.call_later(self._seconds / CHECKS, self._mark, loop)

    def _watch(self) -> None:
        seen, missed = 0, 0
        while not self._stopped.wait(self._seconds / CHECKS):
            missed = missed + 1 if self._marks == seen else 0
            seen = self._marks
            if missed >= CHECKS:
                self._end()

    def _end(self) -> None:
        logger.critical(
            "%s: the event loop has made no progress for %g s, the process is killed; see the stacks below",
            self._name,
            self._seconds,
        )
        faulthandler.dump_traceback(file=STDERR)
        _note_end(STALLED)
        os.kill(os.getpid(), signal.SIGKILL)


class BlockWatch:
    """Kills a process when one step of code of the app has blocked its event loop for some seconds.

    Only time counts in which the thread has run or has slept, not that in which it has waited for a processor. Imports
    do not count.

    Args:
        name: For the log.
        marks: Name the step that runs.
        seconds: The limit.
    """

    def __init__(self, name: str, marks: Marks, seconds: float) -> None:
        self._name = name
        self._marks = marks
        self._seconds = seconds
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the running loop, which is that of this thread, until :meth:`stop`."""
        loop = threading.current_thread()
        threading.Thread(target=self._watch, args=(loop,), name="block-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self, loop: threading.Thread) -> None:
        schedule = Path(f"/proc/self/task/{loop.native_id}/schedstat")
        tick = self._seconds / CHECKS
        marks, step, blocked, waited, checked = self._marks, 0, 0.0, 0.0, 0.0
        while not self._stopped.wait(tick):
            if not marks.running or marks.steps != step:
                step, blocked, waited = marks.steps, 0.0, _waited(schedule) if marks.running else 0.0
                checked = time.monotonic()
                continue
            last_checked, checked = checked, time.monotonic()
            last_waited, waited = waited, _waited(schedule)
            used = checked - last_checked - (waited - last_waited)
            blocked += min(2 * tick, max(0.0, used))  # not all of the time in which the process was stopped
            frame = sys._current_frames().get(loop.ident or 0)
            if blocked >= self._seconds and not _imports(frame) and marks.steps == step:
                self._end()

    def _end(self) -> None:
        self._marks.note_end(BLOCKED)
        logger.critical(
            "%s: a handler has blocked the event loop for %g s, the process is replaced and its event runs apart; see "
            "the stacks below",
            self._name,
            self._seconds,
        )
        faulthandler.dump_traceback(file=STDERR)
        os.kill(os.getpid(), signal.SIGKILL)


def _waited(schedule: Path) -> float:
    """Seconds that a thread has waited for a processor; 0 if the kernel does not tell."""
    try:
        return int(schedule.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _imports(frame: FrameType | None) -> bool:
    """True if a thread imports a module: that takes long once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
