"""Trees of plans: limits how many plans one goal may start.

A tree is one registration with the digests of its plans, replaced by compare-and-set.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Final

from cachetools import LRUCache

from plancast_bus.errors import CommitConflict
from plancast_bus.ports.registry import Registry

KIND: Final = "tree"
"""Kind of the registrations in which trees are stored."""
MEMBER_BYTES: Final = 8
CACHED: Final = 256
"""Trees cached in the process."""


class _Tree:
    """A tree as last read or written. Since trees only grow, its members stay valid."""

    def __init__(self) -> None:
        self.version = 0
        self.members = b""
        self.joining: dict[bytes, None] = {}
        """Members that the next write adds."""
        self.writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self.members) // MEMBER_BYTES

    def __contains__(self, wanted: bytes) -> bool:
        at = self.members.find(wanted)
        while at % MEMBER_BYTES and at > 0:  # spans two digests
            at = self.members.find(wanted, at + 1)
        return at >= 0


class Trees:
    """The plans of each tree. A tree only grows: finished plans stay in it.

    Plans that join during a write are added together by the next one.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._trees: LRUCache[str, _Tree] = LRUCache(CACHED)

    async def join(self, tree: str, plan: str, limit: int, ttl: float) -> bool:
        """Add a plan to a tree, durably and idempotently; return False when the tree is full without it.

        Args:
            tree: Name of the tree, a subject token.
            plan: The plan's correlation id.
            limit: Maximum number of plans in the tree.
            ttl: Seconds after its last join until a tree is removed.

        Raises:
            BusUnavailable: the outcome is unknown.
        """
        known, added = self._trees.setdefault(tree, _Tree()), member(plan)
        known.joining[added] = None
        async with known.writing:
            while added not in known and len(known) < limit:
                await self._write(tree, known, limit, ttl)
            known.joining.pop(added, None)
            return added in known

    async def _write(self, tree: str, known: _Tree, limit: int, ttl: float) -> None:
        """Add as many plans as fit, or read what another process has written."""
        added = [each for each in known.joining if each not in known][: limit - len(known)]
        members = known.members + b"".join(added)
        try:
            version = await self._registry.replace(KIND, tree, members, known.version, ttl)
        except CommitConflict:
            known.members, known.version = await self._registry.read(KIND, tree)
        else:
            known.version, known.members = version, members
            for each in added:
                known.joining.pop(each, None)


def tree_name(tenant_id: str, root: str) -> str:
    """Name the tree of a top-level plan; names of different tenants never collide."""
    return blake2b(_bytes(root), digest_size=16, key=blake2b(_bytes(tenant_id)).digest()).hexdigest()


def member(plan: str) -> bytes:
    """Return the digest that represents a plan in a tree, ``MEMBER_BYTES`` long."""
    return blake2b(_bytes(plan), digest_size=MEMBER_BYTES).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
