"""Cache of model replies by idempotency key; equal requests in flight share one call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from cachetools import TTLCache

from plancast.models.port import ReasonReply

Key: TypeAlias = tuple[str, str]
"""Tenant and idempotency key: tenants never share a reply."""


@dataclass(slots=True)
class _Flight:
    """A call in flight, and the number of its waiters."""

    task: asyncio.Task[ReasonReply]
    waiters: int = 0


class ResponseCache:
    """Replies, bounded in number and age; failures are not cached.

    Args:
        size: Replies; the oldest is evicted first. 0 caches none, and only shares calls in flight.
        seconds: Maximum age.
        monotonic: A monotonic clock, in seconds.
    """

    def __init__(
        self, size: int = 1024, seconds: float = 600.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._replies: TTLCache[Key, ReasonReply] = TTLCache(size, seconds, monotonic)
        self._flights: dict[Key, _Flight] = {}

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def keys(self) -> list[Key]:
        """Keys of the calls in flight."""
        return list(self._flights)

    async def get(self, key: Key, call: Callable[[], Awaitable[ReasonReply]]) -> ReasonReply:
        """The cached reply, or the one in flight, or that of a new call.

        A call goes on while it has waiters; when the last one is cancelled, so is the call.
        """
        if (cached := self._replies.get(key)) is not None:
            return replace(cached, cached=True)
        flight = self._flights.get(key)
        shared = flight is not None
        if flight is None:
            flight = self._flights[key] = self._start(key, call)
        flight.waiters += 1
        try:
            reply = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                flight.task.cancel()
                self._forget(key, flight.task)  # later callers must not wait for a call that is being cancelled
        return replace(reply, cached=True) if shared else reply

    def _start(self, key: Key, call: Callable[[], Awaitable[ReasonReply]]) -> _Flight:
        async def flight() -> ReasonReply:
            return await call()

        task = asyncio.get_running_loop().create_task(flight())
        task.add_done_callback(lambda done: self._finish(key, done))
        return _Flight(task)

    def _finish(self, key: Key, task: asyncio.Task[ReasonReply]) -> None:
        self._forget(key, task)
        if self._replies.maxsize and not task.cancelled() and task.exception() is None:
            self._replies[key] = task.result()

    def _forget(self, key: Key, task: asyncio.Task[ReasonReply]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
