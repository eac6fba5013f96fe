"""An event loop in virtual time, which runs ready callbacks in an order given by the seed."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

START = 1_767_225_600.0
"""Start of virtual time, in seconds since the epoch."""
NODE: ContextVar[str] = ContextVar("plancast_simulated_node", default="")
"""Simulated process of the running code."""


class Stalled(Exception):
    """Raised when no callback is ready and no timer is set."""


class Exhausted(Exception):
    """Raised when a run exceeds its maximum number of steps: something loops without waiting."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without threads and I/O: when nothing is ready, time jumps to the next timer.

    Callbacks that are ready together run in random order. Each belongs to the node (a simulated process) in whose
    context it was created. A node can be stopped at any await. A frozen node continues when it is thawed; a killed
    node never does, and even its ``finally`` blocks do not run.

    Args:
        random: Source of the order.
        hurry: Probability per step that time passes although work is ready, as on a busy machine.
        max_steps: Maximum number of callbacks.
    """

    def __init__(self, random: Random, *, hurry: float = 0.0, max_steps: int = 2_000_000) -> None:
        super().__init__()
        self.hurry = hurry
        self.steps = 0
        self.errors: list[str] = []
        """Unhandled exceptions."""
        self._random = random
        self._max_steps = max_steps
        self._now = START
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[asyncio.TimerHandle]
        self._stopping: bool
        self._parked: dict[str, list[asyncio.Handle]] = {}
        self._armed: dict[str, tuple[int, Callable[[], object]]] = {}
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self._now

    def spawn(self, node: str, work: Any) -> asyncio.Task[Any]:
        """Start a coroutine on a node."""
        return self.create_task(work, context=context_of(node))

    def stop_node(self, node: str) -> None:
        """Stop a node at this step until it is thawed."""
        self._parked.setdefault(node, [])

    def stop_after(self, node: str, steps: int, then: Callable[[], object]) -> None:
        """Stop a node after this number of steps, then call a function."""
        self._armed[node] = (steps, then)

    def thaw(self, node: str) -> None:
        """Continue a stopped node."""
        self._ready.extend(self._parked.pop(node, ()))

    def is_stopped(self, node: str) -> bool:
        """True for a frozen or killed node."""
        return node in self._parked

    def thaw_all(self) -> None:
        """Continue all nodes, also killed ones, so that they can be cleaned up."""
        self._armed.clear()
        for node in list(self._parked):
            self.thaw(node)

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count = max(0, getattr(self, "_timer_cancelled_count", 0) - 1)
        if not ready and not scheduled and not self._stopping:
            raise Stalled("no callback is ready and no timer is set")
        if scheduled and (not ready or (self.hurry and self._random.random() < self.hurry)):
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        batch = list(ready)
        ready.clear()
        if len(batch) > 1:
            self._random.shuffle(batch)
        for handle in batch:
            if handle.cancelled():
                continue
            if self._parked:
                parked = self._parked.get(handle._context.get(NODE, ""))  # type: ignore[attr-defined]
                if parked is not None:
                    parked.append(handle)
                    continue
            self.steps += 1
            handle._run()
            if self._armed:
                self._count_step(handle._context.get(NODE, ""))  # type: ignore[attr-defined]
        if self.steps > self._max_steps:
            raise Exhausted(f"not finished after {self.steps} steps")

    def _count_step(self, node: str) -> None:
        steps, then = self._armed.get(node, (0, None))
        if then is None:
            return
        if steps > 1:
            self._armed[node] = (steps - 1, then)
            return
        del self._armed[node]
        self.stop_node(node)
        then()

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there is no I/O."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no threads."""

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message")))


class LoopClock:
    """The virtual time of a loop as a :class:`plancast_bus.clock.Clock`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))


def context_of(node: str) -> Context:
    """Create the context of a node."""
    context = copy_context()
    context.run(NODE.set, node)
    return context
