"""Submitting: events of many plans, published as fast as the server takes them, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish

CHUNK = 50
"""Events in one emission."""
EMISSIONS = 20
"""Emissions at once: with CHUNK, the publishes that are in flight."""


def publication(bus: Bus, event: EventEnvelope) -> Publish:
    """An event, encoded; the ``message_id`` is its own, for a goal that of its plan."""
    payload, content_type = bus.encode(event)
    subject = bus.subjects.event(event.topic, event.correlation_id, event.type)
    return Publish(subject, payload, event.id, content_type)


async def submit(
    bus: Bus, effects: Sequence[Publish], note: Callable[[Iterable[Publish]], None] = lambda chunk: None
) -> None:
    """Publish all of them; ``note`` is told of each chunk just before it is sent."""
    chunks = (effects[at : at + CHUNK] for at in range(0, len(effects), CHUNK))

    async def emit() -> None:
        for chunk in chunks:
            note(chunk)
            await bus.emit(chunk)

    await asyncio.gather(*(emit() for _ in range(EMISSIONS)))
