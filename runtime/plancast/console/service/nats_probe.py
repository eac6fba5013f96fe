"""NatsProbe: asks NATS for a sign of life, once for all pages that ask at the same time."""

from __future__ import annotations

import asyncio

from plancast_bus.errors import AccessDenied, BusError
from plancast_bus.ports.registry import Registry

PROBE_SECONDS = 1.0
"""Maximum wait for the answer; pages allow 1.5 s for theirs, and say within 3 s that NATS is gone."""


class NatsProbe:
    """Reads one registration, which needs both the connection and JetStream.

    Args:
        registry: Where to read.
        seconds: Maximum wait for an answer.
    """

    def __init__(self, registry: Registry, seconds: float = PROBE_SECONDS) -> None:
        self._registry = registry
        self._seconds = seconds
        self._asking: asyncio.Task[str] | None = None

    async def fault(self) -> str:
        """Why NATS cannot be used; empty when it answers."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(self._seconds):
                await self._registry.get("app", "-")
        except AccessDenied:
            return ""  # it has answered
        except TimeoutError:
            return f"no answer within {self._seconds:g} s"
        except BusError as error:
            return str(error) or type(error).__name__
        return ""
