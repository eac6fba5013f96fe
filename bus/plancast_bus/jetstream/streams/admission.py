"""Admission: requests from outside leave the last quarter of a bounded stream to what plans send."""

from __future__ import annotations

import asyncio

from plancast_bus.errors import AccessDenied, PublishRefused
from plancast_bus.jetstream.client.api import ApiError, JetStreamApi
from plancast_bus.topics import admitted_bytes, stream_full_message

FRESH_SECONDS = 1.0
"""How long what a stream has said of its size is taken to be true."""
UNBOUNDED_SECONDS = 30.0
"""The same of a stream without bound, or that may not be asked."""
PART = 16
"""A publisher takes so small a part of the room that is left before it asks again: there are others."""


class Admission:
    """Lets requests from outside into a stream, by its size as it says now and then.

    A publisher that does not ask here, such as ``nats pub``, is bounded by the stream itself.
    """

    def __init__(self, api: JetStreamApi, stream: str) -> None:
        self._api = api
        self._stream = stream
        self._left: float = 0.0
        self._until = float("-inf")
        self._asking = asyncio.Lock()

    async def admit(self, size: int) -> None:
        """Let a message of this size in.

        Raises:
            PublishRefused: three quarters of the stream are full.
            BusUnavailable: the stream does not answer.
        """
        if not self._is_allowed(size):
            async with self._asking:
                if not self._is_allowed(size):
                    await self._ask(size)
        self._left -= size

    def _is_allowed(self, size: int) -> bool:
        return size <= self._left and asyncio.get_running_loop().time() < self._until

    async def _ask(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        try:
            info = await self._api.call(f"STREAM.INFO.{self._stream}")
        except (ApiError, AccessDenied):  # it is not there, or may not be asked: publishing says it better
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
        self._left, self._until = max(size, (most - held) / PART), now + FRESH_SECONDS
