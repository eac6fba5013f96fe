"""Trees of plans: limits how many plans one goal may start, and the port of the store that counts them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Protocol

KIND: Final = "tree"
"""Kind of the registrations in which trees are stored."""
MEMBER_BYTES: Final = 8


class Trees(Protocol):
    """The plans of each tree. A tree only grows: finished plans stay in it."""

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
        ...


def tree_name(tenant_id: str, root: str) -> str:
    """Name the tree of a top-level plan; names of different tenants never collide."""
    return blake2b(_bytes(root), digest_size=16, key=blake2b(_bytes(tenant_id)).digest()).hexdigest()


def member(plan: str) -> bytes:
    """Return the digest that represents a plan in a tree, ``MEMBER_BYTES`` long."""
    return blake2b(_bytes(plan), digest_size=MEMBER_BYTES).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
