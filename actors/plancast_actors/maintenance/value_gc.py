"""Removes values that no stored plan refers to.

A value is removed if it was not stored for :data:`MIN_AGE` before a scan began, the scan has found no plan that refers
to it, in its newest checkpoint, the one before it, or its timeline, and it was not stored again since. Hosts store each
value that the plan's newest checkpoint does not refer to before they commit one that does. So a value that a commit
during the scan adds is too new to be removed, and all others are found in the checkpoint before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import aclosing

from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import PlanWithValues, StoredValue, references_of

logger = logging.getLogger(__name__)
MIN_AGE = 21_600.0
"""Seconds for which each stored value stays."""
FIRST_SCAN, SCAN_INTERVAL = 3_600.0, 21_600.0
"""Seconds before the first scan, and between scans."""


class ValueCollector:
    """Removes unused values four times a day. ``began`` is when the process started, seconds since the epoch."""

    def __init__(self, bus: Bus, began: float) -> None:
        self._checkpoints = bus.checkpoints
        self._values = bus.values
        self._due = began + FIRST_SCAN

    async def collect(self, now: float) -> None:
        """Scan if a scan is due, and remove unused values.

        Raises:
            BusError: the scan was interrupted, or a plan cannot be read; all values stay.
        """
        if now < self._due:
            return
        self._due = now + SCAN_INTERVAL
        before = await self._values.now() - MIN_AGE  # a clock of its own would remove new values if it were ahead
        used, gone = await self._used(before)
        unused: list[StoredValue] = []
        async with aclosing(self._values.values()) as values:
            async for each in values:
                if each.stored_at >= before:
                    break  # so are all that follow
                if (each.tenant, each.digest) not in used:
                    unused.append(each)
        await self._values.drop([*unused, *gone])
        if unused:
            size = sum(each.size for each in unused)
            logger.info("%d unused values removed, %d bytes", len({each.digest for each in unused}), size)

    async def _used(self, before: float) -> tuple[set[tuple[str, bytes]], list[PlanWithValues]]:
        """Return what stored plans refer to, by tenant and digest, and notes of plans that were removed long ago."""
        used: set[tuple[str, bytes]] = set()
        gone: list[PlanWithValues] = []
        async with aclosing(self._values.plans()) as plans:
            async for noted in plans:
                kept = await self._checkpoints.kept(noted.correlation_id)
                if kept:
                    tenant = kept[-1].summary.tenant_id
                    used.update((tenant, digest) for digest in await self._references(tenant, kept))
                elif noted.stored_at < before:
                    gone.append(noted)
        return used, gone

    async def _references(self, tenant: str, kept: list[Checkpoint]) -> Iterable[bytes]:
        """Digests of all values that a plan's checkpoints and its timeline refer to."""
        if not any(each.is_folded for each in kept):
            return ()
        packed = await self._checkpoints.history(kept[-1].correlation_id, folded=True)
        for checkpoint in kept:
            packed += checkpoint.folded_parts
        return await references_of(self._values, tenant, kept[-1].correlation_id, packed)
