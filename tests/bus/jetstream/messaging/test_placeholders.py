"""Placeholders: work queues are never empty, have one placeholder each, and readers do not see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plancast_bus.errors import PublishRefused
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.messaging import placeholders
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import PLACEHOLDERS

QUEUES = ("PLANCAST_RESULTS", "PLANCAST_REQUESTS", "PLANCAST_TIMERS")
RESULTS = ConsumerSpec("plans-results", "results", ("plancast.action-results.*.*.>",))


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[JetStreamBus]:
    connected = await connect(NatsSettings(url=fresh_nats.url, publish_timeout=2.0), BusSettings())
    await connected.ensure_streams()
    yield connected
    await connected.close()


async def count_placeholders(bus: JetStreamBus) -> dict[str, int]:
    """The number of placeholders in each stream."""
    states = {}
    for name in bus._names.all():
        info = await bus._api.call(f"STREAM.INFO.{name}", {"subjects_filter": PLACEHOLDERS})
        states[name] = sum((info["state"].get("subjects") or {}).values())
    return states


async def sequences(bus: JetStreamBus) -> list[int]:
    """The sequences of the placeholders."""
    found = [
        await bus._api.last(queue, bus.subjects.placeholder(queue.removeprefix("PLANCAST_").lower()))
        for queue in QUEUES
    ]
    return [each.sequence if each is not None else 0 for each in found]


def answer(number: int) -> EventEnvelope:
    return EventEnvelope(
        source="test", type="echo.completed", topic=EventTopic.ACTION_RESULTS, correlation_id=f"p{number}"
    )


async def publish(bus: JetStreamBus, count: int) -> None:
    for number in range(count):
        await bus.publish(answer(number))


def blocks(server: NatsServer) -> dict[str, set[str]]:
    """The files that each work queue keeps its messages in."""
    folders = {queue: next(server.data_dir.glob(f"jetstream/*/streams/{queue}/msgs")) for queue in QUEUES}
    return {queue: {each.name for each in folder.glob("*.blk")} for queue, folder in folders.items()}


async def test_each_work_queue_has_one_placeholder_after_repeated_ensure_streams(bus: JetStreamBus) -> None:
    await asyncio.gather(*(bus.ensure_streams() for _ in range(10)))
    assert await count_placeholders(bus) == {name: int(name in QUEUES) for name in bus._names.all()}
    assert {name: stream["messages"] for name, stream in (await bus.health())["streams"].items()} == dict.fromkeys(
        bus._names.all(), 0
    )


async def test_a_queue_that_is_emptied_again_and_again_keeps_its_file(
    bus: JetStreamBus, fresh_nats: NatsServer
) -> None:
    before = blocks(fresh_nats)
    consumer = bus.consume(RESULTS)
    for _ in range(20):
        await publish(bus, 1)
        (delivery,) = await consumer.fetch(10)
        await consumer.ack([delivery])
        while (await bus.health())["streams"]["PLANCAST_RESULTS"]["messages"]:
            await asyncio.sleep(0.01)
    assert blocks(fresh_nats) == before
    await consumer.close()


async def test_readers_of_results_move_the_placeholders_from_time_to_time(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "EVERY", 50)
    before = await sequences(bus)
    consumer = bus.consume(RESULTS)
    await publish(bus, 50)
    read = 0
    while read < 50:
        read += len(deliveries := await consumer.fetch(100))
        assert not [each for each in deliveries if ".keepers." in each.subject]
        await consumer.ack(deliveries)
    while await sequences(bus) == before:
        await asyncio.sleep(0.01)
    assert (await sequences(bus))[0] == before[0] + 51
    while set((await count_placeholders(bus)).values()) != {0, 1}:
        await asyncio.sleep(0.01)
    await consumer.close()


async def test_existing_streams_get_placeholders(bus: JetStreamBus) -> None:
    for queue in QUEUES:
        config = (await bus._api.call(f"STREAM.INFO.{queue}"))["config"]
        await bus._api.call(f"STREAM.PURGE.{queue}")
        subjects = [subject for subject in config["subjects"] if ".keepers." not in subject]
        await bus._api.call(f"STREAM.UPDATE.{queue}", config | {"subjects": subjects})
    await bus.ensure_streams()
    assert {name: held for name, held in (await count_placeholders(bus)).items() if held} == dict.fromkeys(QUEUES, 1)


async def test_streams_are_ensured_also_where_one_is_full(tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=2.0), BusSettings(max_stream_bytes=20_000))
        await bus.ensure_streams()
        with pytest.raises(PublishRefused):
            await publish(bus, 10_000)
        await bus.ensure_streams()
        assert {name: held for name, held in (await count_placeholders(bus)).items() if held} == dict.fromkeys(
            QUEUES, 1
        )
        await bus.close()
