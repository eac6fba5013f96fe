"""Where a plan stands in the tree of plans that has come of one goal, and the bounds of such a tree.

A plan says in the metadata of each goal that it sends where the plan of that goal will stand. Nobody else may: what a
client says of it places a goal in a tree of the goal's own tenant, where it counts as any other plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plancast.settings import PlanSettings

if TYPE_CHECKING:
    from plancast.plan.context import PlanContext

ROOT, DEPTH = "tree_root", "tree_depth"
"""Names in the metadata of a goal that a plan has sent."""
METADATA: Final = frozenset({ROOT, DEPTH})
KEPT_SECONDS: Final = 30 * 86_400.0
"""How long a tree is counted that no plan joins, beside the retention of plans."""
_LONGEST: Final = 400
_DEEPEST: Final = 1 << 31


class Place(NamedTuple):
    """Where a plan stands."""

    root: str = ""
    """The correlation id of the tree's top-level plan; empty for that plan itself."""
    depth: int = 1
    """1 for a top-level plan, one more for each plan above."""

    def too_deep(self, bounds: PlanSettings) -> str:
        """Why there can be no plan here; empty when there can."""
        if self.depth <= bounds.max_depth:
            return ""
        return (
            f"it would be plan {self.depth} of a chain of plans that delegate to each other, and plans.max_depth is "
            f"{bounds.max_depth} (PLANCAST_PLANS__MAX_DEPTH)"
        )

    def too_many(self, bounds: PlanSettings) -> str:
        """Why there can be no plan here, when the tree has as many as it may."""
        return (
            f"the tree of plan {self.root} has had {bounds.max_tree} plans, which is plans.max_tree "
            "(PLANCAST_PLANS__MAX_TREE)"
        )


TOP = Place()


def read_place(metadata: Mapping[str, Any]) -> Place:
    """Where the plan of a goal stands, by the goal's metadata."""
    root, depth = metadata.get(ROOT), metadata.get(DEPTH)
    if isinstance(root, str) and 0 < len(root) <= _LONGEST and type(depth) is int and 1 < depth < _DEEPEST:
        return Place(root, depth)
    parent, reply_to = metadata.get("parent_plan_id"), metadata.get("reply_to")
    if not isinstance(parent, str) or not parent:
        return TOP
    return Place(reply_to if isinstance(reply_to, str) and reply_to else parent, 2)  # a goal of an earlier version


def below(plan: PlanContext) -> dict[str, Any]:
    """The metadata of the goals that a plan sends."""
    return {ROOT: plan.root or plan.correlation_id, DEPTH: plan.depth + 1}
