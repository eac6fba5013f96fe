"""Calls that can be cancelled from another process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from cachetools import LRUCache

T = TypeVar("T")
MAX_REMEMBERED = 10_000
"""Ids of cancelled calls that have not arrived yet: a cancellation may overtake its call."""


class CancellableCalls:
    """Calls in flight, by ids that their callers chose."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._overtaken: LRUCache[str, None] = LRUCache(MAX_REMEMBERED)

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, call_id: str, work: Coroutine[Any, Any, T]) -> T | None:
        """Execute a call; None when its caller has cancelled it."""
        if call_id in self._overtaken:
            del self._overtaken[call_id]
            work.close()
            return None
        task = self._tasks[call_id] = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait([task])
        finally:
            del self._tasks[call_id]
            task.cancel()
        return None if task.cancelled() else task.result()

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, also one that has not arrived yet."""
        task = self._tasks.get(call_id)
        if task is not None:
            task.cancel()
        else:
            self._overtaken[call_id] = None
