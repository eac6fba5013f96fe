"""Calls that can be cancelled from another process. No I/O."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
MAX_REMEMBERED = 10_000
"""Cancelled calls that have not begun, because a cancel may overtake its call."""


class Calls:
    """The calls in hand, by an id that their callers chose."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._overtaken: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, call_id: str, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work of a call; None when the caller has cancelled it, and so does not listen."""
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

    def cancel(self, call_id: str) -> None:
        """Cancel a call, also one that has not come yet."""
        task = self._tasks.get(call_id)
        if task is not None:
            task.cancel()
            return
        self._overtaken[call_id] = None
        if len(self._overtaken) > MAX_REMEMBERED:
            self._overtaken.popitem(last=False)
