"""Tenants of goals as seen by dispatchers, and admission to a stream of requests that fills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from plancast_bus.errors import PublishRefused
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus, ConsumerSpec
from plancast_bus.ports.effects import Effect, Publish, from_fields, to_fields
from plancast_bus.settings import BusSettings, NatsSettings

NUMBERS = count()
BOUND = 400_000


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[Bus]:
    settings = BusSettings(prefix=f"tenants{next(NUMBERS)}", max_stream_bytes=BOUND)
    made: Bus = MemoryBus(settings)
    if request.param == "jetstream":
        made = await connect(NatsSettings(url=nats_server.url), settings)
    await made.ensure_streams()
    yield made
    await made.close()


def goal(tenant: str | None, size: int = 1) -> EventEnvelope:
    return EventEnvelope(
        source="t",
        type="x.goal",
        topic=EventTopic.ACTION_REQUESTS,
        correlation_id=f"p{next(NUMBERS)}",
        tenant_id=tenant,
        data="x" * size,
    )


def sent(bus: Bus, event: EventEnvelope, tenant: str = "") -> Publish:
    payload, content_type = bus.encode(event)
    return Publish(
        bus.subjects.event(event.topic, event.correlation_id, event.type), payload, event.id, content_type, tenant
    )


async def test_the_tenant_of_a_goal_is_known_without_decoding_it(bus: Bus) -> None:
    for tenant in ("acme", None, "größer & co\r\nNats-Rollup: all", "x" * 1000):
        await bus.publish(goal(tenant))
    await bus.emit([sent(bus, goal("child"), "child"), sent(bus, goal(None))])
    spec = ConsumerSpec("c", "requests", (bus.subjects.stored("action-requests", "*", "*", "x.goal"),))
    consumer = bus.consume(spec)
    found: list[str] = []
    while len(found) < 6:
        deliveries = await consumer.fetch(10)
        found += [each.tenant for each in deliveries]
        await consumer.ack(deliveries)
    await consumer.close()
    assert found == ["acme", "", "gr%C3%B6%C3%9Fer%20%26%20co%0D%0ANats-Rollup:%20all", "", "child", ""]


async def test_requests_from_outside_leave_room_for_what_plans_send(bus: Bus) -> None:
    accepted, refused = 0, ""
    while not refused:
        try:
            await bus.publish(goal("a", 1000))
            accepted += 1
        except PublishRefused as error:
            refused = str(error)
    assert "is full" in refused
    assert "raise max_stream_bytes" in refused
    assert 0.5 * BOUND < accepted * 1000 < 0.75 * BOUND
    await bus.emit([sent(bus, goal("a", 1000)) for _ in range(60)])
    with pytest.raises(PublishRefused, match="is full"):
        await bus.emit([sent(bus, goal("a", 1000)) for _ in range(200)])


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_checkpoint_stores_the_tenant_of_a_goal_and_omits_an_empty_one(tenant: str) -> None:
    effect: Effect = Publish("s", b"p", "m", "c", tenant)
    assert from_fields(to_fields(effect)) == effect
    assert len(to_fields(effect)) == (6 if tenant else 5)
