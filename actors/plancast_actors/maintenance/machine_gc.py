"""Removes state machines that no stored plan uses.

State machines do not expire, so that plans find theirs after years of downtime. One is removed if

- it was not stored for ``plans.unused_machine_seconds`` before the scan begins, and
- a complete scan of the stored plans, finished ones included, has then found no plan that uses it, and
- it was not stored since: the removal is conditional on the stored version.

Hosts store a machine before every commit of a plan that uses it, unless they have done so within a day. So a plan that
is not committed during the scan is seen by it, and one that is committed has its machine stored too late to be removed.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

from plancast.settings import PlanSettings
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Committed, StoredMachine

logger = logging.getLogger(__name__)
RENEWAL = 86_400.0
"""Seconds after which a host stores a machine again before it commits a plan that uses it."""
FIRST_SCAN, SCAN_INTERVAL = 3_600.0, 86_400.0
"""Seconds before the first scan, and between scans."""
MAX_CANDIDATES = 50_000
"""Machines looked for in one scan of the plans."""


def is_recent(put_at: float, now: float) -> bool:
    """True if a machine stored at a time need not be stored again."""
    return 0.0 <= now - put_at < RENEWAL


class MachineCollector:
    """Removes unused state machines once a day. ``began`` is when the process started, seconds since the epoch."""

    def __init__(self, bus: Bus, settings: PlanSettings, began: float) -> None:
        self._store = bus.checkpoints
        self._settings = settings
        self._due = began + FIRST_SCAN

    async def collect(self, now: float) -> None:
        """Scan if a scan is due, and remove unused machines.

        Raises:
            BusError: the scan was interrupted; its machines stay.
        """
        if now < self._due or not self._settings.unused_machine_seconds:
            return
        self._due = now + SCAN_INTERVAL
        after = removed = 0
        while old := await self._put_before(now - self._settings.unused_machine_seconds, after):
            after = old[-1].version
            unused = await self._unused(old)
            for each in unused:
                await self._store.drop_machine(each)
            removed += len(unused)
        if removed:
            logger.info("%d unused state machines removed", removed)

    async def _put_before(self, time: float, after: int) -> list[StoredMachine]:
        found: list[StoredMachine] = []
        async with aclosing(self._store.machines(after)) as machines:
            async for each in machines:
                if each.put_at >= time or len(found) == MAX_CANDIDATES:
                    break
                found.append(each)
        return found

    async def _unused(self, machines: list[StoredMachine]) -> list[StoredMachine]:
        unused = {each.digest: each for each in machines}
        async with aclosing(self._store.committed_after(0)) as plans:
            async for committed in plans:
                unused.pop(await self._machine_of(committed), None)
                if not unused:
                    break
        return [*unused.values()]

    async def _machine_of(self, committed: Committed) -> str:
        """The hash of a plan's machine; empty if it has none.

        Raises:
            InvalidEnvelope: it cannot be determined, so any machine may be in use.
        """
        digest = committed.summary.machine
        if digest is None:
            checkpoint = await self._store.load(committed.correlation_id)
            state = unpack(checkpoint.state) if checkpoint is not None else {}
            if not isinstance(state, dict):
                raise InvalidEnvelope(f"the checkpoint of plan {committed.correlation_id} is damaged")
            digest = str(state.get("machine", ""))
        return digest
