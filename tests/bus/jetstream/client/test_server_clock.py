"""The time of the server, as a machine sees it whose clock is wrong or is set."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from plancast_bus.errors import AccessDenied
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client import server_clock
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.settings import BusSettings, NatsSettings

RIGHT = time.time


@pytest.fixture
def skew(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """``seconds`` by which this machine's clock is ahead of the server's; may change."""
    skew = {"seconds": 0.0}
    monkeypatch.setattr(time, "time", lambda: RIGHT() + skew["seconds"])
    return skew


async def test_the_servers_time_counts_from_the_start(
    nats_server: NatsServer, skew: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = BusSettings(prefix="skewed")
    first = await connect(NatsSettings(url=nats_server.url), settings)
    await first.ensure_streams()
    await first.close()
    skew["seconds"] = -3_600.0

    bus = await connect(NatsSettings(url=nats_server.url), settings)

    assert bus.clock.precision is not None
    assert abs(bus.clock.time() - RIGHT()) <= bus.clock.precision
    assert "3600.0 s behind the nats-server's" in caplog.text
    await bus.close()


async def test_it_counts_as_soon_as_there_are_streams(nats_server: NatsServer, skew: dict[str, float]) -> None:
    skew["seconds"] = 86_400.0
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="fresh"))
    assert bus.clock.precision is None
    assert bus.clock.time() == pytest.approx(time.time(), abs=3_600)

    await bus.ensure_streams()

    assert bus.clock.precision is not None
    assert abs(bus.clock.time() - RIGHT()) <= bus.clock.precision
    await bus.close()


async def test_where_the_servers_time_is_not_known_the_machine_may_be_set(
    nats_server: NatsServer, skew: dict[str, float]
) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="unknown"))

    skew["seconds"] = 86_400.0

    assert bus.clock.precision is None
    assert bus.clock.time() == pytest.approx(time.time(), abs=3_600)
    await bus.close()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock tells of a suspension")
async def test_it_is_right_as_soon_as_a_suspended_machine_goes_on(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="asleep"))
    await bus.ensure_streams()
    elapsed = time.clock_gettime

    monkeypatch.setattr(time, "clock_gettime", lambda which: elapsed(which) + 3_600 * (which == time.CLOCK_BOOTTIME))

    assert bus.clock.precision is not None
    assert abs(bus.clock.time() - RIGHT() - 3_600) <= bus.clock.precision
    await bus.close()


async def test_a_machine_whose_clock_is_set_goes_on_by_the_servers(
    nats_server: NatsServer, skew: dict[str, float]
) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="set"))
    await bus.ensure_streams()

    skew["seconds"] = 86_400.0

    assert bus.clock.precision is not None
    assert abs(bus.clock.time() - RIGHT()) <= bus.clock.precision
    await bus.close()


async def test_the_age_of_a_delivery_is_by_the_servers_time(nats_server: NatsServer, skew: dict[str, float]) -> None:
    skew["seconds"] = -3_600.0
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix="aged"))
    await bus.ensure_streams()
    spec = ConsumerSpec("ages", "facts", (bus.subjects.stored(EventTopic.BUSINESS_FACTS),))
    await bus.ensure_consumer(spec)
    consumer = bus.consume(spec)
    began = RIGHT()
    await bus.publish(EventEnvelope(source="test", type="a.fact", topic=EventTopic.BUSINESS_FACTS, correlation_id="c"))

    (delivery,) = await consumer.fetch(1)

    age, precision = consumer.age(delivery), bus.clock.precision
    assert age is not None
    assert precision is not None
    assert 0 <= age <= RIGHT() - began + precision
    await consumer.close()
    await bus.close()


async def test_it_is_read_again_and_again_and_outlives_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_clock, "FOLLOW_SECONDS", 0.01)
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=0.5), BusSettings())
        await bus.ensure_streams()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.start)
        assert bus.clock._offset is not None
        bus.clock._offset += 60.0  # it has drifted

        while abs(bus.clock.time() - RIGHT()) > 30.0:
            await asyncio.sleep(0.01)
        await bus.close()
        following = bus.clock._following
        assert following is not None
        assert following.cancelled()


class Answering(JetStreamApi):
    """The calls of a user, with the answer to all of them."""

    def __init__(self, answer: asyncio.Future[dict[str, Any]]) -> None:
        self.answer, self.calls = answer, 0

    async def call(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.calls += 1
        return await self.answer


async def test_a_user_who_may_not_read_it_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_clock, "FOLLOW_SECONDS", 0.0)
    api = Answering(asyncio.get_running_loop().create_future())
    api.answer.set_exception(AccessDenied("no"))
    clock = server_clock.ServerClock(api, "timers")
    await clock.follow()
    assert clock._following is None
    assert api.calls == 1


async def test_a_stream_without_a_leader_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_clock, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(server_clock, "FIRST_SECONDS", 0.01)
    api = Answering(asyncio.get_running_loop().create_future())
    clock = server_clock.ServerClock(api, "timers")
    await clock.follow()
    assert clock.precision is None
    api.answer = asyncio.get_running_loop().create_future()
    api.answer.set_result({"ts": "2126-01-01T00:00:00Z"})
    while clock.precision is None:
        await asyncio.sleep(0)
    await clock.stop()
    assert api.calls > 1
