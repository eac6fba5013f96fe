"""The data of an event is stored as long as the event rests anywhere, and removed after it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgpack
import pytest
from tests.actors.maintenance.test_value_gc import DAY, time_passes
from tests.actors.plan_actors.test_large_events import GOAL, LARGE, an_app, text, until_it_waits

from plancast import Settings
from plancast.errors import PlanCancelled
from plancast.testing import ManualClock, PlancastTest
from plancast_actors.maintenance import value_gc
from plancast_actors.maintenance.value_gc import ValueCollector
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.event_data import delivered_in_full, in_full
from plancast_bus.events.codec import REFERENCE_TYPES, decode, dump, load, pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.value_parts import DIGEST_BYTES, digest_of
from plancast_bus.jetstream import connect
from plancast_bus.memory.bus import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus, ConsumerSpec, Delivery
from plancast_bus.ports.effects import CancelTimer, Publish, Respond, SetTimer
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.topics import SOURCES

pytestmark = pytest.mark.asyncio
DATA = {"text": "x" * 5_000, "rows": [{"n": n} for n in range(5_000)]}


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    settings = BusSettings(prefix=f"t{uuid4().hex[:12]}", shards=4, max_event_bytes=2_048)
    if request.param == "memory":
        yield MemoryBus(settings)
        return
    server: NatsServer = request.getfixturevalue("nats_server")
    bus = await connect(NatsSettings(url=server.url), settings)
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture(autouse=True)
def values_may_be_removed_at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "bus" in request.fixturenames:
        monkeypatch.setattr(value_gc, "MIN_AGE", -1.0)


def event(topic: EventTopic, **fields: Any) -> EventEnvelope:
    given: dict[str, Any] = {"source": "s", "type": "large.event", "topic": topic, "data": DATA, "tenant_id": "one"}
    return EventEnvelope(**given | {"correlation_id": uuid4().hex} | fields)


async def scan(bus: Bus) -> int:
    """Run the collector; returns the number of values that are left."""
    await ValueCollector(bus, began=-value_gc.FIRST_SCAN).collect(1.0)
    return len([each async for each in bus.values.values()])


async def is_whole(bus: Bus, delivery: Delivery) -> bool:
    whole = await delivered_in_full(bus, delivery)
    return bool(decode(whole.payload, whole.content_type).data == DATA)


@pytest.mark.parametrize("topic", list(EventTopic))
async def test_an_event_in_a_stream_keeps_its_data(bus: Bus, topic: EventTopic) -> None:
    sent = event(topic)
    await bus.publish(sent)
    for _ in range(3):
        assert await scan(bus) > 1
    (found,) = await bus.stored_events(topic, sent.correlation_id)
    assert await is_whole(bus, found)
    if SOURCES[topic] != "facts":
        source = SOURCES[topic]
        consumer = bus.consume(ConsumerSpec("all", source, (bus.subjects.stored(topic),)))
        await consumer.ack(await consumer.fetch(1))
        async with asyncio.timeout(60):
            while await bus.stored_events(topic, sent.correlation_id):
                await asyncio.sleep(0.01)
        assert await scan(bus) == 0
        assert not [each async for each in bus.values.plans()]


async def test_a_timer_keeps_its_data_until_it_is_cancelled(bus: Bus) -> None:
    timed = event(EventTopic.PLAN_EVENTS)
    await bus.emit((SetTimer(timed.correlation_id, "fork", 4e9, *await bus.prepare(timed)),))
    assert await scan(bus) > 1
    (found,) = await bus.events_with_references(timed.correlation_id)
    assert await is_whole(bus, found)
    await bus.emit((CancelTimer(timed.correlation_id, "fork"),))
    assert await scan(bus) == 0


async def test_a_final_response_keeps_its_data(bus: Bus) -> None:
    said = event(EventTopic.ACTION_RESULTS)
    payload, content_type = await bus.prepare(said)
    await bus.emit((Respond(said.topic, said.correlation_id, said.type, payload, said.id, content_type),))
    assert await scan(bus) > 1
    assert await is_whole(bus, (await bus.events_with_references(said.correlation_id))[0])


async def test_a_dead_letter_keeps_its_data_and_so_does_its_replay(bus: Bus) -> None:
    sent = [event(EventTopic.ACTION_REQUESTS) for _ in range(20)]
    for each in sent:
        await bus.publish(each)
    consumer = bus.consume(ConsumerSpec("all", "requests", (bus.subjects.stored("action-requests"),)))
    taken: list[Delivery] = []
    while len(taken) < 20:
        taken += await consumer.fetch(20)
    await bus.dead_letters.put_all("undecodable", [(each, "") for each in taken])
    await consumer.ack(taken)
    async with asyncio.timeout(60):
        while any([await bus.stored_events("action-requests", each.correlation_id) for each in sent]):
            await asyncio.sleep(0.01)
    assert await scan(bus) > 1
    letters = [each async for each in bus.dead_letters.with_references()]
    assert len(letters) == 20
    for letter in letters:
        payload, content_type = await in_full(bus, letter.payload, letter.content_type)
        assert decode(payload, content_type).data == DATA
    for number in sorted({letter.number for letter in letters}):
        await bus.dead_letters.replay(number)
    assert await scan(bus) > 1
    for each in sent:
        (found,) = await bus.stored_events("action-requests", each.correlation_id)
        assert await is_whole(bus, found)


@pytest.mark.parametrize("tenant", ["one", "x" * 600, "\u0000"])
async def test_a_forged_event_does_not_stop_the_collector(bus: Bus, tenant: str) -> None:
    """Its values never existed, or its tenant cannot be part of a subject."""
    honest = event(EventTopic.ACTION_REQUESTS)
    await bus.publish(honest)
    for data in ({"sha256": "ab" * 32, "bytes": 70}, {"sha256": "ab" * 32, "bytes": 1 << 60}, {"n": 1}):
        forged = event(EventTopic.ACTION_REQUESTS, data=data, tenant_id=tenant, correlation_id=honest.correlation_id)
        reference_type = next(name for name, wire_format in REFERENCE_TYPES.items() if wire_format == "json")
        subject = bus.subjects.event(forged.topic, forged.correlation_id, forged.type)
        await bus.emit((Publish(subject, dump(forged.to_wire(), "json"), forged.id, reference_type),))
    assert await scan(bus) > 1
    first, *others = await bus.stored_events("action-requests", honest.correlation_id)
    assert await is_whole(bus, first)
    for each in others:
        with pytest.raises(InvalidEnvelope):
            await delivered_in_full(bus, each)


@pytest.mark.parametrize("size", [1.5, math.nan, True, "9", None, [], 0, -1, 1 << 63])
async def test_a_forged_size_inside_a_value_does_not_stop_the_collector(bus: Bus, size: Any) -> None:
    forged = pack(msgpack.ExtType(2, bytes(DIGEST_BYTES) + pack(size)))
    await bus.values.put("one", "p", {digest_of(forged): forged})
    data = {"sha256": digest_of(forged).hex(), "bytes": len(forged)}
    sent = event(EventTopic.ACTION_REQUESTS, data=data, correlation_id="p")
    reference_type = next(name for name, wire_format in REFERENCE_TYPES.items() if wire_format == "msgpack")
    subject = bus.subjects.event(sent.topic, "p", sent.type)
    await bus.emit((Publish(subject, pack(sent.to_wire()), sent.id, reference_type),))
    honest = event(EventTopic.ACTION_REQUESTS)
    await bus.publish(honest)
    assert await scan(bus) > 1
    (found,) = await bus.stored_events("action-requests", "p")
    with pytest.raises(InvalidEnvelope):
        await delivered_in_full(bus, found)


async def test_what_large_events_left_is_gone_after_the_retention() -> None:
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    async with PlancastTest(an_app(), settings=settings, clock=ManualClock()) as env:
        handle = await env.submit("large.goal", GOAL)
        await until_it_waits(env.bus, handle)
        await time_passes(env, 10 * DAY, 2 * DAY)
        assert (await handle.state())["results"]["answer"]["text"] == text(LARGE, "answer")
        await handle.signal("go", {"said": text(LARGE, "signal")})
        assert (await handle.result(timeout=60))["said"] == text(LARGE, "signal")
        await time_passes(env, settings.plans.retention_seconds + DAY)
        assert not env.world.values.contents
        assert not env.world.values.plans()


async def test_an_event_with_a_lost_value_becomes_a_dead_letter_that_names_it() -> None:
    async with PlancastTest(an_app()) as env:
        handle = await env.submit("large.goal", {"rows": ["small"]})
        await until_it_waits(env.bus, handle)
        for correlation_id, topic, event_type in (
            (handle.plan_id, EventTopic.PLAN_EVENTS, "go"),
            ("never-begun", EventTopic.ACTION_REQUESTS, "large.goal"),
            ("for-a-worker", EventTopic.ACTION_REQUESTS, "large.requested"),
        ):
            data = {"sha256": "ab" * 32, "bytes": 70}
            forged = event(topic, type=event_type, data=data, correlation_id=correlation_id, tenant_id=None)
            subject = env.bus.subjects.event(topic, correlation_id, event_type)
            (reference_type, *_) = (name for name, wire_format in REFERENCE_TYPES.items() if wire_format == "msgpack")
            payload = dump(forged.to_wire(), "msgpack")
            await env.bus.emit((Publish(subject, payload, forged.id, reference_type),))
        async with asyncio.timeout(60):
            while await env.bus.dead_letters.count() < 3:
                await asyncio.sleep(0.01)
        async for letter in env.bus.dead_letters.list():
            assert letter.reason == "undecodable"
            assert "the value " + "ab" * 32 + " is missing" in letter.detail
        await handle.signal("go", {"said": "small"})
        assert (await handle.result(timeout=60))["said"] == "small"


async def test_a_tenant_reads_nothing_by_the_hash_of_another_tenants_value() -> None:
    async with PlancastTest(an_app()) as env:
        theirs = event(EventTopic.SYSTEM_EVENTS, data={"said": text(LARGE, "secret")}, tenant_id="one")
        await env.bus.publish(theirs)
        (stolen,) = await env.bus.stored_events("system-events", theirs.correlation_id)
        handle = await env.submit("large.goal", {"rows": ["small"]}, tenant_id="other")
        await until_it_waits(env.bus, handle)
        reference = load(stolen.payload, stolen.content_type)["data"]
        for tenant in ("other", "one"):  # as the tenant that it is, and as the one that it says it is
            forged = event(
                EventTopic.PLAN_EVENTS, type="go", data=reference, correlation_id=handle.plan_id, tenant_id=tenant
            )
            subject = env.bus.subjects.event(forged.topic, handle.plan_id, "go")
            payload = dump(forged.to_wire(), "msgpack")
            await env.bus.emit((Publish(subject, payload, forged.id, stolen.content_type or ""),))
        async with asyncio.timeout(60):
            while await env.bus.dead_letters.count() < 2:
                await asyncio.sleep(0.01)
        assert (await handle.state())["current_state"] == "wait"
        await handle.cancel()
        with pytest.raises(PlanCancelled):
            await handle.result(timeout=60)
