"""Patience: what is done over the bus again and again, until it is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from plancast_bus.errors import BusError, InvalidEnvelope, InvalidSubject, PayloadTooLarge

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts; they double from the first to the longest."""
UNSENDABLE = (PayloadTooLarge, InvalidEnvelope, InvalidSubject)
"""What no patience mends of a message."""


async def patiently(
    act: Callable[[], Awaitable[T]],
    logger: logging.Logger,
    *,
    final: tuple[type[BusError], ...] = UNSENDABLE,
    first: float = FIRST_PAUSE,
    about: Mapping[str, Any] | None = None,
) -> T:
    """Do something over the bus, again and again while it is away or refuses.

    Args:
        act: What is done.
        logger: Is told of each failure.
        final: Errors that are raised at once.
        first: Seconds before the second attempt.
        about: Fields of what is logged.
    """
    pause = first
    while True:
        try:
            return await act()
        except final:
            raise
        except BusError as error:
            logger.warning("trying on: %s", error, extra=about)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
