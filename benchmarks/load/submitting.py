"""Publishes events of many plans as fast as the server accepts them, with a bounded number in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish

CHUNK = 50
"""Events per emission."""
EMISSIONS = 20
"""Concurrent emissions; with CHUNK, the number of publishes in flight."""


def publication(bus: Bus, event: EventEnvelope) -> Publish:
    """Return an encoded event; its ``message_id`` is its own id, for a goal that of its plan."""
    payload, content_type = bus.encode(event)
    subject = bus.subjects.event(event.topic, event.correlation_id, event.type)
    return Publish(subject, payload, event.id, content_type)


async def submit(
    bus: Bus, effects: Sequence[Publish], note: Callable[[Iterable[Publish]], None] = lambda chunk: None
) -> None:
    """Publish all events; ``note`` is called with each chunk just before it is sent."""
    chunks = (effects[at : at + CHUNK] for at in range(0, len(effects), CHUNK))

    async def emit() -> None:
        for chunk in chunks:
            note(chunk)
            await bus.emit(chunk)

    await asyncio.gather(*(emit() for _ in range(EMISSIONS)))
