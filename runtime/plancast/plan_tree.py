"""Places of plans in the tree of plans that descends from one goal, and the limits of such a tree.

A plan writes the place of each child into the metadata of the goal that it sends. A client that writes it too only
places its goal in a tree of its own tenant, where it counts like any other plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plancast_bus.events.envelope import EventEnvelope

if TYPE_CHECKING:
    from plancast.plan.record import PlanRecord
    from plancast.settings import PlanSettings

ROOT, DEPTH = "tree_root", "tree_depth"
"""Keys in the metadata of a goal that a plan has sent."""
DEADLINE: Final = "plan_deadline"
"""Key in the metadata of a goal: the deadline of its plan, seconds since the epoch, UTC."""
SHARE: Final = "tree_share"
"""Key in the metadata of a goal: what its plan may spend of its parent's budget, by name."""
SPENT: Final = "tree_spent"
"""Key in the metadata of a child plan's final response: what it has spent with all plans below it, by name."""
SEAL: Final = "tree_seal"
"""Key beside it: proves that the runtime has written it for this child and its parent."""
CAUSE: Final = "tree_cause"
"""Key in the metadata of a request, and of what its worker sends: the place of the plan that has caused them."""
METADATA: Final = frozenset({ROOT, DEPTH, DEADLINE, SHARE, SPENT, SEAL, CAUSE})
KEPT_SECONDS: Final = 30 * 86_400.0
"""Seconds, beyond the retention of plans, after which the count of a tree that no plan joins is dropped."""
_LONGEST: Final = 400
_DEEPEST: Final = 1 << 31
_LATEST: Final = 253_402_300_800.0
"""The year 10000."""


class Place(NamedTuple):
    """Place of a plan in its tree."""

    root: str = ""
    """The correlation id of the tree's top-level plan; empty for that plan itself."""
    depth: int = 1
    """1 for a top-level plan, one more for each plan above."""

    def too_deep(self, bounds: PlanSettings) -> str:
        """Why a plan at this depth is refused; empty when it is not."""
        if self.depth <= bounds.max_depth:
            return ""
        return (
            f"it would be plan {self.depth} of a chain of plans that delegate to each other, and plans.max_depth is "
            f"{bounds.max_depth} (PLANCAST_PLANS__MAX_DEPTH)"
        )

    def metadata(self) -> dict[str, Any]:
        """The place, as metadata of an event."""
        return {ROOT: self.root, DEPTH: self.depth}

    def below(self) -> Place:
        """The place of a plan that this one begins or causes."""
        return Place(self.root, self.depth + 1)

    def too_many(self, bounds: PlanSettings) -> str:
        """Why a plan is refused when its tree is full."""
        return (
            f"the tree of plan {self.root} has had {bounds.max_tree} plans, which is plans.max_tree "
            "(PLANCAST_PLANS__MAX_TREE)"
        )


TOP = Place()


def read_place(metadata: Mapping[str, Any]) -> Place:
    """Read the place of a goal's plan from the goal's metadata."""
    if (place := _named_place(metadata)) is not None and place.depth > 1:
        return place
    parent, reply_to = metadata.get("parent_plan_id"), metadata.get("reply_to")
    if not isinstance(parent, str) or not parent:
        return TOP
    return Place(reply_to if isinstance(reply_to, str) and reply_to else parent, 2)  # a goal of an earlier version


def place_of(plan: PlanRecord) -> Place:
    """The place of a plan."""
    return Place(plan.root or plan.correlation_id, plan.depth)


def read_cause(event: EventEnvelope) -> Place | None:
    """Read the place of the plan that has caused an event; None when no plan has."""
    if (place := place_of_cause(event.metadata)) is not None:
        return place
    return Place(event.plan_id) if event.plan_id else None


def passed_on(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of what a worker sends because of a request with this metadata: the place of the plan behind both.

    It is for those who hear of it: a goal with it is a top-level goal nevertheless.
    """
    place = place_of_cause(metadata) if metadata else None
    return {} if place is None else {CAUSE: place.metadata()}


def place_of_cause(metadata: Mapping[str, Any]) -> Place | None:
    """Read the place of the plan that has caused an event from the event's metadata; None when they name none."""
    if (place := _named_place(metadata)) is not None:
        return place
    cause = metadata.get(CAUSE)
    return _named_place(cause) if isinstance(cause, Mapping) else None


def _named_place(metadata: Mapping[str, Any]) -> Place | None:
    root, depth = metadata.get(ROOT), metadata.get(DEPTH)
    if isinstance(root, str) and 0 < len(root) <= _LONGEST and type(depth) is int and 0 < depth < _DEEPEST:
        return Place(root, depth)
    return None


def read_deadline(metadata: Mapping[str, Any] | None) -> float | None:
    """Read the deadline of a goal's plan from the goal's metadata; None when there is none."""
    value = metadata.get(DEADLINE) if metadata else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < _LATEST else None


def below(plan: PlanRecord) -> dict[str, Any]:
    """Place and deadline of a child plan, as metadata of the goal that its parent sends."""
    place = place_of(plan).below().metadata()
    return place if plan.deadline is None else {**place, DEADLINE: plan.deadline}
