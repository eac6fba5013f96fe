"""Withdrawals: the tasks in flight whose requests were withdrawn, because their plans no longer wait for them.

An async handler is cancelled, a plain function sees ``task.cancelled``. What the ledger of effects records is not
interrupted: its outcome has to be known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import ContextVar

from plancast.worker import TaskContext
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)


class TaskWithdrawn(Exception):
    """Raised in place of the outcome of a task whose request was withdrawn while it ran, or before."""


class InFlight:
    """A task from its delivery until it is acknowledged or returned to the stream."""

    __slots__ = ("_handled", "_interrupted", "delivery", "settles", "task", "withdrawn")

    def __init__(self, delivery: Delivery, *, settles: bool = False) -> None:
        self.delivery = delivery
        self.settles = settles
        """It is the copy of a withdrawn request: nothing is begun, and what was begun is settled."""
        self.task: asyncio.Task[None] | None = None
        self.withdrawn = False
        self._handled: TaskContext | None = None
        self._interrupted: asyncio.Task[None] | None = None

    def begin(self, handled: TaskContext, *, recorded: bool, cancels: bool) -> None:
        """Note that the handler is called, and by which means a withdrawal reaches it.

        Raises:
            TaskWithdrawn: the request was withdrawn before; a recorded task goes on.
        """
        if self.withdrawn:
            handled.cancelled = True
            if not recorded:
                raise TaskWithdrawn
        self._handled = handled
        if cancels and not recorded:
            self._interrupted = self.task

    def end(self, *, recorded: bool) -> None:
        """Note that the handler has ended.

        Raises:
            TaskWithdrawn: the request was withdrawn meanwhile; a recorded task goes on.
        """
        self._handled = self._interrupted = None
        if self.withdrawn and not recorded:
            raise TaskWithdrawn

    def withdraw(self) -> None:
        """Tell the handler that nobody waits for its task."""
        if self.withdrawn:
            return
        self.withdrawn = True
        if self._handled is not None:
            self._handled.cancelled = True
        if self._interrupted is not None:
            self._interrupted.cancel()


IN_FLIGHT: ContextVar[InFlight] = ContextVar("IN_FLIGHT")
"""The task in flight of the current asyncio task."""


async def follow_withdrawals(bus: Bus, task_type: str, in_flight: Mapping[int, InFlight]) -> None:
    """Withdraw the tasks in flight, by the sequences of their requests, of which notices arrive; until cancelled."""

    async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
        held = in_flight.get(int(payload)) if len(payload) < 20 and payload.isdigit() else None
        if held is not None:
            held.withdraw()

    fields = {"task": task_type}
    subject = bus.subjects.withdrawals(task_type)
    subscription = await retrying(lambda: bus.subscribe(subject, notice), logger, fields=fields)
    try:
        await asyncio.Event().wait()
    finally:
        await subscription.close()
