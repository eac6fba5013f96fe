"""Outcome of a signal: what became of an event that was sent to a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from plancast_bus.errors import AccessDenied
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.events.folding import PART_BYTES
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import unfold_by
from plancast_bus.subjects import message_id_of

FIRST_LOOK, LONGEST_LOOK = 0.005, 0.25
"""Seconds between two reads of the plan; the interval doubles."""


class SignalOutcome(StrEnum):
    """Outcome of a signal; returned by :meth:`plancast.PlanHandle.signal`."""

    MOVED = "moved"
    """The plan has taken it."""
    KEPT = "kept"
    """It is stored until the plan waits for it, or until the turn that the plan is in has ended."""
    IGNORED = "ignored"
    """Nothing of the plan can take it, or its sender may not move the plan; the history says why."""


def outcome_in(entry: Mapping[str, Any]) -> SignalOutcome:
    """The outcome of the event of a turn, by the turn's entry in the timeline."""
    if entry.get("ignored"):
        return SignalOutcome.IGNORED
    return SignalOutcome.KEPT if entry.get("kept") else SignalOutcome.MOVED


async def outcome_of(bus: Bus, event: EventEnvelope, key: str, seconds: float) -> SignalOutcome:
    """Wait for a plan's turn on an event that was published.

    The turn's entry in the timeline tells the outcome. An event that has left its stream without one was ignored.

    Args:
        bus: The connection.
        event: The event.
        key: Correlation id of the plan's checkpoint.
        seconds: Longest wait; then the event counts as kept, since its stream holds it.

    Raises:
        BusUnavailable: the plan cannot be read; the event was sent nevertheless.
    """
    loop = asyncio.get_running_loop()
    ends, delay, gone = loop.time() + seconds, FIRST_LOOK, False
    while loop.time() < ends:
        await asyncio.sleep(delay)
        # A turn is committed before its event leaves the stream.
        queued = delay < LONGEST_LOOK or await _is_queued(bus, event, key)
        checkpoint = await bus.checkpoints.load(key, folded=True)
        if checkpoint is None:  # forgotten
            return SignalOutcome.IGNORED
        if (entry := await _entry_of(bus, checkpoint, event.id)) is not None:
            return outcome_in(entry)
        if gone and not queued:  # a second look: what was read first may be older
            return SignalOutcome.IGNORED
        gone, delay = not queued, min(2 * delay, LONGEST_LOOK)
    return SignalOutcome.KEPT


async def _is_queued(bus: Bus, event: EventEnvelope, key: str) -> bool:
    try:
        stored = await bus.stored_events(event.topic, key)
    except AccessDenied:
        return True
    return any(each.message_id == message_id_of(event.id) for each in stored)


async def _entry_of(bus: Bus, checkpoint: Checkpoint, event_id: str) -> dict[str, Any] | None:
    """The entry of an event, without large values of the event."""

    def read(unfolding: Unfolding) -> list[dict[str, Any]]:
        return [unfolding.read_lazily(each, "event", PART_BYTES) for each in reversed(checkpoint.timeline)]

    plan, tenant = checkpoint.correlation_id, checkpoint.summary.tenant_id
    entries, _ = await unfold_by(read, bus.values, tenant, plan)
    return next((entry for entry in entries if entry["event"].get("id") == event_id), None)
