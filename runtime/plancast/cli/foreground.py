"""Commands that run in the foreground until SIGINT, SIGTERM or the permanent loss of a connection."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from plancast.cli.errors import DONE
from plancast.terminal.output import note, print_json, print_line
from plancast_bus.errors import BusUnavailable

if TYPE_CHECKING:
    from plancast_bus.jetstream.core_nats import CoreNats
    from plancast_bus.ports.bus import Bus

SIGNALS = (signal.SIGINT, signal.SIGTERM)

GC_THRESHOLD = (50_000, 50, 100)
"""As in actors: Python's default thresholds would scan all streams many times."""


class Foreground:
    """Handles signals: the first one requests a graceful shutdown, a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._task = asyncio.current_task()
        self._starting = True
        self._lost = ""
        """Reason of a permanently closed connection; empty while all are open."""
        self.arm()

    @property
    def asked_to_end(self) -> bool:
        return self._asked.is_set()

    def arm(self) -> None:
        """Install the handlers; repeat this after code that installs its own, such as Ray."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._hear)

    def depend_on(self, connection: Bus | CoreNats) -> None:
        """End with an error when a connection is closed permanently, so that a supervisor can restart the command."""
        connection.on_lost(self._lose)

    async def until_asked(self) -> None:
        """Wait for a signal, once everything is up.

        Raises:
            BusUnavailable: a connection was closed permanently.
        """
        self._starting = False
        self.arm()
        # A collection of all that a thousand streams hold would delay each of them; what is loaded now stays.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        await self._asked.wait()
        if self._lost:
            raise BusUnavailable(self._lost)

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self._asked.set()

    def _hear(self) -> None:
        if self._asked.is_set():
            return
        self._asked.set()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note("shutting down; press Ctrl-C again to end at once")
        if self._starting and self._task is not None:
            self._task.cancel()


def announce(line: str, document: dict[str, Any], *, as_json: bool) -> None:
    """Print the line that tells other programs that a command is up."""
    if as_json:
        print_json({"ready": True, **document}, compact=True)
    else:
        print_line(f"ready {line}")


def run_in_foreground(work: Callable[[Foreground], Coroutine[Any, Any, str | None]]) -> int:
    """Run a foreground command, on uvloop where it is installed; ``work`` may return a text for the final note.

    A signal that cancels the start is a regular end.
    """

    async def run() -> None:
        foreground, summary = Foreground(), None
        try:
            summary = await work(foreground)
        except asyncio.CancelledError:
            if not foreground.asked_to_end:
                raise
        note(f"ended{summary or ''}")

    try:
        import uvloop
    except ImportError:
        asyncio.run(run())
    else:
        uvloop.run(run())
    return DONE
