"""Changes of plans: the committed turns that a watch yields."""

from __future__ import annotations

from dataclasses import dataclass

from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import unpack
from plancast_bus.ports.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A committed turn of a plan; yielded by :meth:`PlanHandle.watch`."""

    plan_id: str
    revision: int
    """Number of the turn, from 1."""
    status: PlanStatus
    current_state: str
    time: float
    """When it was committed, seconds since the epoch, UTC."""
    event_type: str | None = None
    """Type of the event that the turn handled."""
    path: tuple[str, ...] = ()
    """States entered in the turn."""


def change_of(checkpoint: Checkpoint) -> PlanChange:
    """The newest turn of a checkpoint."""
    entry = unpack(checkpoint.timeline[-1]) if checkpoint.timeline else {}
    event = entry.get("event") or {}
    return PlanChange(
        plan_id=checkpoint.summary.plan_id,
        revision=checkpoint.revision,
        status=PlanStatus(checkpoint.summary.status),
        current_state=checkpoint.summary.current_state,
        time=checkpoint.summary.updated_at,
        event_type=event.get("type"),
        path=tuple(entry.get("path") or ()),
    )
