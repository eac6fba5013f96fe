"""The probe of NATS: one question for all who ask, bounded in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast.console.service.nats_probe import NatsProbe
from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.memory.bus import MemoryBus

pytestmark = pytest.mark.asyncio


class Scripted:
    """A registry that raises, or never answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return None


def probe(error: Exception | None = None) -> tuple[Scripted, NatsProbe]:
    registry = Scripted(error)
    return registry, NatsProbe(registry, 0.01)  # type: ignore[arg-type]


async def test_a_store_that_answers_has_no_fault() -> None:
    assert await NatsProbe(MemoryBus().registry).fault() == ""
    assert await probe(AccessDenied("may not read"))[1].fault() == ""


async def test_a_silent_store_is_asked_once_for_all_and_waited_for_briefly() -> None:
    registry, asked = probe()
    assert await asyncio.gather(asked.fault(), asked.fault()) == ["no answer within 0.01 s"] * 2
    assert registry.asked == 1
    assert await asked.fault() != ""
    assert registry.asked == 2


async def test_the_reason_of_an_unavailable_store_is_given() -> None:
    assert await probe(BusUnavailable("the connection is closed"))[1].fault() == "the connection is closed"
