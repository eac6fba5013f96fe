"""RowReads: values that are read from the checkpoints of a list's rows, cached by version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from cachetools import LRUCache

from plancast.console.service.plan_index import Row
from plancast_bus.errors import BusError
from plancast_bus.ports.checkpoints import Checkpoint, CheckpointStore

AT_ONCE = 64
Value = TypeVar("Value")


class RowReads(Generic[Value]):
    """Reads a value of each plan in a list, from its checkpoint.

    Args:
        store: Where the checkpoints are.
        read: The value of a checkpoint.
        kept: Size of the LRU cache.
        seconds: Time after which rows go without their values.
    """

    def __init__(
        self, store: CheckpointStore, read: Callable[[Checkpoint], Awaitable[Value]], *, kept: int, seconds: float
    ) -> None:
        self._store = store
        self._read = read
        self._seconds = seconds
        self._kept: LRUCache[str, tuple[int, Value]] = LRUCache(kept)

    async def of(self, rows: Iterable[Row]) -> dict[str, Value]:
        """Values by the rows' keys; without those that cannot be read in time, which the next call reads."""
        found: dict[str, Value] = {}
        unread: list[str] = []
        for row in rows:
            kept = self._kept.get(row.key)
            if kept is None or kept[0] != row.version:
                unread.append(row.key)
            else:
                found[row.key] = kept[1]

        keys = iter(unread)

        async def read() -> None:
            for key in keys:
                with suppress(BusError):
                    loaded = await self._load(key)
                    if loaded is not None:
                        self._kept[key] = loaded
                        found[key] = loaded[1]

        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await asyncio.gather(*(read() for _ in range(AT_ONCE)))
        return found

    async def _load(self, key: str) -> tuple[int, Value] | None:
        checkpoint = await self._store.load(key)
        return None if checkpoint is None else (checkpoint.version, await self._read(checkpoint))
