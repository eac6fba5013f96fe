"""Answers kept for a while by idempotency key: whoever asks the same thing gets the same answer, paid for once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from plancast.models.port import ReasonReply

Key: TypeAlias = tuple[str, str]
"""Tenant and idempotency key: tenants never share an answer."""


@dataclass(slots=True)
class _Flight:
    """A question that is being asked, and how many wait for its answer."""

    task: asyncio.Task[ReasonReply]
    waiters: int = 0


class AnswerCache:
    """Bounded in number and time. Failures are not kept; equal questions at one time are asked once.

    Args:
        size: Answers kept; the oldest goes first.
        seconds: How long an answer is kept.
        monotonic: Seconds of a clock that only goes forward.
    """

    def __init__(
        self, size: int = 1024, seconds: float = 600.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._seconds = seconds
        self._monotonic = monotonic
        self._kept: OrderedDict[Key, tuple[float, ReasonReply]] = OrderedDict()
        self._flights: dict[Key, _Flight] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: Key, ask: Callable[[], Awaitable[ReasonReply]]) -> ReasonReply:
        """The kept answer, or the one that is on its way, or a new one.

        A question goes on while anybody waits for its answer; when the last one is cancelled, so is the question.
        """
        kept = self._look_up(key)
        if kept is not None:
            return replace(kept, cached=True)
        flight = self._flights.get(key)
        shared = flight is not None
        if flight is None:
            flight = self._flights[key] = self._take_off(key, ask)
        flight.waiters += 1
        try:
            reply = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                flight.task.cancel()
                self._forget(key, flight.task)  # whoever comes now must not wait for what is being cancelled
        return replace(reply, cached=True) if shared else reply

    def _take_off(self, key: Key, ask: Callable[[], Awaitable[ReasonReply]]) -> _Flight:
        async def flight() -> ReasonReply:
            return await ask()

        task = asyncio.get_running_loop().create_task(flight())
        task.add_done_callback(lambda done: self._land(key, done))
        return _Flight(task)

    def _land(self, key: Key, task: asyncio.Task[ReasonReply]) -> None:
        self._forget(key, task)
        if task.cancelled() or task.exception() is not None:
            return
        self._kept.pop(key, None)
        self._kept[key] = (self._monotonic() + self._seconds, task.result())
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def _forget(self, key: Key, task: asyncio.Task[ReasonReply]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]

    def _look_up(self, key: Key) -> ReasonReply | None:
        """Answers are kept in the order of their expiry, so the expired ones are at the front."""
        now = self._monotonic()
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            self._kept.popitem(last=False)
        kept = self._kept.get(key)
        return kept[1] if kept else None
