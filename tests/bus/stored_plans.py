"""The stored plans of a bus, for assertions."""

from __future__ import annotations

from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import PlanSummary


async def stored_plans(bus: Bus) -> list[PlanSummary]:
    """Return the summaries of all stored plans, newest commit last."""
    return [each.summary async for each in bus.checkpoints.newest()][::-1]
