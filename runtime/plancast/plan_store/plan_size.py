"""PlanSize: the bytes that a plan takes in the store."""

from __future__ import annotations

from dataclasses import dataclass

from plancast_bus.ports.bus import Bus
from plancast_bus.ports.values import references_of


@dataclass(frozen=True)
class PlanSize:
    """Bytes of a plan in the store."""

    inline: int = 0
    """Of the newest checkpoint, which each turn writes again."""
    referenced: int = 0
    """Of the values that the checkpoint and the timeline refer to, each counted once. They are stored once each, beside
    the checkpoints, compressed where that saves much; the bytes are those before."""
    history: int = 0
    """Of the timeline, without the values that it refers to."""


async def size_of(bus: Bus, correlation_id: str) -> PlanSize:
    """Return the size of the plan with this correlation id; zeros before its first turn is committed.

    Raises:
        UnreadableValue: a value that lists other values is missing or damaged.
        BusUnavailable: the store cannot be reached.
    """
    checkpoint = await bus.checkpoints.load(correlation_id, folded=True)
    if checkpoint is None:
        return PlanSize()
    inline = len(checkpoint.encode())
    history = await bus.checkpoints.history(correlation_id, folded=True)
    if not checkpoint.is_folded:
        return PlanSize(inline, 0, sum(map(len, history)))
    tenant = checkpoint.summary.tenant_id
    found = await references_of(bus.values, tenant, correlation_id, [*checkpoint.folded_parts, *history])
    return PlanSize(inline, sum(each.size for each in found.values()), sum(map(len, history)))
