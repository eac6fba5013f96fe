"""Backlog: the unacknowledged events of one plan in the stream, delivered or not."""

from __future__ import annotations

from plancast_actors.plan_actors.protocol import Inbound
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.topics import TOPICS


class Backlog:
    """Reads a plan's replies and signals from the stream one by one, without waiting for their delivery."""

    def __init__(self, bus: Bus, correlation_id: str) -> None:
        self._bus = bus
        self._correlation_id = correlation_id
        self._read = {str(topic): 0 for topic in TOPICS["results"]}
        """Sequence of the last event read, by topic."""

    async def has_more(self) -> bool:
        """True if there are events that were not read.

        Raises:
            BusUnavailable: the stream cannot be read.
        """
        return await self._next() is not None

    async def read(self, token: int) -> Inbound | None:
        """Read the next event, under a token; None if there is none. Raises what :meth:`has_more` raises."""
        found = await self._next()
        if found is None:
            return None
        topic, stored = found
        self._read[topic] = stored.sequence
        return Inbound.of(stored, token)

    async def _next(self) -> tuple[str, Delivery] | None:
        for topic, after in self._read.items():
            while held := await self._bus.stored_events(topic, self._correlation_id, after=after, limit=1):
                if not held[0].is_response:
                    return topic, held[0]
                after = held[0].sequence
        return None
