"""Backlog of people: the stored plans that wait for them, and those whose effects they have to decide about."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from plancast.agents.registry import AgentRegistry
from plancast.plan.effects.entries import EFFECTS_UNKNOWN
from plancast.plan.status import WAITING
from plancast.plan_store.listed_status import ListedStatuses
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Committed

RECOUNT_INTERVAL = 3_600.0
"""Seconds after which all plans are counted anew, since removed ones are not listed as commits."""


class Backlog(NamedTuple):
    """Number of plans, and the time of the least recent turn among them (seconds since the epoch; 0 for none)."""

    plans: int
    oldest: float


class _Entry(NamedTuple):
    kinds: tuple[str, ...]
    updated_at: float
    expires_at: float


class HumanBacklog:
    """Counts plans from the summaries of the commits since its last reading, whether or not a host holds them.

    All plans are read at first, once an hour, and when other events are of people than before.
    """

    def __init__(self, bus: Bus) -> None:
        self._checkpoints = bus.checkpoints
        self._statuses = ListedStatuses(bus.checkpoints, AgentRegistry(bus.registry).human_events)
        self._seen = 0
        """Version up to which commits were read."""
        self._recount_at = 0.0
        self._entries: dict[str, _Entry] = {}
        """Plans before people, by correlation id."""
        self.kinds: dict[str, Backlog] = {}
        """``waiting``: plans that lists show so; ``effects_unknown``: plans, also ended ones, with an effect to
        decide about. A plan can be of both kinds. Empty before the first reading."""

    async def collect(self, now: float) -> None:
        """Read the commits since the last reading.

        Raises:
            BusError: the reading was interrupted; the next one continues.
        """
        entries, seen = self._entries, self._seen
        if await self._statuses.refresh() or now >= self._recount_at:
            entries, seen, self._recount_at = {}, 0, 0.0  # until a reading of all plans has ended
        async with aclosing(self._statuses.read_all(self._checkpoints.committed_after(seen))) as commits:
            async for committed in commits:
                seen = committed.version
                if kinds := _kinds(committed):
                    entries[committed.correlation_id] = _Entry(
                        kinds, committed.summary.updated_at, committed.expires_at
                    )
                else:
                    entries.pop(committed.correlation_id, None)
        self._entries, self._seen = entries, seen
        self._recount_at = self._recount_at or now + RECOUNT_INTERVAL
        self.kinds = {kind: self._backlog(kind, now) for kind in (WAITING, EFFECTS_UNKNOWN)}

    def _backlog(self, kind: str, now: float) -> Backlog:
        times = [
            each.updated_at
            for each in self._entries.values()
            if kind in each.kinds and not 0 < each.expires_at <= now  # the store has removed it
        ]
        return Backlog(len(times), min(times, default=0.0))


def _kinds(committed: Committed) -> tuple[str, ...]:
    plan = committed.summary
    waits = (WAITING,) if plan.status == WAITING else ()
    return (*waits, EFFECTS_UNKNOWN) if (plan.attributes or {}).get(EFFECTS_UNKNOWN) else waits
