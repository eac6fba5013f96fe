"""Removes values that no stored plan or event refers to.

A value is removed if it was not stored for :data:`MIN_AGE` before a scan began, the scan has found no plan that refers
to it, in its newest checkpoint, the one before it, or its timeline, and no event or dead letter, and it was not stored
again since. Hosts store each value that the plan's newest checkpoint does not refer to before they commit one that
does, unless it was stored at most an hour before. So a value that a commit during the scan adds is too new to be
removed, and all others are found in the checkpoint before.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, closing

from plancast_actors.maintenance.use_table import UseTable
from plancast_actors.maintenance.value_use import find_use
from plancast_bus.ports.bus import Bus

logger = logging.getLogger(__name__)
MIN_AGE = 21_600.0
"""Seconds for which each stored value stays."""
FIRST_SCAN, SCAN_INTERVAL = 3_600.0, 21_600.0
"""Seconds before the first scan, and between scans."""


class ValueCollector:
    """Removes unused values four times a day. ``began`` is when the process started, seconds since the epoch."""

    def __init__(self, bus: Bus, began: float) -> None:
        self._bus = bus
        self._due = began + FIRST_SCAN

    async def collect(self, now: float) -> None:
        """Scan if a scan is due, and remove unused values, except those of tenants whose use is not known.

        Raises:
            BusError: a plan cannot be read, and all values stay; or the scan was interrupted.
        """
        if now < self._due:
            return
        self._due = now + SCAN_INTERVAL
        before = await self._bus.values.now() - MIN_AGE  # a clock of its own would remove new values if it were ahead
        with closing(UseTable()) as found:
            await find_use(self._bus, found)
            for fault in found.faults.values():
                logger.error("%s", fault)
            if (more := found.faulty - len(found.faults)) > 0:
                logger.error("%d more plans have values that cannot be read", more)
            if found.unreadable is not None:
                raise found.unreadable
            await self._remove(found, before)

    async def _remove(self, found: UseTable, before: float) -> None:
        """Remove unused values, and notes of plans that are gone, that were stored before this time."""
        store = self._bus.values
        async with aclosing(store.values()) as values:
            async for each in values:
                if each.stored_at >= before:
                    break  # so are all that follow
                if not found.is_used(each):
                    await store.drop([each])
                    found.add_listed(each)
        for note in found.gone():
            if note.stored_at < before:
                await store.drop([note])
        number, size = found.unused
        if number:
            logger.info("%d unused values removed, %d bytes", number, size)
