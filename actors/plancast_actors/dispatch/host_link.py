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
SILENT_SECONDS = 3.0
"""Seconds after which a shared host that cannot be connected to counts as lost, so that other hosts take its plans."""
SUSPECT_SECONDS = 10.0
"""Seconds for which suspects wait for their lost host to be restarted, before they are tried in the hosts of others."""
PARK_SECONDS = 0.05
"""Seconds that events wait for a host to be granted before they are parked."""
INCARNATION_SECONDS = 5.0
"""Seconds between two checks of the host's incarnation: a restart between two calls goes unnoticed otherwise, and the
new process does not know the events in flight."""


class HostLink:
    """Sends events to one host, in batches, and keeps them until the host has reported on them.

    After the host was lost, the events it had not reported on are sent again, to it or, if they are surrendered, to
    other hosts: plan actors know which events they have processed. An event that crashes its host repeatedly is found
    by the :class:`Quarantine`.

    Args:
        host: The host.
        options: The dispatcher's.
        settle: Called with the outcomes that the host reports.
        granted: Whether the host is granted to a plan for a time. Events that wait for it are parked.
        suspects: Finds by the host's crash record which events have ended it, and takes those; None: each may have.
        keeps_suspects: Whether suspects stay here, since this is the host for them.
        changed: Called when the host was lost, and when it is back. The host is connected to without an event then, and
            watched. None for a host whose plans no other one takes.
        losses: The losses of events; see :class:`Quarantine`.
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
        changed: Callable[[], None] | None = None,
        losses: dict[int, int] | None = None,
    ) -> None:
        self._dispatcher = options.name
        self._caller = _unique(options.name)
        """Unique: the host may still have a waiting call of an earlier dispatcher with this name, which would take
        reports that are for this one. Another one after events were surrendered: what it reports on them is void."""
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
        self._quarantine = Quarantine(options.max_losses, options.index, options.count, losses=losses)
        self._blamed: list[int] = []
        """Tokens of surrendered events to which the loss counts, unless the host turns out to live."""
        self._verdict: Blame | None = None
        """Blame by the crash record of the process that has just ended."""
        self._judging: asyncio.Task[None] | None = None
        self._incarnation = ""
        """The incarnation of the host that has the events."""
        self._checked_at = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        """The call that waits for outcomes."""
        self._lost = False
        self._silent = False
        """Lost because it answered nothing: it may live."""
        self._hopeless = False
        """Lost for so long that its suspects wait no longer."""
        self._called_at = 0.0
        self._changed = changed
        self._watching: asyncio.Task[None] | None = None
        self._despair: asyncio.TimerHandle | None = None
        if changed is not None:
            self._wake.set()
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
        if not self._quarantine.losses or not self._quarantine.suspect(inbound):
            self._queue.append(inbound)
        self._wake.set()

    def surrender(self, *, crashed: bool) -> list[Inbound]:
        """Remove and return the events of a lost host, for others to take. Suspects wait for it for some time.

        Args:
            crashed: Whether an event may be the cause; False for a host that was to end.
        """
        in_flight = [*self._parked.values(), *self._in_flight.values()]
        if crashed:
            blame, self._verdict = self._verdict, None
            if blame is None:
                self._blamed += (inbound.token for inbound in in_flight)
            in_flight, fatal = self._quarantine.lost(in_flight, asyncio.get_running_loop().time(), blame)
            self._release_suspects(blame)
            self._settle_fatal(fatal)
        events, self._queue = [*in_flight, *self._queue], []
        self._in_flight.clear()
        self._parked.clear()
        if self._hopeless or not crashed:
            events += self._quarantine.suspects
            self._quarantine.suspects.clear()
            self._quarantine.on_trial = None
        self._caller = _unique(self._dispatcher)
        return events

    async def close(self) -> None:
        """Stop; events in flight stay unacknowledged."""
        for timer in (self._tick, self._parking, self._despair):
            if timer is not None:
                timer.cancel()
        tasks = [self._task, *self._calls, *filter(None, (self._watching, self._judging))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        backoff = RETRY_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
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

    async def _connect(self) -> bool:
        """Wait for the host; a new incarnation means that the old one crashed, maybe by an event in flight."""
        loop = asyncio.get_running_loop()
        if self._granted and self._parking is None:
            self._parking = loop.call_later(PARK_SECONDS, self._park)
        silence = None
        if self._changed is not None:
            silence = loop.call_later(SILENT_SECONDS, self._lose, "it does not answer")
        try:
            async with asyncio.timeout(self._answer_seconds if self._silent else self._start_seconds):
                incarnation = await self._host.incarnation()
        except Exception as error:
            self._lose(str(error) or "it does not answer")
            await self._recycle_after(error)
            return False
        finally:
            if silence is not None:
                silence.cancel()
        if self._parking is not None:
            self._parking.cancel()
            self._parking = None
        restarted = self._incarnation not in ("", incarnation)
        blame = await self._blame() if restarted and (self._in_flight or self._parked) else None
        in_flight = [*self._parked.values(), *self._in_flight.values()]
        self._in_flight.clear()
        self._parked.clear()
        if not restarted:
            again = self._quarantine.interrupted(in_flight)
            self._quarantine.acquit(self._blamed)
        else:
            again, fatal = self._quarantine.lost(in_flight, loop.time(), blame)
            self._release_suspects(blame)
            self._settle_fatal(fatal)
        self._blamed.clear()
        self._checked_at = loop.time()
        self._queue = [*again, *self._queue]
        self._found(incarnation)
        return True

    async def _blame(self, *, here: bool = False) -> Blame | None:
        if self._suspects is None:
            return None
        in_flight = [*self._parked.values(), *self._in_flight.values()]
        return await self._suspects.blame(
            self._host, self._incarnation, in_flight, on_trial=self._keeps_suspects, here=here
        )

    def _release_suspects(self, blame: Blame | None) -> None:
        """Have those whom a crash record names tried in the quarantine host."""
        if blame is not None and self._suspects is not None and not self._keeps_suspects:
            for suspect, losses in self._quarantine.release():
                self._suspects.take(suspect, losses)

    def _found(self, incarnation: str) -> None:
        was_lost, self._lost, self._incarnation = self._lost, False, incarnation
        self._hopeless = self._silent = False
        if self._despair is not None:
            self._despair.cancel()
            self._despair = None
        if self._changed is not None:
            if self._watching is not None:
                self._watching.cancel()
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            if was_lost:
                self._changed()

    def _lose(self, why: str) -> None:
        """Note that the host is lost, and try to connect to it from now on."""
        if self._lost:
            return
        self._lost = True
        count = len(self._in_flight) + len(self._parked)
        logger.log(
            logging.WARNING if self._incarnation else logging.INFO,
            "plan host lost, %d events are sent again: %s", count, why,
        )  # fmt: skip
        self._wake.set()
        if self._changed is not None:
            loop = asyncio.get_running_loop()
            self._despair = loop.call_later(SUSPECT_SECONDS, self._give_up)
            if self._suspects is None or self._silent or not self._incarnation:
                self._changed()
            else:
                self._judging = loop.create_task(self._judge(self._changed))

    async def _judge(self, changed: Callable[[], None]) -> None:
        """Read who has ended the process, if it ended on this machine, before others take its events."""
        self._verdict = await self._blame(here=True)
        if self._lost:
            changed()
        self._verdict = None

    def _give_up(self) -> None:
        self._hopeless = True
        if self._changed is not None:
            self._changed()

    async def _watch(self) -> None:
        self._silent = await self._host.watch()
        self._lose("it answers no beats" if self._silent else "its process has ended")

    def _settle_fatal(self, fatal: list[Inbound]) -> None:
        if fatal:
            self._settle([Outcome(inbound.token, "crashed", 0.0) for inbound in fatal])

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
        if not self.idle:
            self._wake.set()

    async def _exchange(self, batch: list[Inbound], wait: bool) -> None:
        caller = self._caller
        try:
            async with asyncio.timeout(self._answer_seconds):
                exchange = self._exchange_at_points if fault_injection.armed else self._host.exchange
                outcomes = await exchange(caller, batch, wait)
                if asyncio.get_running_loop().time() > self._checked_at + INCARNATION_SECONDS:
                    await self._check_incarnation()
        except HostReleased:
            self._incarnation = ""  # no crash: the events are sent to the next host
            return
        except Exception as error:  # HostLost; with any other error, too, the state of the events is unknown
            if caller == self._caller and not self._lost:
                self._lose(str(error) or "call timed out")
                await self._recycle_after(error)
            return
        if caller != self._caller:
            return  # others have these events
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


def _unique(dispatcher: str) -> str:
    return f"{dispatcher}/{uuid4().hex}"
