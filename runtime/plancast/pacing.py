"""Pacing: work that takes the event loop for milliseconds is done one piece at a time, and others come in between."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

__all__ = ["in_turn"]

_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_turn() -> None:
    """Wait for one's turn: callers go on in the order in which they came, a round of the event loop apart.

    Models answer in waves, and so do goals for them come. Prompts and decisions of a whole wave in one round would hold
    up every other plan of the process.
    """
    loop = asyncio.get_running_loop()
    turnstile = _turnstiles.get(loop)
    if turnstile is None:
        turnstile = _turnstiles[loop] = asyncio.Lock()
    async with turnstile:
        await asyncio.sleep(0)
