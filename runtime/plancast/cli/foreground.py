"""Commands that stay: until SIGINT or SIGTERM asks them to end in order, or their connection is closed for good."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from plancast.terminal.output import note
from plancast_bus.errors import BusUnavailable

if TYPE_CHECKING:
    from plancast_bus.jetstream.core_nats import CoreNats
    from plancast_bus.ports.bus import Bus

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Foreground:
    """Hears the signals. The first one asks to end, a second Ctrl-C insists."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._task = asyncio.current_task()
        self._starting = True
        self._lost = ""
        """Why a connection is closed for good; empty while all stand."""
        self.arm()

    @property
    def asked_to_end(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    def arm(self) -> None:
        """Take the signals; again after something that sets handlers of its own, such as Ray."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._hear)

    def depend_on(self, connection: Bus | CoreNats) -> None:
        """End, with an error, when a connection is closed for good: a supervisor may start the command anew."""
        connection.on_lost(self._lose)

    async def until_asked(self) -> None:
        """What was started is up: wait for a signal.

        Raises:
            BusUnavailable: a connection was closed for good.
        """
        self._starting = False
        self.arm()
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
        note("ending in order; Ctrl-C once more ends at once")
        if self._starting and self._task is not None:
            self._task.cancel()


def run_in_foreground(work: Coroutine[Any, Any, int]) -> int:
    """Run a command that stays, on the fastest event loop there is. A signal while it starts is no failure."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
