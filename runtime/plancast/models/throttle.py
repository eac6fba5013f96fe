"""Pacing: work that takes the event loop for a while is done one piece at a time, and others come in between."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["in_turn"]

PAUSE_SECONDS: Final = 0.005
"""Between two pieces. A turn of another plan takes a dozen rounds of the event loop, in which it waits for sockets and
acknowledgements: with a piece in each round it would take several times as long."""
SPREAD_SECONDS: Final = 0.2
"""By which the last of those that wait comes later for the pauses, about: where many wait, pauses are shorter."""


async def in_turn(plan_id: str) -> None:
    """Wait for one's turn: callers go on in the order in which they came, a pause apart.

    Models answer in waves, and so do goals for them come. Prompts and decisions of a whole wave in one go would hold
    up every other plan of the process. A plan that comes alone, or again after itself, does not wait.
    """
    loop = asyncio.get_running_loop()
    turnstile = _turnstiles.get(loop)
    if turnstile is None:
        turnstile = _turnstiles[loop] = _Turnstile()
    await turnstile.go_through(plan_id, loop)


class _Turnstile:
    """Lets one through at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._last = ""
        """The plan that went through last."""
        self._opens_at = float("-inf")
        """For other plans, in the loop's time."""

    async def go_through(self, plan_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting += 1
        try:
            async with self._lock:
                pause = 0.0 if plan_id == self._last else self._opens_at - loop.time()
                await asyncio.sleep(max(0.0, pause))
                self._last = plan_id
                self._opens_at = loop.time() + min(PAUSE_SECONDS, SPREAD_SECONDS / self._waiting)
        finally:
            self._waiting -= 1


_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turnstile] = WeakKeyDictionary()
