"""HostLink: sends events to one plan host, and keeps them until the host has reported on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from plancast_actors.dispatch.quarantine import Blame, Quarantine
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.plan_actors.protocol import HostLost, HostPort, HostReleased, Inbound, Outcome, batch_delay
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

if TYPE_CHECKING:
    from plancast_actors.dispatch.suspects import Suspects

logger = logging.getLogger(__name__)
ANSWER_STALLS, START_STALLS = 3, 10
"""Multiples of ``stall_seconds`` after which a host that does not answer, or does not start, is killed."""
RETRY_SECONDS = 0.1
"""First backoff after a host was lost; doubles up to MAX_RETRY_SECONDS."""
MAX_RETRY_SECONDS = 0.5
"""Plans make no progress meanwhile, and Ray restarts a process within one or two seconds."""
TRIAL_TICK = 0.1
"""Seconds between two checks of suspects."""
PARK_SECONDS = 0.05
"""Seconds that events wait for a host to be granted before they are parked."""
INCARNATION_SECONDS = 5.0
"""Seconds between two checks of the host's incarnation: a restart between two calls goes unnoticed otherwise, and the
new process does not know the events in flight."""


class HostLink:
    """Sends events to one host, in batches, and keeps them until the host has reported on them.

    After the host was lost, the events it had not reported on are sent again: plan actors know which events they have
    processed. An event that crashes its host repeatedly is found by the :class:`Quarantine`.

    Args:
        host: The host.
        options: The dispatcher's.
        settle: Called with the outcomes that the host reports.
        granted: Whether the host is granted to a plan for a time. Events that wait for it are parked.
        suspects: Finds by the host's crash record which events have ended it, and takes those; None: each may have.
        keeps_suspects: Whether suspects stay here, since this is the host for them.
    """

    def __init__(
        self,
        host: HostPort,
        options: DispatcherOptions,
        settle: Callable[[list[Outcome]], None],
        *,
        granted: bool = False,
        suspects: Suspects | None = None,
        keeps_suspects: bool = False,
    ) -> None:
        self._dispatcher = options.name
        self._caller = f"{options.name}/{uuid4().hex}"
        """Unique: the host may still have a waiting call of an earlier dispatcher with this name, which would take
        reports that are for this one."""
        self._host = host
        self._max_batch = options.max_batch
        self._answer_seconds = ANSWER_STALLS * options.stall_seconds or None
        self._start_seconds = (START_STALLS * options.stall_seconds or None) if not granted else None
        self._granted = granted
        self._suspects = suspects
        self._keeps_suspects = keeps_suspects
        self._parking: asyncio.TimerHandle | None = None
        self._settle = settle
        self._queue: list[Inbound] = []
        self._in_flight: dict[int, Inbound] = {}
        self._parked: dict[int, Inbound] = {}
        """In flight too, but waiting for a model: no report is expected soon."""
        self._quarantine = Quarantine(options.max_losses, options.index, options.count)
        self._incarnation = ""
        """The incarnation of the host that has the events."""
        self._checked_at = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        """The call that waits for outcomes."""
        self._lost = False
        self._called_at = 0.0
        self._successor: HostLink | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def idle(self) -> bool:
        """True if no event is queued or in flight."""
        return not (self._queue or self._in_flight or self._parked or self._quarantine.busy)

    @property
    def lost(self) -> bool:
        """True if the host is currently unreachable."""
        return self._lost

    @property
    def suspected(self) -> int:
        """Number of events that are tried alone, since they may crash the host."""
        return self._quarantine.suspected

    @property
    def events(self) -> list[Inbound]:
        """The events that the host has not reported on, queued ones included."""
        return [*self._in_flight.values(), *self._parked.values(), *self._quarantine.suspects, *self._queue]

    def put(self, inbound: Inbound) -> None:
        """Queue an event for the next batch."""
        self._queue.append(inbound)
        self._wake.set()

    async def hand_over(self, successor: HostLink) -> None:
        """Stop after the host's reports on the events in flight; a successor gets the rest, or all if the host ends."""
        self._successor = successor
        self._wake.set()
        await self._task
        await self.close()

    async def close(self) -> None:
        """Stop; events in flight stay unacknowledged."""
        for timer in (self._tick, self._parking):
            if timer is not None:
                timer.cancel()
        tasks = [self._task, *self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        backoff = RETRY_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._successor is not None and self._is_handed_over(self._successor):
                return
            if self._lost:
                await asyncio.sleep(backoff)
                backoff = min(MAX_RETRY_SECONDS, backoff * 2)
            if (self._lost or not self._incarnation) and not await self._connect():
                self._wake.set()
                continue
            early = batch_delay(len(self._in_flight)) - (asyncio.get_running_loop().time() - self._called_at)
            if early > 0:
                await asyncio.sleep(early)
            if not self._quarantine.busy:
                self._send_queue()
            else:
                self._try_suspects()
            if (self._in_flight or self._parked) and self._waiting is None:
                self._call([], wait=True)
            if not self._lost:
                backoff = RETRY_SECONDS

    def _is_handed_over(self, successor: HostLink) -> bool:
        """Queue the events that this host does not have for a successor; True if none is left."""
        moved, self._queue = [*self._queue, *self._quarantine.suspects], []
        self._quarantine.suspects.clear()
        if self._lost or not self._incarnation:
            self._quarantine.on_trial = None
            moved = [*self._parked.values(), *self._in_flight.values(), *moved]
            self._parked.clear()
            self._in_flight.clear()
        for inbound in moved:
            successor.put(inbound)
        return self.idle

    async def _connect(self) -> bool:
        """Wait for the host; a new incarnation means that the old one crashed, maybe by an event in flight."""
        if self._granted and self._parking is None:
            self._parking = asyncio.get_running_loop().call_later(PARK_SECONDS, self._park)
        try:
            async with asyncio.timeout(self._start_seconds):
                incarnation = await self._host.incarnation()
        except Exception as error:
            self._lost = True
            logger.info("plan host is unreachable: %s", error)
            await self._recycle_after(error)
            return False
        if self._parking is not None:
            self._parking.cancel()
            self._parking = None
        restarted = self._incarnation not in ("", incarnation)
        blame = await self._blame() if restarted else None
        in_flight = [*self._parked.values(), *self._in_flight.values()]
        self._in_flight.clear()
        self._parked.clear()
        if not restarted:
            again = self._quarantine.interrupted(in_flight)
        else:
            again, fatal = self._quarantine.lost(in_flight, asyncio.get_running_loop().time(), blame)
            if blame is not None and self._suspects is not None and not self._keeps_suspects:
                for suspect, losses in self._quarantine.release():
                    self._suspects.take(suspect, losses)
            if fatal:
                self._settle([Outcome(inbound.token, "crashed", 0.0) for inbound in fatal])
        self._lost, self._incarnation = False, incarnation
        self._checked_at = asyncio.get_running_loop().time()
        self._queue = [*again, *self._queue]
        return True

    async def _blame(self) -> Blame | None:
        if self._suspects is None:
            return None
        in_flight = [*self._parked.values(), *self._in_flight.values()]
        return await self._suspects.blame(self._host, self._incarnation, in_flight, on_trial=self._keeps_suspects)

    def _park(self) -> None:
        """Report the events that wait for a host as parked, so that they do not count as outstanding."""
        self._parking = asyncio.get_running_loop().call_later(PARK_SECONDS, self._park)
        waiting = [*self._in_flight.values(), *self._queue]
        self._settle([Outcome(inbound.token, "parked", 0.0) for inbound in waiting])

    async def _check_incarnation(self) -> None:
        self._checked_at = asyncio.get_running_loop().time()
        if await self._host.incarnation() != self._incarnation:
            raise HostLost("it was restarted between two calls")

    async def _recycle_after(self, error: Exception) -> None:
        """Kill the process of a host that did not answer in time."""
        if isinstance(error, TimeoutError):
            try:
                await self._host.recycle()
            except Exception as failure:
                logger.warning("a plan host that does not answer could not be killed: %s", failure)

    def _send_queue(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
            self._in_flight.update((inbound.token, inbound) for inbound in batch)
            self._call(batch, wait=self._waiting is None)

    def _try_suspects(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._quarantine.holds_back(loop.time()):
            self._send_queue()
        suspect = self._quarantine.next_trial(len(self._in_flight), loop.time())
        if suspect is not None:
            self._in_flight[suspect.token] = suspect
            self._call([suspect], wait=self._waiting is None)
        if self._tick is None:
            self._tick = loop.call_later(TRIAL_TICK, self._check_suspects)

    def _check_suspects(self) -> None:
        self._tick = None  # the loop may call slightly before the timer's time
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
        if not self.idle or self._successor is not None:
            self._wake.set()

    async def _exchange(self, batch: list[Inbound], wait: bool) -> None:
        try:
            async with asyncio.timeout(self._answer_seconds):
                exchange = self._exchange_at_points if fault_injection.armed else self._host.exchange
                outcomes = await exchange(self._caller, batch, wait)
                if asyncio.get_running_loop().time() > self._checked_at + INCARNATION_SECONDS:
                    await self._check_incarnation()
        except HostReleased:
            self._incarnation = ""  # no crash: the events are sent to the next host
            return
        except Exception as error:  # HostLost; with any other error, too, the state of the events is unknown
            known, self._lost = self._lost, True
            if not known:
                count = len(self._in_flight) + len(self._parked)
                logger.warning("plan host lost, %d events are sent again: %s", count, str(error) or "call timed out")
                await self._recycle_after(error)
            return
        if fault_injection.armed and outcomes:
            await fault_injection.reach(CrashPoint.DISPATCHER_REPORT_AFTER, self._dispatcher)
        for token, kind, _ in outcomes:
            inbound = self._in_flight.pop(token, None) or self._parked.pop(token, None)
            if kind == "parked" and inbound is not None:
                self._parked[token] = inbound
        if self._quarantine.losses:
            self._quarantine.reported(outcomes)
        if outcomes:
            self._settle(outcomes)

    async def _exchange_at_points(self, caller: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        calls = await fault_injection.reach(CrashPoint.DISPATCHER_HAND_BEFORE, self._dispatcher) if batch else 1
        outcomes: list[Outcome] = []
        for _ in range(calls):
            outcomes += await self._host.exchange(caller, batch, wait)
        copies = await fault_injection.reach(CrashPoint.DISPATCHER_REPORT_BEFORE, self._dispatcher) if outcomes else 1
        if not calls or not copies:
            raise HostLost("a crash point has dropped the call")
        return outcomes * copies
