"""An event loop in virtual time, which runs what is ready in an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

START = 1_767_225_600.0
"""Seconds since the epoch at which virtual time begins."""
NODE: ContextVar[str] = ContextVar("plancast_simulated_node", default="")
"""The simulated process that the running code belongs to."""


class Stalled(Exception):
    """Raised when nothing can go on any more: nothing is ready, and nobody waits for a time."""


class Exhausted(Exception):
    """Raised when a run has taken more steps than it may: something runs in a circle without waiting."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without threads, files and waiting: when nothing is ready, time jumps to the next timer.

    What is ready together runs in any order. Each piece of work belongs to the node (a simulated process) whose
    context it was made in. A node can be stopped at any await: frozen, it goes on when it is thawed;
    killed, it never does, and not even its ``finally`` is run.

    Args:
        random: Decides the order.
        hurry: Chance of each step that time passes although there is work to do, as on a busy machine.
        max_steps: Callbacks that are run before the loop gives up.
    """

    def __init__(self, random: Random, *, hurry: float = 0.0, max_steps: int = 2_000_000) -> None:
        super().__init__()
        self.hurry = hurry
        self.steps = 0
        self.errors: list[str] = []
        """What nobody has caught."""
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
        """Start a coroutine as a piece of a node."""
        return self.create_task(work, context=context_of(node))

    def stop_node(self, node: str) -> None:
        """Let a node do nothing more, from this very step on, until it is thawed."""
        self._parked.setdefault(node, [])

    def stop_after(self, node: str, steps: int, then: Callable[[], object]) -> None:
        """Stop a node when it has taken so many more steps, and call a function then."""
        self._armed[node] = (steps, then)

    def thaw(self, node: str) -> None:
        """Let a node go on where it was stopped."""
        self._ready.extend(self._parked.pop(node, ()))

    def is_stopped(self, node: str) -> bool:
        """Whether a node does nothing at the moment, or for ever."""
        return node in self._parked

    def thaw_all(self) -> None:
        """Let all nodes go on, also the dead, so that what they held can be cleared away."""
        self._armed.clear()
        for node in list(self._parked):
            self.thaw(node)

    # What BaseEventLoop asks of its kinds.

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count = max(0, getattr(self, "_timer_cancelled_count", 0) - 1)
        if not ready and not scheduled and not self._stopping:
            raise Stalled("nothing is ready, and nobody waits for a time")
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
            raise Exhausted(f"{self.steps} steps were taken, and there is no end")

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
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """There are no threads to be woken from."""

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
    """A context whose work belongs to a node."""
    context = copy_context()
    context.run(NODE.set, node)
    return context
