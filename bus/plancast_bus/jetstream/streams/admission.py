"""Admission control: reserves the last quarter of a bounded stream, and of the volume, for requests of plans."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from plancast_bus.errors import AccessDenied, PublishRefused
from plancast_bus.jetstream.client.api import ApiError, JetStreamApi
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.topics import admitted_bytes, stream_full_message, volume_full_message

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

    def __init__(self, api: JetStreamApi, names: StreamNames, volume_bytes: int = -1) -> None:
        self._api = api
        self._names = names
        self._stream = names.requests
        self._volume = volume_bytes
        self._left: float = 0.0
        self._until = float("-inf")
        self._reading = asyncio.Lock()

    async def admit(self, size: int) -> None:
        """Admit a message of this size.

        Raises:
            PublishRefused: three quarters of the stream, or of the volume, are full.
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
        room = min(self._room_in_stream(info, size, bound), await self._room_in_volume(size))
        if room == inf:
            self._left, self._until = inf, now + UNBOUNDED_SECONDS
        else:
            self._left, self._until = max(size, room / FRACTION), now + FRESH_SECONDS

    def _room_in_stream(self, info: dict[str, Any], size: int, bound: int) -> float:
        most = admitted_bytes(bound)
        if most < 0:
            return inf
        held = int(info["state"]["bytes"])
        if held + size > most:
            self._left = 0.0
            raise PublishRefused(stream_full_message(self._stream, f"{held:,} of {bound:,} bytes"))
        return most - held

    async def _room_in_volume(self, size: int) -> float:
        most = admitted_bytes(self._volume)
        if most < 0:
            return inf
        held = sum(await asyncio.gather(*(self._held(name) for name in self._names.all())))
        if held + size > most:
            self._left = 0.0
            raise PublishRefused(volume_full_message(held, self._volume))
        return most - held

    async def _held(self, stream: str) -> int:
        try:
            return int((await self._api.call(f"STREAM.INFO.{stream}"))["state"]["bytes"])
        except (ApiError, AccessDenied):
            return 0
