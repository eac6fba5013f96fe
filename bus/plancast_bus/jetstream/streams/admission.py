"""Admission control: reserves the last quarter of a bounded stream for requests of plans."""

from __future__ import annotations

import asyncio

from plancast_bus.errors import AccessDenied, PublishRefused
from plancast_bus.jetstream.client.api import ApiError, JetStreamApi
from plancast_bus.topics import admitted_bytes, stream_full_message

FRESH_SECONDS = 1.0
"""Seconds for which a stream's reported size is used."""
UNBOUNDED_SECONDS = 30.0
"""The same for a stream that has no bound, or whose size may not be read."""
FRACTION = 16
"""A publisher uses this fraction of the remaining room before it reads the size again, since there are others."""


class Admission:
    """Admits requests from outside to a stream, by its size as read from time to time.

    Publishers that bypass it, such as ``nats pub``, are limited by the stream's own bound.
    """

    def __init__(self, api: JetStreamApi, stream: str) -> None:
        self._api = api
        self._stream = stream
        self._left: float = 0.0
        self._until = float("-inf")
        self._reading = asyncio.Lock()

    async def admit(self, size: int) -> None:
        """Admit a message of this size.

        Raises:
            PublishRefused: three quarters of the stream are full.
            BusUnavailable: the stream does not respond.
        """
        if not self._is_allowed(size):
            async with self._reading:
                if not self._is_allowed(size):
                    await self._read_size(size)
        self._left -= size

    def _is_allowed(self, size: int) -> bool:
        return size <= self._left and asyncio.get_running_loop().time() < self._until

    async def _read_size(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        try:
            info = await self._api.call(f"STREAM.INFO.{self._stream}")
        except (ApiError, AccessDenied):  # missing or denied: publishing reports it better
            info = {}
        bound = info.get("config", {}).get("max_bytes", -1)
        most = admitted_bytes(bound)
        if most < 0:
            self._left, self._until = float("inf"), now + UNBOUNDED_SECONDS
            return
        held = info["state"]["bytes"]
        if held + size > most:
            self._left = 0.0
            raise PublishRefused(stream_full_message(self._stream, f"{held:,} of {bound:,} bytes"))
        self._left, self._until = max(size, (most - held) / FRACTION), now + FRESH_SECONDS
