"""State machines that no stored plan has any more: how they are told from all others, and removed.

No machine expires by itself, so that plans find theirs after years, whatever was off meanwhile. One is removed when

- it was not put for long (``plans.unused_machine_seconds``), by the time at which the look begins, and
- a whole look through the stored plans, finished ones included, has then found none that has it, and
- it was not put since: what is removed is that one put.

Hosts put a machine before every commit of a plan that has it, unless they have done so within a day. So a plan that is
not committed during the look is seen by it, and one that is committed has its machine put too late to be removed.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

from plancast.settings import PlanSettings
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Committed, KeptMachine

logger = logging.getLogger(__name__)
RENEWAL = 86_400.0
"""Seconds after which a host puts a machine again that it commits plans of."""
FIRST_LOOK, NEXT_LOOK = 3_600.0, 86_400.0
"""Seconds from the start to the first look, and from each look to the next one."""
AT_ONCE = 50_000
"""Machines for which one look through the plans is made."""


def is_kept(put_at: float, now: float) -> bool:
    """Whether a machine that was put at a time need not be put again."""
    return 0.0 <= now - put_at < RENEWAL


class UnusedMachines:
    """Looks for state machines that no stored plan has, and removes them.

    Args:
        settings: ``unused_machine_seconds`` is used.
        began: When the sweeper began, seconds since the epoch.
    """

    def __init__(self, bus: Bus, settings: PlanSettings, began: float) -> None:
        self._store = bus.checkpoints
        self._settings = settings
        self._due = began + FIRST_LOOK

    async def tidy(self, now: float) -> None:
        """Look, when it is time to.

        Raises:
            BusError: a look was interrupted; what it was for stays.
        """
        if now < self._due or not self._settings.unused_machine_seconds:
            return
        self._due = now + NEXT_LOOK
        after = removed = 0
        while old := await self._put_before(now - self._settings.unused_machine_seconds, after):
            after = old[-1].version
            unused = await self._unused(old)
            for each in unused:
                await self._store.drop_machine(each)
            removed += len(unused)
        if removed:
            logger.info("%d state machines removed that no plan has", removed)

    async def _put_before(self, time: float, after: int) -> list[KeptMachine]:
        found: list[KeptMachine] = []
        async with aclosing(self._store.machines(after)) as machines:
            async for each in machines:
                if each.put_at >= time or len(found) == AT_ONCE:
                    break
                found.append(each)
        return found

    async def _unused(self, machines: list[KeptMachine]) -> list[KeptMachine]:
        unused = {each.digest: each for each in machines}
        async with aclosing(self._store.committed_after(0)) as plans:
            async for committed in plans:
                unused.pop(await self._machine_of(committed), None)
                if not unused:
                    break
        return [*unused.values()]

    async def _machine_of(self, committed: Committed) -> str:
        """The hash of a plan's machine, or nothing.

        Raises:
            InvalidEnvelope: it cannot be known, so that any machine may be needed.
        """
        digest = committed.summary.machine
        if digest is None:
            checkpoint = await self._store.load(committed.correlation_id)
            state = unpack(checkpoint.state) if checkpoint is not None else {}
            if not isinstance(state, dict):
                raise InvalidEnvelope(f"the checkpoint of plan {committed.correlation_id} is damaged")
            digest = str(state.get("machine", ""))
        return digest
