"""Requests and their replies."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar
from pathlib import Path

import pytest

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings


class Large:
    """A value that a task has in its context."""


async def test_timers_keep_nothing_of_the_task_that_has_begun_a_request(tmp_path: Path) -> None:
    current: ContextVar[Large | None] = ContextVar("current", default=None)
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=1.0), BusSettings())
        await bus.ensure_streams()
        requester = bus._requester
        await requester._client.subscribe("silent")
        while requester._sweep is not None:
            await asyncio.sleep(0.01)
        kept: list[weakref.ref[Large]] = []

        async def ask() -> asyncio.Future[object]:
            value = Large()
            kept.append(weakref.ref(value))
            current.set(value)
            return await requester.send("silent", b"")

        replies = [await asyncio.create_task(ask()) for _ in range(2)]
        await bus.registry.put("test", "one", {})  # what nats-py holds of the last task is written
        gc.collect()
        assert requester.in_flight == 2
        assert [each() for each in kept] == [None, None]
        for reply in replies:
            with pytest.raises(BusUnavailable):
                await reply
        await bus.close()
