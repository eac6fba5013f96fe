"""Streams and consumers that someone deletes while a deployment runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import astuple
from uuid import uuid4

import pytest

from plancast_bus.errors import BusError, BusUnavailable, CommitConflict
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.messaging.consumer import PullConsumer
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 120.0
Connect = Callable[[], Awaitable[JetStreamBus]]


@pytest.fixture
async def connected(nats_server: NatsServer) -> AsyncIterator[Connect]:
    """Connects to one deployment."""
    settings, buses = BusSettings(prefix=f"t{uuid4().hex[:12]}"), list[JetStreamBus]()

    async def make() -> JetStreamBus:
        buses.append(await connect(NatsSettings(url=nats_server.url), settings))
        return buses[-1]

    yield make
    for bus in buses:
        await bus.close()


async def delete(bus: JetStreamBus, *names: str) -> None:
    for name in names:
        await bus._api.call(f"STREAM.DELETE.{name}")


def event(number: int) -> EventEnvelope:
    topic = EventTopic.ACTION_RESULTS
    return EventEnvelope(id=str(number), source="t", type="a.b", topic=topic, correlation_id="plan-1")


def checkpoint(revision: int = 1, version: int = 0) -> Checkpoint:
    summary = PlanSummary("plan-1", "running", "any.goal", "waiting", revision)
    return Checkpoint("plan-1", revision, str(revision), b"state", summary, version=version)


def results(bus: JetStreamBus) -> ConsumerSpec:
    return ConsumerSpec("reader", "results", (bus.subjects.stored("*", "*"),), reclaim=True)


async def test_streams_are_made_again_and_said_to_be_lost(connected: Connect, caplog: pytest.LogCaptureFixture) -> None:
    bus = await connected()
    await bus.ensure_streams()
    assert await bus.restore() == []
    names = astuple(bus._names)
    await delete(bus, *names)
    assert await bus.restore() == list(names)
    [lost] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert all(name in lost.getMessage() for name in names)
    assert not [each for each in (await bus.health())["streams"].values() if each.get("missing") or each["differs"]]
    assert await bus.restore() == []


async def test_a_reader_goes_on_in_the_new_stream_with_greater_sequences(connected: Connect) -> None:
    bus = await connected()
    await bus.ensure_streams()
    consumer = bus.consume(results(bus))
    for number in range(100):
        await bus.publish(event(number))
    async with asyncio.timeout(PATIENCE):
        before: list[int] = []
        while len(before) < 100:
            before += [each.sequence for each in await consumer.fetch(100)]
    await delete(bus, bus._names.results)
    await bus.restore()
    await bus.publish(event(0))  # of the same id, which the new stream has not seen
    [delivery] = await fetched(consumer)
    assert delivery.sequence > max(before)


async def fetched(consumer: PullConsumer) -> list[Delivery]:
    """The messages fetched once the reader has found the new stream, as readers try it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await consumer.fetch(10)
            except BusError:
                await asyncio.sleep(0.05)


async def test_a_checkpoint_of_the_deleted_stream_is_no_base_for_a_commit(connected: Connect) -> None:
    bus = await connected()
    await bus.ensure_streams()
    version = await bus.checkpoints.commit(checkpoint())
    await delete(bus, bus._names.checkpoints)
    await bus.restore()
    assert await bus.checkpoints.load("plan-1") is None
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(checkpoint(2, version))
    assert await bus.checkpoints.commit(checkpoint()) > version


async def test_a_deleted_key_is_stored_again_by_a_process_that_has_it_and_by_no_other(connected: Connect) -> None:
    bus = await connected()
    await bus.ensure_streams()
    await bus.checkpoints.commit(checkpoint())
    await delete(bus, bus._names.keys)

    stranger = await connected()
    with pytest.raises(BusUnavailable, match="does not have the key"):
        await stranger.restore()
    assert await bus.restore() == [bus._names.keys]
    await stranger.restore()
    found = await stranger.checkpoints.load("plan-1")
    assert found is not None
    assert found.revision == 1


async def test_consumers_of_others_are_made_again_with_what_waits_for_them(connected: Connect) -> None:
    bus = await connected()
    await bus.ensure_streams()
    await bus.ensure_consumer(results(bus))
    await bus.publish(event(1))
    await bus.delete_consumer("results", "reader")
    assert await bus.restore([results(bus)]) == ["reader"]
    assert await bus.restore([results(bus)]) == []
    async with asyncio.timeout(PATIENCE):
        assert len(await bus.consume(results(bus)).fetch(1)) == 1
