"""Trace context and CloudEvents through both adapters, and as clients see them that know nothing of us."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import nats
import pytest

from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.nats_binding import read_message
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus, Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.effects import Publish, Respond, SetTimer, from_fields, to_fields
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.topics import Source

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=a b"
CORE = {"ce-specversion": "1.0", "ce-id": "A234", "ce-source": "/shop", "ce-type": "thing.done"}
PATIENCE = 20.0

Plainly = Callable[[str, bytes, Mapping[str, str]], Awaitable[None]]


class Adapter:
    """A bus, and how a plain client publishes beside it."""

    def __init__(self, bus: Bus, publish_plainly: Plainly) -> None:
        self.bus = bus
        self.publish_plainly = publish_plainly

    def consume(self, source: Source = "results", topic: str = "action-results") -> Consumer:
        filters = (self.bus.subjects.stored(topic, "*", "*", ">"),)
        if source == "timers":
            filters = (f"{self.bus.subjects.store}.timers.due.>",)
        return self.bus.consume(ConsumerSpec(f"reader-{source}", source, filters))

    async def next(self, consumer: Consumer, count: int = 1) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < count:
            fetched = await asyncio.wait_for(consumer.fetch(count), PATIENCE)
            await consumer.ack(fetched)
            found += fetched
        return found


Make = Callable[..., Awaitable[Adapter]]


@pytest.fixture(params=["memory", "jetstream"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    closing: list[Any] = []

    async def build(**fields: object) -> Adapter:
        settings = BusSettings.model_validate({"prefix": f"h{uuid4().hex}", **fields})
        if request.param == "memory":
            world = MemoryWorld(settings)

            async def in_memory(subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
                message = read_message(headers, payload)
                world.publish(subject, message.payload, message.content_type, message.message_id, trace=message.trace)

            return Adapter(MemoryBus(world), in_memory)
        return await on_nats(request.getfixturevalue("nats_server"), settings, closing)

    yield build
    for each in closing:
        await each.close()


async def on_nats(server: NatsServer, settings: BusSettings, closing: list[Any]) -> Adapter:
    from plancast_bus.jetstream import connect

    bus, plain = await connect(NatsSettings(url=server.url), settings), await nats.connect(server.url)
    closing += [bus, plain]
    await bus.ensure_streams()

    async def publish(subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        await plain.publish(subject, payload, headers=dict(headers))
        await plain.flush()

    return Adapter(bus, publish)


def event(**fields: Any) -> EventEnvelope:
    said = {"source": "naïve till", "type": "thing.done", "topic": EventTopic.ACTION_RESULTS, "correlation_id": "p 1"}
    return EventEnvelope(**said | {"data": {"n": 1}, "tenant_id": "acme", "metadata": {"a b": ["ü", 1]}} | fields)


def read(delivery: Delivery) -> EventEnvelope:
    return decode(delivery.payload, delivery.content_type, defaults={"source": "unknown", "topic": "action-results"})


@pytest.mark.parametrize("cloudevents", [False, True])
@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
async def test_an_event_arrives_with_its_trace_whichever_way_it_is_sent(
    make: Make, cloudevents: bool, wire_format: str
) -> None:
    adapter = await make(cloudevents=cloudevents, wire_format=wire_format)
    bus, sent = adapter.bus, [event(id=f"e{number}") for number in range(3)]
    consumer = adapter.consume()
    await bus.publish(sent[0], trace=TRACE)
    payload, content_type = bus.encode(sent[1])
    subject = bus.subjects.event(sent[1].topic, sent[1].correlation_id, sent[1].type)
    await bus.emit([Publish(subject, payload, "e1", content_type, "", TRACE)])
    payload, content_type = bus.encode(sent[2])
    await asyncio.wait_for(bus.begin_emit([Publish(subject, payload, "e2", content_type, "", TRACE)]), PATIENCE)
    found = await adapter.next(consumer, 3)
    assert [read(each) for each in found] == sent
    assert [each.trace for each in found] == [TRACE] * 3
    assert [each.message_id for each in found] == ["e0", "e1", "e2"]


@pytest.mark.parametrize("cloudevents", [False, True])
async def test_a_response_and_a_timer_keep_their_trace(make: Make, cloudevents: bool) -> None:
    adapter = await make(cloudevents=cloudevents)
    bus, said = adapter.bus, event(id="r1")
    payload, content_type = bus.encode(said)
    results, timers = adapter.consume(), adapter.consume("timers")
    told: asyncio.Queue[tuple[bytes, str | None]] = asyncio.Queue()

    async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
        told.put_nowait((payload, content_type))

    subject = bus.subjects.event(said.topic, said.correlation_id, said.type)
    await bus.subscribe(subject, notice)
    await bus.emit(
        [
            Respond("action-results", said.correlation_id, said.type, payload, said.id, content_type, "", TRACE),
            SetTimer("p 1", "t", time.time() + 0.1, payload, content_type, TRACE),
        ]
    )
    (response,) = await adapter.next(results)
    (due,) = await adapter.next(timers)
    assert (response.trace, due.trace) == (TRACE, TRACE)
    assert response.is_response
    assert read(response) == read(due) == said
    assert decode(*await asyncio.wait_for(told.get(), PATIENCE)) == said


async def test_cloud_events_of_any_client_are_read_in_both_modes(make: Make) -> None:
    adapter = await make()
    subject = adapter.bus.subjects.event("action-results", "p", "thing.done")
    consumer = adapter.consume()
    parent, _, state = TRACE.partition(" ")
    binary = {**CORE, "ce-correlationid": "p", "content-type": "application/json"}
    await adapter.publish_plainly(subject, b'{"n": 1}', {**binary, "traceparent": parent, "tracestate": state})
    await adapter.publish_plainly(subject, b'{"n": 2}', {**binary, "ce-id": "A235", "ce-traceparent": parent})
    whole = {"specversion": "1.0", "id": "A236", "source": "/shop", "type": "thing.done", "correlationid": "p"}
    body = json.dumps({**whole, "data": {"n": 3}}).encode()
    await adapter.publish_plainly(subject, body, {"Content-Type": "application/cloudevents+json"})
    found = await adapter.next(consumer, 3)
    events = [read(each) for each in found]
    assert [(each.id, each.source, each.data) for each in events] == [
        ("A234", "/shop", {"n": 1}),
        ("A235", "/shop", {"n": 2}),
        ("A236", "/shop", {"n": 3}),
    ]
    assert [each.trace for each in found] == [TRACE, parent, ""]


async def test_hostile_headers_neither_stop_a_consumer_nor_grow_what_is_passed_on(make: Make) -> None:
    adapter = await make()
    subject = adapter.bus.subjects.event("action-results", "p", "thing.done")
    consumer = adapter.consume()
    long = "x" * 30_000
    await adapter.publish_plainly(subject, b"{}", {"traceparent": long, "tracestate": long})
    await adapter.publish_plainly(subject, b"{}", {**CORE, "ce-metadata": long})
    await adapter.publish_plainly(subject, b"{}", {"traceparent": TRACE.split()[0], "tracestate": long})
    found = await adapter.next(consumer, 3)
    assert [each.trace for each in found] == ["", "", TRACE.split()[0]]
    assert [each.payload for each in found] == [b"{}"] * 3


async def test_with_cloudevents_on_a_plain_subscriber_sees_a_cloud_event_and_its_data(
    nats_server: NatsServer,
) -> None:
    closing: list[Any] = []
    settings = BusSettings(prefix=f"h{uuid4().hex}", cloudevents=True, wire_format="json", group_commit="always")
    adapter = await on_nats(nats_server, settings, closing)
    plain = await nats.connect(nats_server.url)
    closing.append(plain)
    heard = await plain.subscribe(f"{settings.prefix}.>")
    await plain.flush()
    many = [event(id=f"e{number}") for number in range(40)]
    effects = []
    for each in many:
        payload, content_type = adapter.bus.encode(each)
        subject = adapter.bus.subjects.event(each.topic, each.correlation_id, each.type)
        effects.append(Publish(subject, payload, each.id, content_type, "", TRACE))
    await adapter.bus.emit(effects)  # in batches
    messages = {}
    while len(messages) < 40:
        message = await heard.next_msg(PATIENCE)
        assert message.headers is not None
        messages[message.headers["ce-id"]] = message
    message = messages["e7"]
    assert message.headers is not None
    assert json.loads(message.data) == {"n": 1}
    expected = {
        "Content-Type": "application/json",
        "Nats-Msg-Id": "e7",
        "ce-specversion": "1.0",
        "ce-source": "na%C3%AFve%20till",
        "ce-type": "thing.done",
        "ce-correlationid": "p%201",
        "ce-tenantid": "acme",
        "traceparent": TRACE.split()[0],
    }
    assert expected.items() <= message.headers.items()
    assert message.headers["ce-time"].endswith("+00:00")
    for each in closing:
        await each.close()


@pytest.mark.parametrize(
    ("effect", "length"),
    [
        (Publish("s", b"p", "m", "t"), 5),
        (Publish("s", b"p", "m", "t", "acme"), 6),
        (Publish("s", b"p", "m", "t", "", TRACE), 7),
        (Respond("action-results", "c", "t", b"p", "m", "t", "_INBOX.x"), 8),
        (Respond("action-results", "c", "t", b"p", "m", "t", "", TRACE), 9),
        (SetTimer("p", "t", 1.5, b"p", "t"), 6),
        (SetTimer("p", "t", 1.5, b"p", "t", TRACE), 7),
    ],
)
def test_a_trace_rests_in_the_checkpoint_and_where_there_is_none_earlier_versions_can_read_it(
    effect: Publish | Respond | SetTimer, length: int
) -> None:
    fields = to_fields(effect)
    assert from_fields(fields) == effect
    assert len(fields) == length
