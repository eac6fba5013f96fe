"""Throttles CPU-heavy work: one plan per 5 ms, so that a burst of model replies does not block other plans."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

PAUSE_SECONDS: Final = 0.005
"""Between two plans. A turn of another plan takes a dozen iterations of the event loop, in which it waits for sockets
and acknowledgements: with prompt building in each of them it would take several times as long."""
SPREAD_SECONDS: Final = 0.2
"""Longest delay by pauses, about: where many plans wait, pauses are shorter."""


async def throttle(plan_id: str) -> None:
    """Wait for a slot: callers go on in the order of arrival, a pause apart.

    Goals and model replies arrive in bursts; prompts and decisions of a whole burst at once would hold up every other
    plan of the process. A plan that comes alone, or right after itself, does not wait.
    """
    loop = asyncio.get_running_loop()
    if loop not in _throttles:
        _throttles[loop] = _Throttle()
    await _throttles[loop].acquire(plan_id, loop)


class _Throttle:
    """One slot of an event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._last_plan = ""
        self._opens_at = float("-inf")
        """For other plans than the last, in the loop's time."""

    async def acquire(self, plan_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting += 1
        try:
            async with self._lock:
                pause = 0.0 if plan_id == self._last_plan else self._opens_at - loop.time()
                await asyncio.sleep(max(0.0, pause))
                self._last_plan = plan_id
                self._opens_at = loop.time() + min(PAUSE_SECONDS, SPREAD_SECONDS / self._waiting)
        finally:
            self._waiting -= 1


_throttles: WeakKeyDictionary[asyncio.AbstractEventLoop, _Throttle] = WeakKeyDictionary()
