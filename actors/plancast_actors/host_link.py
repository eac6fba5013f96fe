"""HostLink: hands events to one plan host, and keeps them until the host has reported on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from plancast_actors.inbound import BUSY, PATIENCE, HostPort, Inbound, Outcome

logger = logging.getLogger(__name__)
RETRY_SECONDS = 0.1
"""First pause after a host was lost; it doubles up to 2 s."""


class HostLink:
    """Hands events to one host, in batches, and keeps them until the host has reported on them.

    When the host is lost, what it had not reported on is handed over again: plan actors know what
    they have processed.
    """

    def __init__(
        self, dispatcher: str, host: HostPort, max_batch: int, settle: Callable[[list[Outcome]], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._host = host
        self._max_batch = max_batch
        self._settle = settle
        self._queue: list[Inbound] = []
        self._handed: dict[int, Inbound] = {}
        self._wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        self._lost = False
        self._called_at = 0.0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def idle(self) -> bool:
        """Whether the host owes nothing."""
        return not self._queue and not self._handed

    @property
    def lost(self) -> bool:
        """Whether the host is away at the moment."""
        return self._lost

    def put(self, inbound: Inbound) -> None:
        """Hand an event over, with whatever else is ready."""
        self._queue.append(inbound)
        self._wake.set()

    async def close(self) -> None:
        """Stop; what is handed over stays unacknowledged."""
        tasks = [self._task, *self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._lost:
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)
                self._lost = False
                self._queue = [*self._handed.values(), *self._queue]
                self._handed.clear()
            called_before = asyncio.get_running_loop().time() - self._called_at
            if called_before < PATIENCE and len(self._handed) >= BUSY:
                await asyncio.sleep(PATIENCE - called_before)  # one call for many events
            while self._queue:
                batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
                self._handed.update((inbound.token, inbound) for inbound in batch)
                self._call(batch, wait=self._waiting is None)
            if self._handed and self._waiting is None:
                self._call([], wait=True)
            if not self._lost:
                pause = RETRY_SECONDS

    def _call(self, batch: list[Inbound], *, wait: bool) -> None:
        loop = asyncio.get_running_loop()
        self._called_at = loop.time()
        task = loop.create_task(self._exchange(batch, wait))
        self._calls.add(task)
        task.add_done_callback(self._called)
        if wait:
            self._waiting = task

    def _called(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if task is self._waiting:
            self._waiting = None
        if self._handed or self._queue:
            self._wake.set()

    async def _exchange(self, batch: list[Inbound], wait: bool) -> None:
        try:
            outcomes = await self._host.exchange(self._dispatcher, batch, wait)
        except Exception as error:  # HostLost; whatever else it is, nothing is known of the events
            if not self._lost:
                logger.warning("plan host lost, %d events are handed over again: %s", len(self._handed), error)
            self._lost = True
            return
        for outcome in outcomes:
            self._handed.pop(outcome[0], None)
        if outcomes:
            self._settle(outcomes)
