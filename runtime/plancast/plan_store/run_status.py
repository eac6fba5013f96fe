"""The status of a plan that something has started by its id, also before its first turn."""

from __future__ import annotations

from plancast.plan.status import PlanStatus
from plancast_bus.errors import AccessDenied
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus


async def run_status(bus: Bus, plan_id: str, goal_event: str) -> str | None:
    """Return the status of a plan by the correlation id of its goal; ``pending`` while its goal is queued.

    None when there is neither: the plan was deleted after its retention, or its goal was refused.

    Raises:
        BusUnavailable: the store cannot be reached.
    """
    if (status := await _committed(bus, plan_id)) is not None:
        return status
    try:
        queued = await bus.stored_events(EventTopic.ACTION_REQUESTS, plan_id)
        if any(bus.subjects.parse_stored(each.subject).event_type == goal_event for each in queued):
            return str(PlanStatus.PENDING)
    except AccessDenied:
        return None
    return await _committed(bus, plan_id)  # its first turn may have been committed between the two looks


async def _committed(bus: Bus, plan_id: str) -> str | None:
    checkpoint = await bus.checkpoints.load(plan_id, folded=True)
    return str(checkpoint.summary.status) if checkpoint is not None else None
