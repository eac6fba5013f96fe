"""ServerClock: the time of the nats-server, by which timers fire."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

from plancast_bus.errors import AccessDenied, BusError
from plancast_bus.jetstream.client.api import JetStreamApi, seconds_of

logger = logging.getLogger(__name__)
FIRST_SECONDS: Final = 2.0
"""Seconds for which a new connection waits for the server's time: the stream may have no leader at the moment."""
FOLLOW_SECONDS: Final = 10.0
"""Seconds between two readings of the server's time."""
TOLD_SECONDS: Final = 1.0
"""Difference to the machine's own clock from which on it is logged."""


def _elapsed() -> float:
    """Seconds since some moment; those count in which the machine was suspended, where it tells."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ServerClock:
    """Shows the time of the server that has a stream: machines disagree, also with themselves when they are set.

    It shows the machine's time where the server's cannot be read: before the stream exists, and to logins without
    JetStream.

    Args:
        api: Reads the server's time.
        stream: Name of the stream.
    """

    def __init__(self, api: JetStreamApi, stream: str) -> None:
        self._api = api
        self._operation = f"STREAM.INFO.{stream}"
        self._offset: float | None = None
        """The server's time less the seconds that have elapsed; None before the first reading."""
        self.precision: float | None = None
        """Seconds by which the last reading may be wrong; None: there was none."""
        self._following: asyncio.Task[None] | None = None

    def time(self) -> float:
        return time.time() if self._offset is None else _elapsed() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    async def follow(self) -> None:
        """Read the server's time now, and again and again until :meth:`stop`, unless this user may not."""
        is_allowed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                is_allowed = await self._read()
        if is_allowed and self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    async def _follow(self) -> None:
        is_allowed = True
        while is_allowed:
            await asyncio.sleep(FOLLOW_SECONDS)
            is_allowed = await self._read()

    async def _read(self) -> bool:
        """Read the server's time, if it answers; False if this user may not."""
        asked_at = _elapsed()
        try:
            told = seconds_of((await self._api.call(self._operation))["ts"])
        except (BusError, KeyError, ValueError) as error:
            logger.debug("the server's time cannot be read: %s", error)
            return not isinstance(error, AccessDenied)
        # It was told at some time between asking and now: what is possible by that is taken for right.
        earliest, latest = told - _elapsed(), told - asked_at
        before = self.time() - _elapsed()
        offset = min(max(before, earliest), latest)
        self.precision = latest - earliest
        if abs(offset - before) >= TOLD_SECONDS:
            logger.warning(
                "the machine's clock is %.1f s %s the nats-server's, which counts: synchronize both with NTP",
                abs(offset - before),
                "behind" if offset > before else "ahead of",
            )
        self._offset = offset
        return True
