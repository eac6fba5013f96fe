"""Traffic: the requests and the answers of a run, as NATS has them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream.bus import JetStreamBus

PATIENCE = 120.0
"""Seconds after which something that has not happened counts as lost; nothing is timed by it."""
PAUSE = 0.02


class Stuck(Exception):
    """Raised when something does not happen."""


async def until(condition: Callable[[], Any], otherwise: str) -> Any:
    """Wait until a condition, plain or async, is true; returns its value.

    Raises:
        Stuck: it has not come true.
    """
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            raise Stuck(otherwise)
        await asyncio.sleep(PAUSE)


class Traffic:
    """Sends requests, and reads what is stored of them."""

    def __init__(self, bus: JetStreamBus) -> None:
        self._bus = bus

    async def send(self, request: EventEnvelope) -> None:
        """Send a request, durably."""
        await self._bus.publish(request)

    async def answers(self, request: EventEnvelope) -> list[EventEnvelope]:
        """The durable answers to a request, in order."""
        stored = await self._bus.stored_events(EventTopic.ACTION_RESULTS, request.correlation_id)
        events = [decode(each.payload, each.content_type) for each in stored]
        return [each for each in events if each.parent_event_id == request.id]

    async def answer(self, request: EventEnvelope, after: int = 0) -> EventEnvelope:
        """Wait for an answer to a request beside this number of earlier ones; returns the newest.

        Raises:
            Stuck: there is none.
        """

        async def found() -> list[EventEnvelope]:
            return (await self.answers(request))[after:]

        answers: list[EventEnvelope] = await until(found, f"{request.id} has no answer")
        return answers[-1]

    async def settled(self, request: EventEnvelope) -> None:
        """Wait until a request is acknowledged.

        Raises:
            Stuck: it is not.
        """

        async def gone() -> bool:
            stored = await self._bus.stored_events(EventTopic.ACTION_REQUESTS, request.correlation_id)
            return not any(each.subject.endswith(f".{request.type}") for each in stored)

        await until(gone, f"{request.id} is not acknowledged")
