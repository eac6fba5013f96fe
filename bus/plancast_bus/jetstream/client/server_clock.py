"""ServerClock: the time of the nats-server, by which timers fire."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from plancast_bus.errors import BusError
from plancast_bus.jetstream.client.api import JetStreamApi, seconds_of

logger = logging.getLogger(__name__)
FOLLOW_SECONDS: Final = 10.0
"""Seconds between two readings of the server's time."""
TOLD_SECONDS: Final = 1.0
"""Difference to the machine's own clock from which on it is logged."""


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
        self._offset = time.time() - time.monotonic()
        self.precision: float | None = None
        """Seconds by which the last reading may be wrong; None: there was none."""
        self._following: asyncio.Task[None] | None = None

    def time(self) -> float:
        return time.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    async def follow(self) -> None:
        """Read the server's time now, and again and again until :meth:`stop`."""
        await self._read()
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            await self._read()

    async def _read(self) -> None:
        asked_at = time.monotonic()
        try:
            told = seconds_of((await self._api.call(self._operation))["ts"])
        except (BusError, KeyError, ValueError) as error:
            logger.debug("the server's time cannot be read: %s", error)
            return
        # It was told at some time between asking and now: what is possible by that is taken for right.
        earliest, latest = told - time.monotonic(), told - asked_at
        offset = min(max(self._offset, earliest), latest)
        self.precision = latest - earliest
        if abs(offset - self._offset) >= TOLD_SECONDS:
            logger.warning(
                "the machine's clock is %.1f s %s the nats-server's, which counts: synchronize both with NTP",
                abs(offset - self._offset),
                "behind" if offset > self._offset else "ahead of",
            )
        self._offset = offset
