"""EffectBoard: the effects of plans' tasks, as a work list of those whose outcome a person has to tell."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

from plancast.console.service.plan_index import PlanIndex, Row
from plancast.console.service.row_reads import RowReads
from plancast.plan.effects.entries import EFFECTS_UNKNOWN, UNKNOWN
from plancast.plan_store.effects import PlanEffect, effect_types, effects_of, is_wanted
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

MOST = 2_000
"""Newest plans whose effects are read."""
KEPT = 4_096
"""Size of the LRU cache."""
TYPES_SECONDS = 5.0
SECONDS = 4.0
"""Seconds after which plans go without being read."""


@dataclass(frozen=True, slots=True)
class FoundEffect:
    """An effect of the list."""

    row: Row
    effect: PlanEffect


@dataclass(frozen=True, slots=True)
class EffectQuery:
    """Filters of the list; an empty field matches any effect."""

    outcome: str = UNKNOWN
    tenant_id: str = ""
    session_id: str = ""
    goal: str = ""
    text: str = ""

    def takes_plan(self, row: Row) -> bool:
        """True if effects of a plan may match."""
        plan = row.summary
        wanted = {"tenant_id": self.tenant_id, "session_id": self.session_id, "goal_event": self.goal}
        if any(want and want != getattr(plan, name) for name, want in wanted.items()):
            return False
        return self.outcome != UNKNOWN or EFFECTS_UNKNOWN in (plan.attributes or {})

    def takes(self, row: Row, effect: PlanEffect) -> bool:
        """True if an effect of a plan matches."""
        if not is_wanted(effect, self.outcome or None):
            return False
        text = f"{row.text}\n{effect.event_type}\n{effect.key}\n{effect.reason}".casefold()
        return all(word in text for word in self.text.casefold().split())


class EffectBoard:
    """The effects of a deployment's plans."""

    def __init__(self, bus: Bus, index: PlanIndex) -> None:
        self._bus = bus
        self._index = index
        self._types: frozenset[str] = frozenset()
        self._types_at = float("-inf")
        self._effects = self._reads()

    async def types(self) -> frozenset[str]:
        """Task types with an effect, cached for 5 seconds."""
        if time.monotonic() - self._types_at > TYPES_SECONDS:
            types, self._types_at = await effect_types(self._bus), time.monotonic()
            if types != self._types:
                self._types, self._effects = types, self._reads()
        return self._types

    async def page(
        self, asked: EffectQuery, *, limit: int, before: int | None
    ) -> tuple[list[FoundEffect], int, int | None]:
        """Effects of the newest plans first, all of a plan on one page; how many there are; the version to continue
        before, None at the end.
        """
        await self.types()
        rows = list(islice((row for row in self._index.rows() if asked.takes_plan(row)), MOST))
        effects = await self._effects.of(rows)
        matching = [(row, [each for each in effects.get(row.key, ()) if asked.takes(row, each)]) for row in rows]
        found: list[FoundEffect] = []
        following = None
        for row, own in matching:
            if not own or (before is not None and row.version >= before):
                continue
            if len(found) >= limit:
                following = found[-1].row.version
                break
            found += [FoundEffect(row, each) for each in own]
        return found, sum(len(own) for _, own in matching), following

    def _reads(self) -> RowReads[list[PlanEffect]]:
        async def read(checkpoint: Checkpoint) -> list[PlanEffect]:
            return effects_of(unpack(checkpoint.state), self._types)

        return RowReads(self._bus.checkpoints, read, kept=KEPT, seconds=SECONDS)
