"""Watchdog: ends a process that can do nothing any more, so that it is started anew."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import threading

logger = logging.getLogger(__name__)
CHECKS = 10
"""How often within the time it is looked whether the loop has moved."""
LAST_RESORT = 1.5
"""Times the time after which C code that holds the interpreter's lock, so that no thread can run, is ended too."""
STDERR = 2


def end_process(reason: str) -> None:
    """End this process as a crash would, so that Ray starts it anew."""
    logger.critical("%s; the process is ended, to be started anew", reason)
    os._exit(1)


class Watchdog:
    """Watches the event loop that it is started on, from a thread.

    The loop makes a mark several times within ``seconds``. When the marks stay away, all stacks go to standard error,
    and the process ends by SIGKILL: nothing in it is trusted to end in order. Checks are counted, not time, so that a
    process that was stopped as a whole (a machine that slept) is not taken for one that hangs.

    Args:
        name: Whose process it is, for the log.
        seconds: How long the loop may make no progress.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._marks = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the running loop, until :meth:`stop`."""
        self._mark(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
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
            "%s: the event loop has made no progress for %g s, the process is ended; see the stacks below",
            self._name,
            self._seconds,
        )
        faulthandler.dump_traceback(file=STDERR)
        os.kill(os.getpid(), signal.SIGKILL)
