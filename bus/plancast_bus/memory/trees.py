"""Trees of plans in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.ports.trees import member

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class TreeTable:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trees: dict[str, tuple[set[bytes], float]] = {}

    def join(self, tree: str, plan: str, limit: int, ttl: float) -> bool:
        now = self._clock.time()
        members, until = self._trees.get(tree, (set[bytes](), 0.0))
        if until <= now:
            members = set()
        added = member(plan)
        if added in members or len(members) >= limit:
            return added in members
        members.add(added)
        self._trees[tree] = members, now + ttl
        return True


class MemoryTrees:
    """The trees as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def join(self, tree: str, plan: str, limit: int, ttl: float) -> bool:
        self._bus.subjects.registry("tree", tree)  # checks the key
        await self._bus.turn()
        return self._bus.world.trees.join(tree, plan, limit, ttl)
