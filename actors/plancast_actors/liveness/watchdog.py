"""Watchdog: kills a process whose event loop hangs, so that Ray restarts it."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import threading

logger = logging.getLogger(__name__)
CHECKS = 10
"""Checks within the time limit."""
LAST_RESORT = 1.5
"""Multiple of the time limit after which the process is killed even if C code holds the GIL, so no thread runs."""
STDERR = 2


def end_process(reason: str) -> None:
    """End this process like a crash, so that Ray restarts it."""
    logger.critical("%s; the process ends, to be restarted", reason)
    os._exit(1)


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
        os.kill(os.getpid(), signal.SIGKILL)
