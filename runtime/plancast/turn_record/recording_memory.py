"""``context.memory`` that records what handlers read of their sessions, for replays."""

from __future__ import annotations

from typing import Any


class RecordingMemory:
    """A memory that records the shared values that it returns, in the order of the reads.

    Args:
        memory: Reads them.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.sessions: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    async def session(self, session_id: str | None) -> dict[str, Any]:
        """The values that plans of a session have shared; see :meth:`plancast.plan_store.store.StoredPlans.session`."""
        values: dict[str, Any] = await self._memory.session(session_id)
        self.sessions.append(dict(values))
        return values
