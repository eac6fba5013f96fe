"""LeasedHost: a plan host that has one plan at a time, and is made anew for the next one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from uuid import uuid4

from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound, Outcome

logger = logging.getLogger(__name__)
HOLD_SECONDS = 0.1
"""Seconds without an event for which a plan keeps its host while others wait for one: a worker answers in less."""
REPORT_SECONDS = 1.0
"""Seconds for which a plan that has ended keeps its host until dispatchers have taken its outcomes."""


class LeasedHost:
    """Gives a plan host to one plan under a lease, and takes it back when the plan has ended or is idle.

    Calls under an earlier lease are refused, and do nothing. Everything that the host remembers goes with the plan.

    Args:
        make: Makes a plan host, for the next plan, from the last one (None at first).
        idle_seconds: Seconds without an event after which an idle plan loses its host.
        is_worn: Called when a plan has left; True if the process has to be replaced.
    """

    def __init__(
        self, make: Callable[[PlanHost | None], PlanHost], idle_seconds: float, is_worn: Callable[[], bool]
    ) -> None:
        self._make = make
        self._idle_seconds = idle_seconds
        self._is_worn = is_worn
        self.host = make(None)
        self.lease = uuid4().hex
        self.plan = ""
        """The plan's correlation id; empty while the host is free."""
        self.plans = 0
        """Plans that have left."""
        self.worn = False
        """True if the process has to be replaced: it takes no other plan."""
        self._contended = self._retires = False
        self._delivered = False
        """True if the plan had an event under this lease."""
        self._delivering = 0
        self._used_at = 0.0
        self._stir = asyncio.Event()
        self._changed = asyncio.Event()
        self.host.at_rest = self._stir.set
        self._task = asyncio.get_running_loop().create_task(self._take_back())

    # What dispatchers call.

    async def exchange(
        self, lease: str, plan: str, dispatcher: str, batch: list[Inbound], wait: bool
    ) -> list[Outcome] | None:
        """Deliver events as :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange` does.

        Returns None if the plan has the host no more: the events were not delivered.
        """
        if lease != self.lease or not self._hold(plan):
            return None
        if batch:
            self._used_at, self._delivered = asyncio.get_running_loop().time(), True
        self._delivering += bool(batch)
        try:
            return await self.host.exchange(dispatcher, batch, wait)
        finally:
            self._delivering -= bool(batch)
            self._stir.set()

    # What the pool calls.

    async def adopt(self) -> tuple[str, str]:
        """Report the lease and the plan to a new pool. A lease that an earlier pool may have granted is void."""
        if self.lease and not self.plan:
            self._renew()
        await self._next("")
        return self.lease, self.plan

    async def grant(self, lease: str, plan: str, contended: bool) -> bool:
        """Give the host to a plan; False if another one has it. ``contended``: see :meth:`contend`."""
        self._contended = contended
        return lease == self.lease and self._hold(plan)

    async def contend(self, contended: bool) -> None:
        """Note whether plans wait for a host: an idle plan loses its host sooner then."""
        self._contended = contended
        self._stir.set()

    async def released(self, lease: str) -> tuple[str, bool]:
        """Wait until a lease has ended; returns the next one, and whether the process has to be replaced instead."""
        await self._next(lease)
        return self.lease, self.worn

    def retire(self) -> None:
        """Take no plan any more; the one that it has moves to another host when none of its events is in flight."""
        self._retires = True
        self.worn = self.worn or not self.plan
        self._stir.set()

    async def stop(self) -> None:
        """Stop; events in flight are redelivered."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.host.stop()

    def _hold(self, plan: str) -> bool:
        if self.worn or (self.plan and self.plan != plan):
            return False
        if not self.plan:
            self.plan = plan
            self._used_at = asyncio.get_running_loop().time()
            self._stir.set()
        return True

    def _renew(self) -> None:
        self.plan, self.lease, self._delivered = "", uuid4().hex, False
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next(self, lease: str) -> None:
        """Wait for another lease than this one."""
        while self.lease in ("", lease):
            await self._changed.wait()

    async def _take_back(self) -> None:
        while not self.worn:
            await self._until_idle()
            await self._recycle()

    async def _until_idle(self) -> None:
        """Wait until the plan may lose its host."""
        loop = asyncio.get_running_loop()
        while True:
            left: float | None = None
            if self.plan and not self._delivering and self.host.quiet:
                idle = loop.time() - self._used_at
                if self._retires or (self._delivered and self.host.live == 0):  # the plan has ended
                    left = REPORT_SECONDS - idle if self.host.untaken else 0.0
                else:
                    left = (HOLD_SECONDS if self._contended else self._idle_seconds) - idle
                if left <= 0:
                    return
            self._stir.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stir.wait()

    async def _recycle(self) -> None:
        """Replace the plan host by a new one, which knows nothing of the plan."""
        before, plan = self.host, self.plan
        self.plans += 1
        self.plan, self.lease = "", ""  # no call is accepted meanwhile
        await before.stop()
        try:
            self.worn = self._retires or self._is_worn()
            if not self.worn:
                self.host = self._make(before)
                self.host.at_rest = self._stir.set
        except Exception as error:  # of the user's modules, which are imported anew
            logger.warning("a plan host is replaced, it cannot be made anew after %s: %s", plan, error)
            self.worn = True
        self._renew()
