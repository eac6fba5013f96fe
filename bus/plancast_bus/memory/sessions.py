"""Sessions in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plancast_bus.clock import Clock
from plancast_bus.ports.effects import Share
from plancast_bus.ports.sessions import KIND, SessionBounds, merged, plain_values

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class SessionTable:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, tuple[bytes, float]] = {}

    def find(self, session: str) -> bytes:
        stored, until = self._sessions.get(session, (b"", 0.0))
        return stored if until > self._clock.time() else b""

    def merge(self, share: Share, version: int, bounds: SessionBounds) -> None:
        stored = self.find(share.session)
        after = merged(stored, share, version, bounds)
        if after != stored:
            until = self._clock.time() + bounds.ttl if bounds.ttl > 0 else float("inf")
            self._sessions[share.session] = after, until


class MemorySessions:
    """The sessions as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def merge(self, share: Share, version: int, bounds: SessionBounds) -> None:
        subject = self._bus.subjects.registry(KIND, share.session)
        await self._bus.turn()
        await self._bus.point("publish.before", subject)
        self._bus.check_open()
        self._bus.world.sessions.merge(share, version, bounds)
        await self._bus.point("publish.after", subject)

    async def read(self, session: str) -> dict[str, Any]:
        await self._bus.turn()
        return plain_values(self._bus.world.sessions.find(session))
