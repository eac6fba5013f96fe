"""PlanPool: grants warm hosts to dedicated plans, one plan at a time in each, and keeps enough of them warm."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from plancast.settings import HostSettings
from plancast_actors.reasoning.fair_queue import FairQueue
from plancast_actors.rpc.client import Endpoint

logger = logging.getLogger(__name__)
DEDICATED_PREFIX = "plan-host-"
"""Prefix of the names of dedicated hosts."""
STARTS = 2
"""Hosts that are started at once: each start takes a core for a second or two."""
GROW_SECONDS = 1.0
"""Seconds that a plan has to wait, or that too few hosts are free, before one more is started. Where cores are the
limit plans wait for less, and one more process would only slow them down."""
RETRY_SECONDS = 1.0
"""First seconds between two attempts to start a host; doubles up to MAX_RETRY_SECONDS."""
MAX_RETRY_SECONDS = 30.0
GOALS = "goals"
"""Lane of plans that have not begun; the others get a host first."""
BEGUN = "begun"


class HostGone(Exception):
    """Raised when a dedicated host cannot be reached: its process has ended."""


class PoolRefuses(Exception):
    """Raised when a pool is being replaced: another one grants hosts."""


class Grant(NamedTuple):
    """A host that a plan has."""

    host: str
    """The name of its Ray actor."""
    lease: str
    endpoint: Endpoint | None
    """Address of its direct connections; None if events go through Ray."""


class LeasedPort(Protocol):
    """A dedicated host, as the pool uses it; see :class:`plancast_actors.hosting.leased_host.LeasedHost`.

    All methods raise :class:`HostGone`.
    """

    endpoint: Endpoint | None

    async def adopt(self) -> tuple[str, str]: ...
    async def grant(self, lease: str, plan: str, contended: bool) -> bool: ...
    async def contend(self, contended: bool) -> None: ...
    async def released(self, lease: str) -> tuple[str, bool]: ...


class HostStarter(Protocol):
    """Starts and stops dedicated hosts."""

    def name_of(self, number: int) -> str:
        """The name of a host's Ray actor."""
        ...

    async def found(self) -> list[int]:
        """Numbers of the running hosts."""
        ...

    async def start(self, number: int) -> LeasedPort:
        """Start a host or find it, and wait until it is ready. Raises any error when its own start has failed."""
        ...

    async def replace(self, number: int) -> None:
        """End a host's process; Ray starts the next one."""
        ...

    async def stop(self, number: int) -> None:
        """End a host for good."""
        ...


@dataclass(eq=False)
class Slot:
    """A dedicated host."""

    number: int
    name: str
    """The name of its Ray actor."""
    state: Literal["starting", "free", "held", "leaving"] = "starting"
    lease: str = ""
    plan: str = ""
    since: float = 0.0
    """When it was freed, in seconds of the event loop's clock."""
    port: LeasedPort | None = None
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Waiter:
    """A plan that waits for a host."""

    plan: str
    tenant: str
    lane: str
    granted: asyncio.Future[Grant] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    callers: int = 0
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class PlanPool:
    """Grants hosts to plans. A plan without a free host waits: plans that have begun first, tenants in turn.

    Hosts tell which plan they have, so that a new pool goes on where its predecessor ended.

    Args:
        starter: Starts hosts.
        settings: ``dedicated_...`` are used.
    """

    def __init__(self, starter: HostStarter, settings: HostSettings) -> None:
        self._starter = starter
        self._settings = settings
        self._slots: dict[int, Slot] = {}
        self._held: dict[str, Slot] = {}
        """By plan."""
        self._free: list[Slot] = []
        self._waiters: dict[str, Waiter] = {}
        """By plan."""
        self._queue: FairQueue[Waiter] = FairQueue()
        self._contended = self._refuses = False
        self._short_since: float | None = None
        """Since when too few hosts are free, though no plan waits."""
        self._starting = asyncio.Semaphore(STARTS)
        self._background: set[asyncio.Task[Any]] = set()
        self.granted = self.delayed = self.released = self.replaced = self.lost = self.failed = 0
        self.failure = ""
        """Why the last start of a host has failed."""

    async def start(self) -> None:
        """Find the hosts of an earlier pool, and begin to start missing ones."""
        for number in await self._starter.found():
            self._add(number)
        self.fill(self._settings.dedicated_warm)
        self._spawn(self._scale())

    async def stop(self) -> None:
        """Stop; hosts keep their plans."""
        tasks = [*self._background, *(slot.task for slot in self._slots.values() if slot.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What dispatchers call.

    async def acquire(self, plan: str, tenant: str = "", begun: bool = False, refused: str = "") -> Grant:
        """Grant a host to a plan, or the one that it has; waits as long as necessary.

        Args:
            plan: The plan's correlation id.
            tenant: The plan's.
            begun: Whether the plan has begun; a goal waits behind such plans.
            refused: A lease under which the host has refused the plan's events.

        Raises:
            PoolRefuses: another pool grants hosts.
        """
        slot = self._held.get(plan)
        if slot is not None and slot.lease == refused:
            self._take_from(slot)  # it will report that it has another lease
            slot = None
        if self._refuses:
            raise PoolRefuses
        if slot is not None:
            return _grant_of(slot)
        waiter = self._waiters.get(plan)
        if waiter is None:
            waiter = self._waiters[plan] = Waiter(plan, tenant, BEGUN if begun else GOALS)
            self._queue.push(waiter.tenant, waiter.lane, waiter)
            self._match()
            self.delayed += not waiter.granted.done()
        waiter.callers += 1
        try:
            await asyncio.wait([waiter.granted])
        finally:
            waiter.callers -= 1
            if not waiter.callers and not waiter.granted.done():
                self._forget(waiter)
                self._contend()
        return waiter.granted.result()

    def refuse(self, refuses: bool = True) -> None:
        """Grant no more hosts, also not to those who wait: another pool does. Or grant them again."""
        self._refuses = refuses
        for waiter in list(self._waiters.values()) if refuses else ():
            self._forget(waiter)
            waiter.granted.set_exception(PoolRefuses())
        self._contend()

    def host_of(self, plan: str) -> str | None:
        """The name of the host that a plan has; None if it has none now."""
        slot = self._held.get(plan)
        return None if slot is None else slot.name

    # Hosts.

    @property
    def ready(self) -> int:
        """Number of hosts that have started."""
        states = self.states()
        return states["free"] + states["held"]

    @property
    def needed(self) -> int:
        """Number of hosts that have a plan, or are kept warm."""
        return min(max(self._settings.dedicated_warm, len(self._held)), self._settings.dedicated_max)

    def fill(self, count: int) -> None:
        """Start what is missing of a number of hosts, at most ``dedicated_max``."""
        for _ in range(count - len(self._slots)):
            self._add_one()

    def _add(self, number: int) -> None:
        slot = self._slots[number] = Slot(number, self._starter.name_of(number))
        slot.task = asyncio.get_running_loop().create_task(self._keep(slot))

    async def _keep(self, slot: Slot) -> None:
        """Keep a host running, and note when it is free."""
        pause = RETRY_SECONDS
        while True:
            try:
                async with self._starting:
                    slot.port = await self._starter.start(slot.number)
                pause = RETRY_SECONDS
                await self._watch(slot, slot.port)
                self.replaced += 1
                await self._starter.replace(slot.number)
            except HostGone as error:
                self.lost += 1
                logger.warning("%s has ended, Ray starts it again: %s", slot.name, error)
            except Exception as error:
                self.failed += 1
                self.failure = str(error) or type(error).__name__
                logger.warning("%s does not start, retrying in %g s: %s", slot.name, pause, self.failure)
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SECONDS, 2 * pause)
            finally:
                self._take_from(slot)
                slot.state, slot.port, slot.lease = "starting", None, ""

    async def _watch(self, slot: Slot, port: LeasedPort) -> None:
        """Note when a host changes its plan, until its process has to be replaced."""
        slot.lease, plan = await port.adopt()
        if plan:
            self._hold(slot, plan)
            await port.contend(self._contended)
        worn = False
        while not worn:
            if slot.state != "held":
                slot.state, slot.since = "free", asyncio.get_running_loop().time()
                self._free.append(slot)
                self._match()
            lease, worn = await port.released(slot.lease)
            self.released += 1
            self._take_from(slot)
            slot.lease = lease

    def _hold(self, slot: Slot, plan: str) -> None:
        slot.state, slot.plan = "held", plan
        self._held[plan] = slot
        waiter = self._waiters.get(plan)
        if waiter is not None:  # another dispatcher has asked before this host was found
            self._forget(waiter)
            waiter.granted.set_result(_grant_of(slot))

    def _take_from(self, slot: Slot) -> None:
        """Note that a host has its plan no more, or is not free any more."""
        if slot.plan and self._held.get(slot.plan) is slot:
            del self._held[slot.plan]
        if slot in self._free:
            self._free.remove(slot)
        slot.state, slot.plan = "leaving", ""

    # Scheduling.

    def _match(self) -> None:
        while self._free and (head := self._queue.peek((GOALS,)) or self._queue.peek()) is not None:
            waiter, slot = head[2], self._free.pop()
            self._forget(waiter, served=True)
            slot.state, slot.plan = "held", waiter.plan
            self._held[waiter.plan] = slot
            self.granted += 1
            waiter.granted.set_result(_grant_of(slot))
            self._contend()
            assert slot.port is not None
            self._spawn(_tell(slot.port.grant, slot.lease, waiter.plan, self._contended))
        if self._waiters and not self._slots:
            self._add_one()
        self._contend()

    def _forget(self, waiter: Waiter, *, served: bool = False) -> None:
        self._waiters.pop(waiter.plan, None)
        (self._queue.take if served else self._queue.remove)(waiter.tenant, waiter.lane, waiter)

    def _contend(self) -> None:
        """Tell hosts when plans begin to wait for one, and when none does any more."""
        contended = bool(self._waiters)
        if contended == self._contended:
            return
        self._contended = contended
        for slot in self._held.values():
            if slot.port is not None:
                self._spawn(_tell(slot.port.contend, contended))

    async def _scale(self) -> None:
        """Start a host when they were too few for some time, and stop a surplus one that was free for long."""
        loop = asyncio.get_running_loop()
        tick = min(GROW_SECONDS, self._settings.dedicated_idle_seconds) / 2
        while True:
            await asyncio.sleep(tick)
            if self._is_short(loop.time()):
                self._add_one()
            if len(self._free) > self._settings.dedicated_warm:
                oldest = min(self._free, key=lambda slot: slot.since)
                if loop.time() - oldest.since > self._settings.dedicated_idle_seconds:
                    await self._stop(oldest)

    def _is_short(self, now: float) -> bool:
        states = self.states()
        if states["starting"] >= STARTS:
            return False
        if self._waiters:
            self._short_since = None
            return now - next(iter(self._waiters.values())).since >= GROW_SECONDS
        if states["free"] + states["starting"] >= self._settings.dedicated_warm:
            self._short_since = None
            return False
        self._short_since = now if self._short_since is None else self._short_since
        return now - self._short_since >= GROW_SECONDS

    def _add_one(self) -> None:
        number = next(number for number in itertools.count() if number not in self._slots)
        if number < self._settings.dedicated_max:
            self._add(number)

    async def _stop(self, slot: Slot) -> None:
        self._take_from(slot)
        if slot.task is not None:
            slot.task.cancel()
            await asyncio.gather(slot.task, return_exceptions=True)
        await self._starter.stop(slot.number)
        del self._slots[slot.number]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Status.

    @property
    def waiting(self) -> int:
        """Number of plans that wait for a host."""
        return len(self._waiters)

    def states(self) -> dict[str, int]:
        """Number of hosts by state: free, held, starting, leaving."""
        return {"free": 0, "held": 0, "starting": 0} | Counter(slot.state for slot in self._slots.values())

    def status(self) -> dict[str, Any]:
        """Report the state for ``plancast status``."""
        states = self.states()
        return {
            "hosts": len(self._slots),
            "warm": self._settings.dedicated_warm,
            "max": self._settings.dedicated_max,
            "held": states["held"],
            "free": states["free"],
            "starting": states["starting"],
            "waiting": self.waiting,
            "granted": self.granted,
            "delayed": self.delayed,
            "replaced": self.replaced,
            "lost": self.lost,
            "failed_starts": self.failed,
            **({"failure": self.failure} if self.failed else {}),
            "plans": {slot.name: slot.plan for slot in self._slots.values() if slot.plan},
        }


def _grant_of(slot: Slot) -> Grant:
    return Grant(slot.name, slot.lease, slot.port.endpoint if slot.port is not None else None)


async def _tell(method: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    with contextlib.suppress(HostGone):  # its own task notices, too
        await method(*arguments)
