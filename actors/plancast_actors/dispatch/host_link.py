"""HostLink: hands events to one plan host, and keeps them until the host has reported on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from plancast_actors.dispatch.quarantine import Quarantine
from plancast_actors.hosting.protocol import HostLost, HostPort, Inbound, Outcome, patience
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

logger = logging.getLogger(__name__)
RETRY_SECONDS = 0.1
"""First pause after a host was lost; it doubles up to LONGEST_RETRY."""
LONGEST_RETRY = 0.5
"""A longer one would be added to the time that plans stand still, since Ray has a process again after one or two."""
TRIAL_TICK = 0.1
"""Seconds between two looks at what is suspected to bring hosts down."""
LIFE_SECONDS = 5.0
"""Seconds between two looks whether a host lives the life that it was met in: one that came and went between two
calls has nobody notice it, and the new one knows nothing of what the old one had in hand."""


@dataclass(frozen=True)
class HostLimits:
    """What a host is granted."""

    index: int = 0
    """Which dispatcher it is granted by,"""
    count: int = 1
    """and of how many that share the host."""
    max_losses: int = 4
    """Losses in a row that an event may be in hand in; see :class:`plancast_actors.dispatch.quarantine.Quarantine`."""
    answer_seconds: float | None = None
    """Seconds that a call may take before the host's process is ended; None: for ever."""
    start_seconds: float | None = None
    """The same for a host that is coming to life."""


class HostLink:
    """Hands events to one host, in batches, and keeps them until the host has reported on them.

    When the host is lost, what it had not reported on is handed over again: plan actors know what
    they have processed. An event that brings its host down again and again is found, and put aside.
    """

    def __init__(
        self,
        dispatcher: str,
        host: HostPort,
        max_batch: int,
        settle: Callable[[list[Outcome]], None],
        limits: HostLimits = HostLimits(),
    ) -> None:
        self._dispatcher = dispatcher
        self._caller = f"{dispatcher}/{uuid4().hex}"
        """Not the name alone: a call of a dispatcher of this name that is gone may still wait in the host, and would
        take the reports that are for this one."""
        self._host = host
        self._max_batch = max_batch
        self._settle = settle
        self._queue: list[Inbound] = []
        self._handed: dict[int, Inbound] = {}
        self._parked: dict[int, Inbound] = {}
        """Handed over too, but they wait for a model: no report is to be expected soon."""
        self._limits = limits
        self._quarantine = Quarantine(limits.max_losses, limits.index, limits.count)
        self._life = ""
        """Which of the host's lives events are handed to."""
        self._met_at = 0.0
        self._nudge: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        self._lost = False
        self._called_at = 0.0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def idle(self) -> bool:
        """Whether the host owes nothing."""
        return not (self._queue or self._handed or self._parked or self._quarantine.busy)

    @property
    def lost(self) -> bool:
        """Whether the host is away at the moment."""
        return self._lost

    @property
    def suspected(self) -> int:
        """Events that are tried one by one, since they may be what ends the host."""
        return self._quarantine.suspected

    def put(self, inbound: Inbound) -> None:
        """Hand an event over, with whatever else is ready."""
        self._queue.append(inbound)
        self._wake.set()

    async def close(self) -> None:
        """Stop; what is handed over stays unacknowledged."""
        if self._nudge is not None:
            self._nudge.cancel()
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
                pause = min(LONGEST_RETRY, pause * 2)
            if (self._lost or not self._life) and not await self._meet():
                self._wake.set()
                continue
            early = patience(len(self._handed)) - (asyncio.get_running_loop().time() - self._called_at)
            if early > 0:
                await asyncio.sleep(early)
            if not self._quarantine.busy:
                self._hand_over()
            else:
                self._try_suspects()
            if (self._handed or self._parked) and self._waiting is None:
                self._call([], wait=True)
            if not self._lost:
                pause = RETRY_SECONDS

    async def _meet(self) -> bool:
        """Wait for the host; when its process is another one than before, the cause may be among what was in hand."""
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                life = await self._host.incarnation()
        except Exception as error:
            self._lost = True
            logger.info("plan host is away: %s", error)
            await self._recycle_after(error)
            return False
        handed = [*self._parked.values(), *self._handed.values()]
        self._handed.clear()
        self._parked.clear()
        if self._life in ("", life):
            again = self._quarantine.interrupted(handed)
        else:
            again, hopeless = self._quarantine.lost(handed, asyncio.get_running_loop().time())
            if hopeless:
                self._settle([Outcome(inbound.token, "crashed", 0.0) for inbound in hopeless])
        self._lost, self._life = False, life
        self._met_at = asyncio.get_running_loop().time()
        self._queue = [*again, *self._queue]
        return True

    async def _meet_again(self) -> None:
        self._met_at = asyncio.get_running_loop().time()
        if await self._host.incarnation() != self._life:
            raise HostLost("it has been restarted in between")

    async def _recycle_after(self, error: Exception) -> None:
        """End the process of a host that did not answer in time."""
        if isinstance(error, TimeoutError):
            try:
                await self._host.recycle()
            except Exception as failure:
                logger.warning("a plan host that does not answer could not be ended: %s", failure)

    def _hand_over(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
            self._handed.update((inbound.token, inbound) for inbound in batch)
            self._call(batch, wait=self._waiting is None)

    def _try_suspects(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._quarantine.holds_back(loop.time()):
            self._hand_over()
        suspect = self._quarantine.next_trial(len(self._handed), loop.time())
        if suspect is not None:
            self._handed[suspect.token] = suspect
            self._call([suspect], wait=self._waiting is None)
        if self._nudge is None:
            self._nudge = loop.call_later(TRIAL_TICK, self._look_again)

    def _look_again(self) -> None:
        self._nudge = None  # loops call a moment before the time that a timer tells
        self._wake.set()

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
        if not self.idle:
            self._wake.set()

    async def _exchange(self, batch: list[Inbound], wait: bool) -> None:
        try:
            if fault_injection.armed:
                outcomes = await self._exchange_at_points(batch, wait)
            else:
                async with asyncio.timeout(self._limits.answer_seconds):
                    outcomes = await self._host.exchange(self._caller, batch, wait)
                    if asyncio.get_running_loop().time() > self._met_at + LIFE_SECONDS:
                        await self._meet_again()
        except Exception as error:  # HostLost; whatever else it is, nothing is known of the events
            known, self._lost = self._lost, True
            if not known:
                in_hand = len(self._handed) + len(self._parked)
                said = str(error) or "no answer in time"
                logger.warning("plan host lost, %d events are handed over again: %s", in_hand, said)
                await self._recycle_after(error)
            return
        if fault_injection.armed and outcomes:
            await fault_injection.reach(CrashPoint.DISPATCHER_REPORT_AFTER, self._dispatcher)
        for token, kind, _ in outcomes:
            inbound = self._handed.pop(token, None) or self._parked.pop(token, None)
            if kind == "parked" and inbound is not None:
                self._parked[token] = inbound
        if self._quarantine.losses:
            self._quarantine.reported(outcomes)
        if outcomes:
            self._settle(outcomes)

    async def _exchange_at_points(self, batch: list[Inbound], wait: bool) -> list[Outcome]:
        calls = await fault_injection.reach(CrashPoint.DISPATCHER_HAND_BEFORE, self._dispatcher) if batch else 1
        outcomes: list[Outcome] = []
        for _ in range(calls):
            outcomes += await self._host.exchange(self._caller, batch, wait)
        copies = await fault_injection.reach(CrashPoint.DISPATCHER_REPORT_BEFORE, self._dispatcher) if outcomes else 1
        if not calls or not copies:
            raise HostLost("a crash point has lost the call")
        return outcomes * copies
