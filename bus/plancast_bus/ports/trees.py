"""Trees: how many plans have come of one goal, and the port to where that is counted."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Protocol

KIND: Final = "tree"
"""Of the registrations that trees are stored as."""
MEMBER_BYTES: Final = 8


class Trees(Protocol):
    """Which plans belong to which tree. A tree only grows: plans that have ended are still in it."""

    async def join(self, tree: str, plan: str, limit: int, ttl: float) -> bool:
        """Add a plan to a tree, durably; harmless to repeat.

        Args:
            tree: Names the tree; a token of a subject.
            plan: The plan's correlation id.
            limit: Plans that the tree may have.
            ttl: Seconds after which a tree is forgotten that no further plan has joined.

        Returns:
            Whether the plan is in the tree; False when that has so many plans without it.

        Raises:
            BusUnavailable: whether it joined is not known.
        """
        ...


def tree_name(tenant_id: str, root: str) -> str:
    """The name of the tree below a top-level plan. No tenant's tree has the name of another's."""
    return blake2b(_bytes(root), digest_size=16, key=blake2b(_bytes(tenant_id)).digest()).hexdigest()


def member(plan: str) -> bytes:
    """What a tree holds of a plan: ``MEMBER_BYTES`` of a digest."""
    return blake2b(_bytes(plan), digest_size=MEMBER_BYTES).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
