"""The conformance suite for adapters of the bus, in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.bus.stored_plans import stored_plans

from plancast_bus.clock import Clock, SystemClock
from plancast_bus.errors import (
    BusError,
    BusUnavailable,
    CommitConflict,
    DeadLetterNotFound,
    InvalidEnvelope,
    PayloadTooLarge,
    PublishRefused,
    UnreadableValue,
)
from plancast_bus.event_data import delivered_in_full
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.folding import Folder
from plancast_bus.events.value_parts import Reference, digest_of, reference_to
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.bus import CUT_BYTES, Bus, Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, PlanFilter, PlanSummary, StoredMachine, sealed_part
from plancast_bus.ports.effects import (
    CancelTimer,
    DropAlias,
    NoteAlias,
    Publish,
    Respond,
    SealHistory,
    SetTimer,
    Share,
    Withdraw,
)
from plancast_bus.ports.progress import KEPT_NOTES, ProgressNote
from plancast_bus.ports.schedules import ScheduleKey, StoredSchedule
from plancast_bus.ports.sessions import SessionBounds, session_name
from plancast_bus.ports.trees import tree_name
from plancast_bus.ports.values import FRAME_BYTES
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.topics import TOPICS, Source

PATIENCE = 30.0
SHORT = 1.0  # seconds by the world's clock


class QuickClock:
    """Real time, four times as fast."""

    def __init__(self) -> None:
        self._start = time.time()
        self._zero = time.monotonic()

    def time(self) -> float:
        return self._start + 4 * (time.monotonic() - self._zero)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0) / 4)


class World:
    """A bus of one adapter, and further connections to what it stores."""

    def __init__(self, adapter: str, clock: Clock, connect: Callable[[], Awaitable[Bus]]) -> None:
        self.adapter = adapter
        self.clock = clock
        self._connect = connect
        self._open: list[Bus] = []

    async def connect(self) -> Bus:
        bus = await self._connect()
        self._open.append(bus)
        return bus

    async def close(self) -> None:
        for bus in self._open:
            await bus.close()


WorldFactory = Callable[..., Awaitable[World]]


@pytest.fixture(params=["memory", "jetstream"])
async def bus_factory(request: pytest.FixtureRequest) -> AsyncIterator[WorldFactory]:
    """Creates worlds, each with its own settings and a unique prefix."""
    worlds: list[World] = []

    async def make(**fields: object) -> World:
        chosen = BusSettings.model_validate({"prefix": f"t{uuid4().hex}", **fields})
        world = _memory(chosen) if request.param == "memory" else await _jetstream(request, chosen)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        await world.close()


def _memory(chosen: BusSettings) -> World:
    shared = MemoryWorld(chosen, clock=QuickClock())

    async def connect() -> Bus:
        return MemoryBus(shared)

    return World("memory", shared.clock, connect)


async def _jetstream(request: pytest.FixtureRequest, chosen: BusSettings) -> World:
    from plancast_bus.jetstream import connect as connect_jetstream

    server = request.getfixturevalue("nats_server")

    async def connect() -> Bus:
        return await connect_jetstream(NatsSettings(url=server.url, publish_timeout=60.0), chosen)

    world = World("jetstream", SystemClock(), connect)
    await (await world.connect()).ensure_streams()
    return world


@pytest.fixture
async def world(bus_factory: WorldFactory) -> World:
    return await bus_factory()


@pytest.fixture
async def bus(world: World) -> Bus:
    return await world.connect()


# Small words that the tests are written in.


def event(
    name: str, *, topic: str = "action-results", correlation_id: str = "plan-1", kind: str = "thing.done"
) -> EventEnvelope:
    return EventEnvelope(source="test", type=kind, topic=EventTopic(topic), id=name, correlation_id=correlation_id)


def spec(
    bus: Bus,
    source: Source = "results",
    *,
    name: str = "reader",
    ack_wait: float = 60.0,
    max_ack_pending: int = 1000,
    filters: tuple[str, ...] | None = None,
    reclaim: bool = False,
) -> ConsumerSpec:
    if filters is None:
        filters = (
            (bus.subjects.timers_due(),)
            if source == "timers"
            else tuple(bus.subjects.stored(topic) for topic in TOPICS[source])
        )
    return ConsumerSpec(name, source, filters, ack_wait, max_ack_pending, reclaim=reclaim)


async def fetch(consumer: Consumer, limit: int = 100) -> list[Delivery]:
    return await asyncio.wait_for(consumer.fetch(limit), PATIENCE)


async def take(consumer: Consumer, count: int, *, ack: bool = True) -> list[Delivery]:
    """Fetches exactly ``count`` messages, and acknowledges them by default."""
    taken: list[Delivery] = []
    while len(taken) < count:
        fetched = await fetch(consumer, count - len(taken))
        if ack:
            await consumer.ack(fetched)
        taken.extend(fetched)
    return taken


async def take_from_all(consumers: list[Consumer], count: int) -> list[list[Delivery]]:
    """The messages that each of several concurrent consumers received."""
    seen: list[list[Delivery]] = [[] for _ in consumers]
    done = asyncio.Event()

    async def read(index: int) -> None:
        while True:
            fetched = await consumers[index].fetch(7)
            await consumers[index].ack(fetched)
            seen[index].extend(fetched)
            if sum(map(len, seen)) >= count:
                done.set()

    readers = [asyncio.ensure_future(read(index)) for index in range(len(consumers))]
    try:
        await asyncio.wait_for(done.wait(), PATIENCE)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
    assert sum(map(len, seen)) == count
    return seen


async def nothing_comes(consumer: Consumer, seconds: float = 0.4) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.fetch(100), seconds)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


def ids(deliveries: list[Delivery]) -> list[str | None]:
    return [delivery.message_id for delivery in deliveries]


def checkpoint(
    correlation_id: str = "plan-1",
    *,
    revision: int = 1,
    version: int = 0,
    epoch: str = "epoch-1",
    state: bytes = b"state",
    status: str = "running",
    session: str = "",
    tenant: str = "",
    timeline: tuple[bytes, ...] = (),
) -> Checkpoint:
    summary = PlanSummary(correlation_id, status, "goal", "start", revision, session_id=session, tenant_id=tenant)
    return Checkpoint(correlation_id, revision, epoch, state, summary, timeline=timeline, version=version)


ANY_IDS = ["plain", "a.b", "*", ">", "a b", "%41", "naïve", "日本語", "🦊", "\x00\n", "/?#", ".", "~", "a:b_c-d", " "]


# Events.


async def test_what_is_published_is_fetched_in_order(bus: Bus) -> None:
    consumer = bus.consume(spec(bus))
    for number in range(20):
        await bus.publish(event(f"e{number}", correlation_id=f"c{number % 3}"))
    taken = await take(consumer, 20)
    assert ids(taken) == [f"e{number}" for number in range(20)]
    assert [each.sequence for each in taken] == sorted(each.sequence for each in taken)
    assert {each.attempt for each in taken} == {1}
    assert not any(each.is_response for each in taken)


@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
async def test_an_event_arrives_as_it_was_published(bus_factory: WorldFactory, wire_format: str) -> None:
    bus = await (await bus_factory(wire_format=wire_format)).connect()
    sent = EventEnvelope(source="test", type="a.b", topic=EventTopic.ACTION_RESULTS, data={"ü": [1, None, 2.5, "\x00"]})
    await bus.publish(sent)
    (taken,) = await take(bus.consume(spec(bus)), 1)
    assert taken.content_type == f"application/{wire_format}"
    assert codec.decode(taken.payload, taken.content_type) == sent
    assert taken.message_id == sent.id
    address = bus.subjects.parse_stored(taken.subject)
    assert (address.topic, address.correlation_id, address.event_type) == (
        "action-results",
        sent.correlation_id,
        "a.b",
    )
    assert bus.subjects.published_from_stored(taken.subject) == bus.subjects.event(
        "action-results", sent.correlation_id, "a.b"
    )


@pytest.mark.parametrize("source", ["results", "requests"])
async def test_each_topic_of_a_work_queue_is_stored_until_it_is_read(bus: Bus, source: Source) -> None:
    for topic in TOPICS[source]:
        await bus.publish(event(f"on-{topic}", topic=topic))
    consumer = bus.consume(spec(bus, source))
    assert ids(await take(consumer, len(TOPICS[source]))) == [f"on-{topic}" for topic in TOPICS[source]]


async def test_every_topic_takes_events(bus: Bus) -> None:
    for topic in EventTopic:
        await bus.publish(event(f"on-{topic}", topic=topic))


async def test_a_subject_that_no_stream_takes_is_refused_and_the_other_effects_are_carried_out(
    bus: Bus,
) -> None:
    with pytest.raises(PublishRefused):
        await bus.emit(
            [
                Publish(f"{bus.subjects.prefix}.no-topic.c.t", b"x", "m1", codec.JSON_TYPE),
                Publish(bus.subjects.event("action-results", "c", "t"), b"x", "m2", codec.JSON_TYPE),
            ]
        )
    await bus.emit([Publish(bus.subjects.event("action-results", "c", "t"), b"x", "m2", codec.JSON_TYPE)])
    assert ids(await take(bus.consume(spec(bus)), 1)) == ["m2"]


async def test_emit_returns_the_sequences_of_published_events(bus: Bus) -> None:
    def publish(name: str) -> Publish:
        return Publish(bus.subjects.event("action-requests", "c", "t"), b"{}", name, codec.JSON_TYPE)

    assert await bus.emit([]) == []
    one, nothing, two = await bus.emit([publish("m1"), CancelTimer("c", "none"), publish("m2")])
    assert nothing == 0
    assert 0 < one < two
    assert await bus.emit([publish("m2"), publish("m1")]) == [two, one]
    taken = await take(bus.consume(spec(bus, "requests")), 2)
    assert [(each.message_id, each.sequence) for each in taken] == [("m1", one), ("m2", two)]


async def test_consumers_of_one_name_share(world: World) -> None:
    buses = [await world.connect(), await world.connect()]
    expected = [f"e{number}" for number in range(200)]
    for name in expected:
        await buses[0].publish(event(name))
    seen = await take_from_all([each.consume(spec(each)) for each in buses], len(expected))
    assert sorted(str(name) for part in seen for name in ids(part)) == sorted(expected)


async def test_a_repeated_message_id_is_stored_once(bus: Bus) -> None:
    consumer = bus.consume(spec(bus))
    for name in ("a", "a", "b", "a"):
        await bus.publish(event(name))
    assert ids(await take(consumer, 2)) == ["a", "b"]
    await bus.publish(event("c"))
    assert ids(await take(consumer, 1)) == ["c"]


async def test_the_duplicate_window_ends(bus_factory: WorldFactory) -> None:
    world = await bus_factory(duplicate_window=SHORT)
    bus = await world.connect()
    consumer = bus.consume(spec(bus))
    await bus.publish(event("a"))
    assert ids(await take(consumer, 1)) == ["a"]

    async def stored_again() -> bool:
        await world.clock.sleep(SHORT)
        await bus.publish(event("a"))
        await bus.publish(event(f"marker-{uuid4().hex}"))
        return "a" in ids(await take(consumer, 1))

    await eventually(stored_again)


async def test_what_is_not_acknowledged_is_delivered_again(bus: Bus) -> None:
    consumer = bus.consume(spec(bus, ack_wait=SHORT))
    await bus.publish(event("a"))
    (first,) = await take(consumer, 1, ack=False)
    (second,) = await take(consumer, 1, ack=False)
    assert (first.message_id, second.message_id) == ("a", "a")
    assert (first.attempt, first.sequence) == (1, second.sequence)
    assert second.attempt > 1


async def test_what_is_acknowledged_is_gone(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, ack_wait=SHORT))
    await bus.publish(event("a"))
    await take(consumer, 1)
    await world.clock.sleep(2 * SHORT)
    await bus.publish(event("b"))
    assert ids(await take(consumer, 1)) == ["b"]
    await world.clock.sleep(2 * SHORT)
    await consumer.close()
    await bus.delete_consumer("results", "reader")
    await bus.publish(event("c"))
    assert ids(await take(bus.consume(spec(bus, name="other")), 1)) == ["c"]


async def test_a_nak_delivers_again_at_once_or_after_its_delay(bus: Bus) -> None:
    consumer = bus.consume(spec(bus))
    await bus.publish(event("a"))
    (first,) = await take(consumer, 1, ack=False)
    await consumer.nak(first)
    (second,) = await take(consumer, 1, ack=False)
    assert (second.message_id, second.attempt) == ("a", 2)
    await consumer.nak(second, delay=SHORT)
    await bus.publish(event("b"))
    taken = await take(consumer, 2)
    assert [(each.message_id, each.attempt) for each in taken] == [("b", 1), ("a", 3)]


@pytest.mark.parametrize("source", ["results", "facts"])
async def test_what_a_lost_reader_has_not_acknowledged_comes_at_once_to_the_next(world: World, source: Source) -> None:
    topic = "action-results" if source == "results" else "business-facts"
    lost, bus = await world.connect(), await world.connect()
    reading = spec(bus, source, ack_wait=3600.0, reclaim=True)
    first = lost.consume(reading)
    waiting = asyncio.ensure_future(first.fetch(5))
    await asyncio.sleep(0.2)  # the consumer of facts begins with what comes
    for name in "abcde":
        await lost.publish(event(name, topic=topic))
    held = [*await asyncio.wait_for(waiting, PATIENCE)]
    held += await take(first, 5 - len(held), ack=False) if len(held) < 5 else []
    assert ids(held) == ["a", "b", "c", "d", "e"]
    await first.ack([held[1], held[3]])
    await first.nak(held[2], delay=3600.0)
    await first.in_progress([held[0]])
    await lost.stored_events("plan-events", "x")  # what was acknowledged has arrived
    await lost.close()  # the connection alone: what it has in hand, it does not give back
    second = bus.consume(reading)
    again = sorted(await take(second, 3, ack=False), key=lambda delivery: delivery.sequence)  # they come in any order
    assert ids(again) == ["a", "c", "e"], "and nothing that was acknowledged"
    assert {each.attempt for each in again} == {2}
    await second.ack([held[0], *again[1:]])  # the first as one that is not lost after all says it: late
    await bus.stored_events("plan-events", "x")
    await bus.close()
    bus = await world.connect()
    third = bus.consume(reading)
    await bus.publish(event("f", topic=topic))
    assert ids(await take(third, 1)) == ["f"]


async def test_what_another_reader_has_in_hand_stays_there_unless_it_is_reclaimed(world: World) -> None:
    bus = await world.connect()
    await bus.publish(event("a"))
    await take(bus.consume(spec(bus, ack_wait=3600.0)), 1, ack=False)
    await bus.close()
    bus = await world.connect()
    await bus.publish(event("b"))
    assert ids(await take(bus.consume(spec(bus, ack_wait=3600.0)), 1)) == ["b"]


async def test_a_reader_reclaims_what_another_one_reads_beside_it(world: World) -> None:
    one, other = await world.connect(), await world.connect()
    reading = replace(spec(one, ack_wait=3600.0), reclaim=True)
    await one.publish(event("a"))
    await take(first := one.consume(reading), 1, ack=False)
    await first.close()  # which keeps what it has
    await other.publish(event("b"))
    consumer = other.consume(reading)
    held = await take(consumer, 2, ack=False)
    consumer.reclaim()
    again = await take(consumer, 2)
    assert sorted(ids(again), key=str) == sorted(ids(held), key=str) == ["a", "b"]
    assert [each.attempt for each in sorted(again, key=lambda each: each.sequence)] == [3, 2]


@pytest.mark.parametrize("at_once", [1_000_000, 100], ids=["all refused", "looked up"])
async def test_a_reader_that_reclaims_comes_to_what_lies_far_apart(
    world: World, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand messages of others between two that are held: no limit of a call or of a write is in the way."""
    monkeypatch.setattr("plancast_bus.jetstream.messaging.consumer.RECLAIM_RANGE", at_once)
    bus = await world.connect()
    reading = spec(bus, ack_wait=3600.0, max_ack_pending=20_000, filters=(bus.subjects.stored("action-results"),))
    reading = replace(reading, reclaim=True)
    await bus.publish(event("first"))
    between = [
        Publish(bus.subjects.event("plan-events", "other", "x.y"), b"", f"x{number}", codec.JSON_TYPE)
        for number in range(10_000)
    ]
    await bus.emit(between)
    await bus.publish(event("last"))
    assert ids(await take(bus.consume(reading), 2, ack=False)) == ["first", "last"]
    await bus.close()
    assert ids(await take((await world.connect()).consume(reading), 2)) == ["first", "last"]


async def test_in_progress_keeps_a_message_from_being_delivered_again(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, ack_wait=2 * SHORT))
    await bus.publish(event("a"))
    held = await take(consumer, 1, ack=False)
    for _ in range(12):
        await world.clock.sleep(SHORT / 4)
        await consumer.in_progress(held)
    await bus.publish(event("b"))
    (taken,) = await take(consumer, 1)
    assert (taken.message_id, taken.attempt) == ("b", 1)
    await consumer.ack(held)
    await bus.publish(event("c"))
    assert ids(await take(consumer, 1)) == ["c"]


async def test_no_more_than_max_ack_pending_are_out(bus: Bus) -> None:
    for number in range(10):
        await bus.publish(event(f"e{number}"))
    consumer = bus.consume(spec(bus, max_ack_pending=3))
    seen: list[str | None] = []
    for expected in (3, 3, 3, 1):
        held = await take(consumer, expected, ack=False)
        seen.extend(ids(held))
        await nothing_comes(consumer)
        await consumer.ack(held)
    assert seen == [f"e{number}" for number in range(10)]


async def test_consumers_by_shard_see_every_correlation_id_once(bus_factory: WorldFactory) -> None:
    bus = await (await bus_factory(shards=8)).connect()
    correlation_ids = [*ANY_IDS, *(f"plan-{number}" for number in range(100))]
    for correlation_id in correlation_ids:
        await bus.publish(event(correlation_id, correlation_id=correlation_id))
        await bus.publish(event(f"{correlation_id} again", correlation_id=correlation_id))
    groups = [(0, 1, 2), (3, 4, 5), (6, 7)]
    consumers = [
        bus.consume(
            spec(
                bus,
                name=f"reader-{index}",
                filters=tuple(bus.subjects.stored("action-results", shard) for shard in group),
            )
        )
        for index, group in enumerate(groups)
    ]
    seen = await take_from_all(consumers, 2 * len(correlation_ids))
    where: dict[str, set[int]] = {}
    for index, deliveries in enumerate(seen):
        assert deliveries, "a group of shards got nothing at all"
        for each in deliveries:
            address = bus.subjects.parse_stored(each.subject)
            assert int(each.subject.split(".")[2]) in groups[index]
            where.setdefault(address.correlation_id, set()).add(index)
    assert set(where) == set(correlation_ids)
    assert {len(places) for places in where.values()} == {1}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(correlation_id=st.text(min_size=1, max_size=30))
@example(correlation_id="*.>")
async def test_a_correlation_id_may_be_any_text(bus: Bus, correlation_id: str) -> None:
    name = uuid4().hex
    await bus.publish(event(name, correlation_id=correlation_id))
    consumer = bus.consume(spec(bus))
    (taken,) = await take(consumer, 1)
    await consumer.close()
    assert taken.message_id == name
    assert bus.subjects.parse_stored(taken.subject).correlation_id == correlation_id
    assert codec.decode(taken.payload, taken.content_type).correlation_id == correlation_id


async def test_requests_wait_for_a_consumer(bus: Bus) -> None:
    for kind in ("a.wanted", "b.wanted"):
        await bus.publish(event(kind, topic="action-requests", kind=kind))

    def only(kind: str) -> tuple[str, ...]:
        return (bus.subjects.stored("action-requests", event_type=kind),)

    one = bus.consume(spec(bus, "requests", name="a", filters=only("a.wanted")))
    assert ids(await take(one, 1)) == ["a.wanted"]
    await nothing_comes(one)
    two = bus.consume(spec(bus, "requests", name="b", filters=only("b.wanted")))
    assert ids(await take(two, 1)) == ["b.wanted"]


async def test_consumers_of_different_names_may_not_want_the_same_messages(bus: Bus) -> None:
    await bus.publish(event("a"))
    await take(bus.consume(spec(bus)), 1)
    with pytest.raises(BusError):
        await fetch(bus.consume(spec(bus, name="other")))


async def test_facts_are_delivered_to_each_consumer_from_its_creation_on(bus: Bus) -> None:
    await bus.publish(event("before", topic="business-facts"))
    readers = [bus.consume(spec(bus, "facts", name=name)) for name in ("one", "two")]
    # A consumer is created with its first fetch at the latest; when that has happened cannot be seen
    # from outside, so facts are published until both have got one.
    first = [asyncio.ensure_future(reader.fetch(1)) for reader in readers]
    count = 0
    async with asyncio.timeout(PATIENCE):
        while not all(task.done() for task in first):
            await bus.publish(event(f"fact-{count}", topic="business-facts"))
            count += 1
            await asyncio.sleep(0.05)
    await bus.publish(event("last", topic="business-facts"))
    for reader, task in zip(readers, first, strict=True):
        seen = await task
        await reader.ack(seen)
        while seen[-1].message_id != "last":
            fetched = await fetch(reader)
            await reader.ack(fetched)
            seen.extend(fetched)
        names = ids(seen)
        assert "before" not in names
        first_number = int(str(names[0]).removeprefix("fact-"))
        assert names == [*(f"fact-{number}" for number in range(first_number, count)), "last"]


async def test_a_consumer_that_was_made_anew_gets_what_was_not_acknowledged(bus: Bus) -> None:
    consumer = bus.consume(spec(bus))
    await bus.publish(event("a"))
    await take(consumer, 1, ack=False)
    await consumer.close()
    await bus.delete_consumer("results", "reader")
    await bus.delete_consumer("results", "never-there")
    (taken,) = await take(bus.consume(spec(bus)), 1)
    assert (taken.message_id, taken.attempt) == ("a", 1)


async def test_what_a_closed_consumer_held_is_delivered_to_others(world: World, bus: Bus) -> None:
    other = await world.connect()
    for number in range(5):
        await bus.publish(event(f"e{number}"))
    consumer = bus.consume(spec(bus, ack_wait=SHORT))
    await take(consumer, 2, ack=False)
    await consumer.close()
    heir = other.consume(spec(other, ack_wait=SHORT))
    seen: set[str | None] = set()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < 5:
            fetched = await heir.fetch(10)
            await heir.ack(fetched)
            seen |= set(ids(fetched))
    assert seen == {f"e{number}" for number in range(5)}


async def test_no_message_rests_with_a_consumer_that_is_closed_while_messages_arrive(bus: Bus) -> None:
    count, seen = 2_000, set[str | None]()

    async def publish() -> None:
        for start in range(0, count, 10):
            await asyncio.gather(*(bus.publish(event(f"e{number}")) for number in range(start, start + 10)))

    publishing = asyncio.create_task(publish())
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:
            consumer = bus.consume(spec(bus, ack_wait=1000.0))
            fetched = await consumer.fetch(100)
            await consumer.close()  # with a pull under way
            await consumer.ack(fetched)
            seen.update(ids(fetched))
    await publishing


async def test_a_full_stream_refuses_the_publisher_until_there_is_room(bus_factory: WorldFactory) -> None:
    bus = await (await bus_factory(max_stream_bytes=20_000)).connect()

    def large(name: str) -> Publish:
        subject = bus.subjects.event("action-results", "c", "large")
        return Publish(subject, b"x" * 4000, name, codec.JSON_TYPE)

    async def accepted(name: str = "once more") -> bool:
        try:
            await bus.emit([large(name)])
        except PublishRefused:
            return False
        return True

    stored = 0
    while stored < 10 and await accepted(f"m{stored}"):
        stored += 1
    assert 0 < stored < 6
    assert ids(await take(bus.consume(spec(bus)), stored)) == [f"m{number}" for number in range(stored)]
    await eventually(accepted)


@pytest.mark.parametrize("size", [0, 1, 70_000, 1_000_000, 4_000_000])
async def test_payloads_of_any_size_under_the_limit_pass_unchanged(bus: Bus, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + b"." * (size % 256)
    await bus.emit([Publish(bus.subjects.event("action-results", "c", "t"), payload, "m", codec.MSGPACK_TYPE)])
    (taken,) = await take(bus.consume(spec(bus)), 1)
    assert taken.payload == payload


async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(bus: Bus) -> None:
    with pytest.raises(PayloadTooLarge):
        await bus.emit([Publish(bus.subjects.event("action-results", "c", "t"), bytes(9 << 20), "m", codec.JSON_TYPE)])
    with pytest.raises(PayloadTooLarge):
        await bus.checkpoints.commit(checkpoint(state=bytes(9 << 20)))
    assert await bus.checkpoints.load("plan-1") is None
    await bus.publish(event("a"))
    assert ids(await take(bus.consume(spec(bus)), 1)) == ["a"]


@pytest.mark.parametrize("wire_format", ["msgpack", "json"])
@pytest.mark.parametrize("cloudevents", [False, True])
async def test_the_data_of_an_event_over_the_configured_limit_is_stored_apart(
    bus_factory: WorldFactory, wire_format: str, cloudevents: bool
) -> None:
    world = await bus_factory(max_event_bytes=2000, wire_format=wire_format, cloudevents=cloudevents)
    bus = await world.connect()
    data = {"text": "x" * 3_000_000, "rows": [{"n": n} for n in range(100_000)]}
    large = event("a").model_copy(update={"data": data, "tenant_id": "one"})
    await bus.publish(large)
    (taken,) = await take(bus.consume(spec(bus)), 1)
    assert len(taken.payload) < 2000
    with pytest.raises(InvalidEnvelope, match="its data is a reference"):
        codec.decode(taken.payload, taken.content_type)
    whole = await delivered_in_full(bus, taken)
    assert codec.decode(whole.payload, whole.content_type) == large
    with pytest.raises(InvalidEnvelope, match=r"the value [0-9a-f]{64} is missing"):
        await delivered_in_full(bus, taken, tenant="other")


async def test_an_event_that_is_too_large_without_its_data_is_refused(bus_factory: WorldFactory) -> None:
    bus = await (await bus_factory(max_event_bytes=2000)).connect()
    with pytest.raises(PayloadTooLarge, match=r"over bus.max_event_bytes \(2,000 bytes\)"):
        await bus.publish(event("a").model_copy(update={"metadata": {"text": "x" * 3000}}))


async def test_the_same_consumer_can_read_other_filters_later(bus: Bus) -> None:
    """The way of shards that are dealt out anew: first some, then all of them."""
    for number in range(20):
        await bus.publish(event(f"e{number}", correlation_id=f"c{number}"))
    all_shards = spec(bus).filters
    some = bus.consume(spec(bus, filters=(bus.subjects.stored("action-results", 0),)))
    await nothing_or_acked(some)
    await some.close()
    await bus.delete_consumer("results", "reader")
    left = bus.consume(spec(bus, filters=all_shards))
    await bus.publish(event("last"))
    seen: list[str | None] = []
    while "last" not in seen:
        fetched = await fetch(left)
        await left.ack(fetched)
        seen.extend(ids(fetched))
    assert len(seen) == len(set(seen))


async def nothing_or_acked(consumer: Consumer) -> None:
    try:
        while True:
            fetched = await asyncio.wait_for(consumer.fetch(100), 0.4)
            await consumer.ack(fetched)
    except TimeoutError:
        return


# Timers.


def timer(world: World, name: str, after: float, payload: bytes = b"{}", plan: str = "plan-1") -> SetTimer:
    return SetTimer(plan, name, world.clock.time() + after, payload, codec.JSON_TYPE)


async def test_a_timer_fires_at_its_time(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, "timers"))
    due = world.clock.time() + SHORT
    await bus.emit([SetTimer("plan a.b*", "deadline", due, b"payload", codec.JSON_TYPE)])
    (taken,) = await take(consumer, 1)
    assert world.clock.time() >= due - 0.05
    assert (taken.payload, taken.content_type) == (b"payload", codec.JSON_TYPE)
    assert bus.subjects.parse_stored(taken.subject).correlation_id == "plan a.b*"
    assert not taken.is_response


async def test_timers_fire_in_the_order_of_their_times(world: World, bus: Bus) -> None:
    await bus.emit([timer(world, "c", 2.4, b"c"), timer(world, "a", 0.8, b"a"), timer(world, "b", 1.6, b"b")])
    taken = await take(bus.consume(spec(bus, "timers")), 3)
    assert [each.payload for each in taken] == [b"a", b"b", b"c"]


async def test_setting_a_timer_again_replaces_it(world: World, bus: Bus) -> None:
    await bus.emit([timer(world, "t", 1.0, b"old"), timer(world, "t", 2.0, b"new")])
    await bus.emit([timer(world, "t", 2.0, b"new", plan="other plan"), timer(world, "end", 4.0, b"end")])
    taken = await take(bus.consume(spec(bus, "timers")), 3)
    assert [each.payload for each in taken] == [b"new", b"new", b"end"]


async def test_a_cancelled_timer_does_not_fire(world: World, bus: Bus) -> None:
    await bus.emit([timer(world, "t", 1.5, b"cancelled"), timer(world, "kept", 1.5, b"kept")])
    await bus.emit([CancelTimer("plan-1", "t"), CancelTimer("plan-1", "never-set")])
    await bus.emit([CancelTimer("plan-1", "t"), timer(world, "end", 3.0, b"end")])
    taken = await take(bus.consume(spec(bus, "timers")), 2)
    assert [each.payload for each in taken] == [b"kept", b"end"]


async def test_cancelling_and_setting_in_one_go_keeps_the_order(world: World, bus: Bus) -> None:
    await bus.emit([timer(world, "t", 1.0, b"one")])
    await bus.emit([CancelTimer("plan-1", "t"), timer(world, "t", 1.0, b"two")])
    await bus.emit([timer(world, "u", 1.0, b"three"), CancelTimer("plan-1", "u"), timer(world, "end", 3.0)])
    taken = await take(bus.consume(spec(bus, "timers")), 2)
    assert [each.payload for each in taken] == [b"two", b"{}"]


async def test_an_overdue_timer_fires_at_once(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, "timers"))
    await bus.emit([timer(world, "t", -3600.0, b"late")])
    (taken,) = await take(consumer, 1)
    assert taken.payload == b"late"


async def test_a_timer_wakes_a_waiting_fetch(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, "timers"))
    await bus.emit([timer(world, "far", 3600.0)])
    waiting = asyncio.ensure_future(fetch(consumer))
    await asyncio.sleep(0.1)
    await bus.emit([timer(world, "near", 0.5, b"near")])
    (taken,) = await waiting
    assert taken.payload == b"near"


async def test_a_timer_that_fired_is_delivered_again_until_acknowledged(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, "timers", ack_wait=SHORT))
    await bus.emit([timer(world, "t", 0.0, b"due")])
    await take(consumer, 1, ack=False)
    (again,) = await take(consumer, 1)
    assert again.payload == b"due"
    assert again.attempt > 1


# Withdrawn requests, aliases.


async def test_a_withdrawn_request_is_not_delivered(bus: Bus) -> None:
    subject = bus.subjects.event("action-requests", "c", "t")
    sequence, _ = await bus.emit([Publish(subject, b"", name, codec.JSON_TYPE) for name in ("withdrawn", "kept")])
    await bus.emit([Withdraw(sequence)])
    await bus.emit([Withdraw(sequence), Withdraw(sequence + 1000)])
    assert ids(await take(bus.consume(spec(bus, "requests")), 1)) == ["kept"]


async def test_workers_of_its_task_type_are_notified_of_a_withdrawn_request(world: World, bus: Bus) -> None:
    subject, other = bus.subjects.event("action-requests", "c", "web.search"), await world.connect()
    heard, of_another_type = Heard(), Heard()
    await other.subscribe(bus.subjects.withdrawals("web.search"), heard)
    await other.subscribe(bus.subjects.withdrawals("web"), of_another_type)
    await other.health()
    waiting, in_flight = await bus.emit([Publish(subject, b"", name, codec.JSON_TYPE) for name in "ab"])
    await bus.emit([Withdraw(waiting)])  # of a version without the type
    await bus.emit([Withdraw(in_flight, "web.search")])
    await bus.emit([Withdraw(in_flight, "web.search"), Withdraw(waiting, "web")])  # gone already
    await heard.wait_for(b"%d" % in_flight)
    await of_another_type.wait_for(b"%d" % waiting)
    assert {payload for _, payload, _ in heard.notices} == {b"%d" % in_flight}
    assert len(of_another_type.notices) == 1


async def test_a_copy_takes_the_place_of_a_withdrawn_request_that_is_to_be_settled(bus: Bus) -> None:
    subject = bus.subjects.event("action-requests", "c", "card.charge")
    reading = spec(
        bus, "requests", name="task-card-charge", filters=(bus.subjects.stored("*", "*", "*", "card.charge"),)
    )
    consumer = bus.consume(reading)
    effect = Publish(subject, b"whole", "1", codec.JSON_TYPE)
    sequence, kept = await bus.emit([effect, replace(effect, message_id="2")])
    [first, _] = await take(consumer, 2, ack=False)
    assert not bus.subjects.is_withdrawn(first.subject)
    withdrawal = Withdraw(sequence, "card.charge", settles=True)
    await bus.emit([withdrawal])
    await bus.emit([withdrawal, withdrawal])  # an outbox is emitted again
    [copy] = await take(consumer, 1)
    assert bus.subjects.is_withdrawn(copy.subject)
    assert bus.subjects.parse_stored(copy.subject)[1:] == ("c", "card.charge")
    assert (copy.payload, copy.content_type) == (b"whole", codec.JSON_TYPE)
    assert [each.sequence for each in await bus.stored_events("action-requests", "c")] == [kept]


async def test_a_request_that_nobody_has_ever_read_is_withdrawn_without_a_copy(bus: Bus) -> None:
    subject = bus.subjects.event("action-requests", "c", "card.charge")
    sequence, _ = await bus.emit([Publish(subject, b"", name, codec.JSON_TYPE) for name in ("withdrawn", "kept")])
    await bus.emit([Withdraw(sequence, "card.charge", settles=True)])
    reading = spec(
        bus, "requests", name="task-card-charge", filters=(bus.subjects.stored("*", "*", "*", "card.charge"),)
    )
    assert ids(await take(bus.consume(reading), 1)) == ["kept"]


async def test_what_a_stream_still_holds_can_be_looked_up(bus: Bus) -> None:
    async def held(topic: str, correlation_id: str) -> list[str | None]:
        return [each.message_id for each in await bus.stored_events(topic, correlation_id)]

    def event(topic: str, name: str, correlation_id: str = "a b.*") -> Publish:
        return Publish(bus.subjects.event(topic, correlation_id, "x.y"), b"{}", name, codec.JSON_TYPE)

    assert await held("action-requests", "a b.*") == []
    sequences = await bus.emit(
        [event("action-requests", "1"), event("action-requests", "2"), event("action-requests", "other", "c")]
    )
    await bus.emit([event("action-results", "answer"), event("business-facts", "fact")])
    assert await held("action-requests", "a b.*") == ["1", "2"]
    first, second = await bus.stored_events("action-requests", "a b.*")
    assert (first.sequence, second.sequence) == tuple(sequences[:2])
    assert await bus.stored_events("action-requests", "a b.*", limit=1) == [first]
    assert await bus.stored_events("action-requests", "a b.*", after=first.sequence) == [second]
    assert bus.subjects.parse_stored(first.subject) == ("action-requests", "a b.*", "x.y")
    assert (first.attempt, first.reply, first.is_response, first.stream) == (0, "", False, second.stream)
    assert (first.payload, first.content_type) == (b"{}", codec.JSON_TYPE)
    assert await held("action-results", "a b.*") == ["answer"]
    assert await held("plan-events", "a b.*") == []
    assert await held("business-facts", "a b.*") == ["fact"]
    consumer = bus.consume(spec(bus, "requests"))
    await consumer.ack((await take(consumer, 3, ack=False))[:1])
    async with asyncio.timeout(PATIENCE):
        while await held("action-requests", "a b.*") != ["2"]:
            await asyncio.sleep(0.01)


async def test_aliases_lead_to_their_plans(bus: Bus) -> None:
    store = bus.checkpoints
    assert await store.get_alias("other") is None
    assert await bus.emit([NoteAlias("other", "plan ü"), NoteAlias("other", "plan ü")]) == [0, 0]
    assert await bus.emit([NoteAlias("a.b *", "plan-2"), NoteAlias("a.b *", "plan-2")]) == [0, 0]
    assert await store.get_alias("other") == "plan ü"
    assert await store.get_alias("a.b *") == "plan-2"
    assert await store.get_alias("plan ü") is None


# Responses and notices.


class Heard:
    """Records notices."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, bytes, str | None]] = []

    async def __call__(self, subject: str, payload: bytes, content_type: str | None) -> None:
        self.notices.append((subject, payload, content_type))

    async def has(self, payload: bytes) -> bool:
        return any(heard == payload for _, heard, _ in self.notices)

    async def wait_for(self, payload: bytes) -> None:
        await eventually(lambda: self.has(payload))


def response(payload: bytes = b"answer", message_id: str = "r1", notify: str = "") -> Respond:
    return Respond("action-results", "plan-1", "goal.completed", payload, message_id, codec.JSON_TYPE, notify)


async def test_a_response_is_republished_once_and_marked_as_a_response(world: World, bus: Bus) -> None:
    other = await world.connect()
    heard, told = Heard(), Heard()
    inbox = other.new_inbox()
    await other.subscribe(bus.subjects.event("action-results", "plan-1", "goal.completed"), heard)
    await other.subscribe(f"{bus.subjects.prefix}.action-results.plan-1.marker", heard)
    await other.subscribe(inbox, told)
    await other.health()  # the server knows the subscriptions by the time it answers

    await bus.emit([response(notify=inbox)])
    await bus.emit([response(notify=inbox)])
    await bus.emit([response(b"another answer", "r2")])
    await told.wait_for(b"answer")
    await bus.emit([Publish(bus.subjects.event("action-results", "plan-1", "marker"), b"marker", "m", codec.JSON_TYPE)])
    await heard.wait_for(b"marker")

    responses = [each for each in heard.notices if each[1] != b"marker"]
    expected = bus.subjects.event("action-results", "plan-1", "goal.completed")
    assert responses == [(expected, b"answer", codec.JSON_TYPE)]
    taken = await take(bus.consume(spec(bus)), 2)
    assert [(each.payload, each.is_response) for each in taken] == [(b"answer", True), (b"marker", False)]
    assert bus.subjects.published_from_stored(taken[0].subject) == expected
    assert taken[0].content_type == codec.JSON_TYPE


async def test_a_response_on_another_topic_travels_there(bus: Bus) -> None:
    heard = Heard()
    await bus.subscribe(f"{bus.subjects.prefix}.business-facts.>", heard)
    await bus.health()
    await bus.emit([replace(response(), topic="business-facts")])
    await heard.wait_for(b"answer")
    assert [subject for subject, _, _ in heard.notices] == [
        bus.subjects.event("business-facts", "plan-1", "goal.completed")
    ]


async def test_no_notification_is_sent_to_a_subject_that_is_no_inbox(bus: Bus) -> None:
    heard = Heard()
    inbox = bus.new_inbox()
    await bus.subscribe("somebody.elses.subject", heard)
    await bus.subscribe(inbox, heard)
    await bus.health()
    await bus.emit([response(notify="somebody.elses.subject")])
    await bus.emit([replace(response(b"second", "r2", inbox), correlation_id="plan-2")])
    await heard.wait_for(b"second")
    assert [subject for subject, _, _ in heard.notices] == [inbox]


async def test_notices_come_for_events_as_published(world: World, bus: Bus) -> None:
    other = await world.connect()
    everything, one_type, two_tokens = Heard(), Heard(), Heard()
    prefix = bus.subjects.prefix
    await other.subscribe(f"{prefix}.>", everything)
    await other.subscribe(f"{prefix}.*.*.thing.done", one_type)
    await other.subscribe(f"{prefix}.*", two_tokens)
    await other.health()
    sent = [
        event("a"),
        event("b", topic="business-facts", correlation_id="x.y"),
        event("c", kind="thing.else"),
        event("d", topic="system-events"),
    ]
    for each in sent:
        await bus.publish(each)
    last_payload, content_type = bus.encode(sent[-1])
    await everything.wait_for(last_payload)
    await one_type.wait_for(last_payload)
    subjects = [bus.subjects.event(each.topic, each.correlation_id, each.type) for each in sent]
    assert [subject for subject, _, _ in everything.notices] == subjects
    assert [subject for subject, _, _ in one_type.notices] == [subjects[0], subjects[1], subjects[3]]
    assert {heard for _, _, heard in everything.notices} == {content_type}
    assert not two_tokens.notices


async def test_a_closed_subscription_hears_nothing_and_a_failing_one_goes_on(bus: Bus) -> None:
    failed, heard, closed = 0, Heard(), Heard()

    async def fail(subject: str, payload: bytes, content_type: str | None) -> None:
        nonlocal failed
        failed += 1
        raise RuntimeError("a receiver that fails")

    pattern = f"{bus.subjects.prefix}.>"
    await bus.subscribe(pattern, fail)
    await bus.subscribe(pattern, heard)
    subscription = await bus.subscribe(pattern, closed)
    await subscription.close()
    await bus.health()
    for name in ("a", "b"):
        await bus.publish(event(name))

    async def both() -> bool:
        return failed == 2 and len(heard.notices) == 2

    await eventually(both)
    assert not closed.notices


# Checkpoints.


async def test_a_checkpoint_is_loaded_as_it_was_committed(world: World, bus: Bus) -> None:
    committed = replace(
        checkpoint("plan ü.*", state=bytes(range(256)), timeline=(b"one", b"two"), session="s"),
        outbox=(
            Publish("a.b", b"\x00", "m", codec.JSON_TYPE),
            response(),
            SetTimer("p", "t", 12.5, b"x", codec.JSON_TYPE),
            CancelTimer("p", "t"),
            Withdraw(7),
            Withdraw(8, "web.search"),
            SealHistory("p", 1, codec.pack([])),
            NoteAlias("a", "p"),
            DropAlias("a", "p", 12.5),
            Share("s", codec.pack({"a": 1})),
        ),
        processed=b"12345678",
        sealed=3,
    )
    assert await bus.checkpoints.load("plan ü.*") is None
    version = await bus.checkpoints.commit(committed)
    loaded = await (await world.connect()).checkpoints.load("plan ü.*")
    assert loaded == committed
    assert loaded is not None
    assert loaded.version == version > 0


async def test_commits_follow_each_other(bus: Bus) -> None:
    version = 0
    for revision in range(1, 6):
        newer = await bus.checkpoints.commit(checkpoint(revision=revision, version=version))
        assert newer > version
        version = newer
    loaded = await bus.checkpoints.load("plan-1")
    assert loaded is not None
    assert (loaded.revision, loaded.version) == (5, version)


@pytest.mark.parametrize("stale", ["none", "older", "newer"])
async def test_a_commit_over_another_version_is_a_conflict_and_changes_nothing(bus: Bus, stale: str) -> None:
    first = await bus.checkpoints.commit(checkpoint())
    second = await bus.checkpoints.commit(checkpoint(revision=2, version=first, state=b"stored"))
    version = {"none": 0, "older": first, "newer": second + 1000}[stale]
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(
            checkpoint(revision=2, version=version, epoch="epoch-2", state=b"other", status="failed")
        )
    loaded = await bus.checkpoints.load("plan-1")
    assert loaded is not None
    assert (loaded.version, loaded.state, loaded.summary.status) == (second, b"stored", "running")


async def test_a_plan_that_is_not_stored_cannot_be_updated(bus: Bus) -> None:
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(checkpoint(version=5))
    assert await bus.checkpoints.load("plan-1") is None


async def test_repeating_a_commit_whose_acknowledgement_was_lost_finds_it_stored(bus: Bus) -> None:
    created = await bus.checkpoints.commit(checkpoint())
    assert await bus.checkpoints.commit(checkpoint()) == created
    again = checkpoint(revision=2, version=created)
    updated = await bus.checkpoints.commit(again)
    assert await bus.checkpoints.commit(again) == updated


async def test_another_turn_of_the_same_activation_is_not_taken_for_the_stored_one(bus: Bus) -> None:
    """An activation that goes on after a commit of unknown outcome, with another turn, must hear of it."""
    await bus.checkpoints.commit(checkpoint(state=b"stored"))
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(checkpoint(state=b"other"))
    loaded = await bus.checkpoints.load("plan-1")
    assert loaded is not None
    assert loaded.state == b"stored"


async def test_two_writers_race_and_exactly_one_wins_each_version(world: World) -> None:
    buses = [await world.connect(), await world.connect()]
    version = 0
    for revision in range(1, 51):
        outcomes = await asyncio.gather(
            *(
                each.checkpoints.commit(
                    checkpoint(revision=revision, version=version, epoch=f"epoch-{index}", state=b"%d" % index)
                )
                for index, each in enumerate(buses)
            ),
            return_exceptions=True,
        )
        winners = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert len(winners) == 1
        (winner,) = winners
        assert isinstance(outcomes[1 - winner], CommitConflict)
        loaded = await buses[0].checkpoints.load("plan-1")
        assert loaded is not None
        assert (loaded.state, loaded.revision) == (b"%d" % winner, revision)
        assert loaded.version == outcomes[winner]
        version = loaded.version


async def test_plans_do_not_share_versions(bus: Bus) -> None:
    names = [*ANY_IDS, "plan", "PLAN"]
    versions = await asyncio.gather(*(bus.checkpoints.commit(checkpoint(name, state=name.encode())) for name in names))
    for name, version in zip(names, versions, strict=True):
        loaded = await bus.checkpoints.load(name)
        assert loaded is not None
        assert (loaded.state, loaded.version) == (name.encode(), version)


async def test_a_finished_plan_expires(world: World, bus: Bus) -> None:
    store = bus.checkpoints
    first = await store.commit(checkpoint(timeline=(b"one",)))
    await store.commit(checkpoint("kept"))
    await bus.emit([SealHistory("plan-1", 1, codec.pack([b"one"]))])
    finished = checkpoint(revision=2, version=first, status="completed", timeline=(b"two",))
    last = await store.commit(replace(finished, sealed=1, expires_after=SHORT))

    async def gone() -> bool:
        await world.clock.sleep(0.2)
        return await store.load("plan-1") is None

    await eventually(gone)
    assert [each.plan_id for each in await stored_plans(bus)] == ["kept"]
    assert await store.history("plan-1") == []
    with pytest.raises(CommitConflict):
        await store.commit(checkpoint(revision=3, version=last))
    assert await store.commit(checkpoint(epoch="epoch-2")) > last


async def test_a_forgotten_plan_can_begin_anew(bus: Bus) -> None:
    store = bus.checkpoints
    first = await store.commit(checkpoint(timeline=(b"two",)))
    await bus.emit([SealHistory("plan-1", 1, codec.pack([b"one"]))])
    await store.commit(checkpoint("kept"))
    await store.forget("plan-1")
    await store.forget("never-there")
    assert await store.load("plan-1") is None
    assert await store.history("plan-1") == []
    assert [each.plan_id for each in await stored_plans(bus)] == ["kept"]
    with pytest.raises(CommitConflict):
        await store.commit(checkpoint(revision=2, version=first))
    assert await store.commit(checkpoint(timeline=(b"new",))) > first
    assert await store.history("plan-1") == [b"new"]


async def test_a_further_correlation_id_is_forgotten_with_its_plan_unless_it_is_another_plans_by_then(bus: Bus) -> None:
    store = bus.checkpoints
    await store.commit(checkpoint())
    await bus.emit([NoteAlias("mine", "plan-1"), NoteAlias("moved", "plan-1")])
    await bus.emit([NoteAlias("moved", "plan-2")])
    await store.forget("plan-1", ["mine", "moved"])
    assert await store.get_alias("mine") is None
    assert await store.get_alias("moved") == "plan-2"


async def test_the_history_is_contiguous_over_sealed_parts(bus: Bus) -> None:
    """Also between the commit that seals a part and the moment when the part is put away."""
    store = bus.checkpoints
    assert await store.history("plan-1") == []
    version, timeline, sealed = 0, [], 0
    for revision in range(1, 26):
        timeline.append(codec.pack({"revision": revision}))
        outbox: tuple[SealHistory, ...] = ()
        if len(timeline) > 4:
            part, timeline = timeline[:4], timeline[4:]
            outbox = (SealHistory("plan-1", revision - 4, codec.pack(part)),)
            sealed += 1
        version = await store.commit(
            replace(
                checkpoint(revision=revision, version=version, timeline=tuple(timeline)),
                outbox=outbox,
                sealed=sealed,
            )
        )
        for put_away in (False, True):
            if put_away:
                await bus.emit(outbox)
                await bus.emit(outbox)
            history = [codec.unpack(entry)["revision"] for entry in await store.history("plan-1")]
            assert history == list(range(1, revision + 1))
    assert await store.history("plan-2") == []


async def test_the_newest_commits_come_first_filtered_and_page_by_page(bus: Bus) -> None:
    store = bus.checkpoints
    assert [each async for each in store.newest()] == []
    versions = {}
    for name, status, session, tenant in [
        ("a", "running", "s1", "t1"),
        ("b ü.*", "completed", "s1", 'in"quotes'),
        ("c", "running", "s2", "t1"),
        ("running", "failed", "completed", "failed"),
    ]:
        versions[name] = await store.commit(checkpoint(name, status=status, session=session, tenant=tenant))
    first, versions["a"] = versions["a"], 0
    versions["a"] = await store.commit(
        checkpoint("a", revision=2, version=first, status="running", session="s1", tenant="t1")
    )

    async def names(before: int = 0, **wanted: str) -> list[str]:
        found = [each async for each in store.newest(PlanFilter(**wanted), before=before)]
        assert all(each.version == versions[each.correlation_id] for each in found)
        assert all(each.summary.plan_id == each.correlation_id for each in found)
        return [each.correlation_id for each in found]

    assert await names() == ["a", "running", "c", "b ü.*"]
    assert await names(versions["running"]) == ["c", "b ü.*"]
    assert await names(versions["b ü.*"]) == []
    assert await names(status="running") == ["a", "c"]
    assert await names(status="running", before=versions["a"]) == ["c"]
    assert await names(status="failed") == ["running"]
    assert await names(session_id="completed") == ["running"]
    assert await names(tenant_id='in"quotes') == ["b ü.*"]
    assert await names(status="running", session_id="s2", tenant_id="t1") == ["c"]
    assert await names(tenant_id="") == []


async def test_search_attributes_are_stored_listed_and_filtered(bus: Bus) -> None:
    store, attributes = bus.checkpoints, {"customer": "Åse", "amount": 40, "rush": True}
    plain = checkpoint("plain")
    tagged = replace(checkpoint("tagged"), summary=replace(checkpoint("tagged").summary, attributes=attributes))
    for each in (plain, tagged):
        await store.commit(each)
    loaded = await store.load("tagged")
    assert loaded is not None
    assert loaded.summary.attributes == attributes
    found = [each.summary async for each in store.newest(PlanFilter(attributes=(("customer", "Åse"),)))]
    assert [(each.plan_id, each.attributes) for each in found] == [("tagged", attributes)]
    assert [each.summary.attributes async for each in store.committed_after(0)] == [None, attributes]


async def test_commits_are_looked_through_a_piece_at_a_time(bus: Bus) -> None:
    store = bus.checkpoints
    assert [each async for each in store.committed_after(0)] == []
    versions = {name: await store.commit(checkpoint(name)) for name in ("a", "b ü.*", "c")}
    found = [each async for each in store.committed_after(0)]
    assert [(each.version, each.correlation_id) for each in found] == [(versions[name], name) for name in versions]
    assert [each.summary.plan_id for each in found] == list(versions)
    newest = await store.commit(checkpoint("a", revision=2, version=versions["a"]))
    assert [each.correlation_id async for each in store.committed_after(versions["b ü.*"])] == ["c", "a"]
    assert [each.summary.revision async for each in store.committed_after(versions["c"])] == [2]
    assert [each async for each in store.committed_after(newest)] == []


async def test_a_plan_that_moves_comes_with_the_commit_before_too_and_a_finished_one_alone(bus: Bus) -> None:
    store = bus.checkpoints
    versions = [0]
    for revision in (1, 2, 3):
        versions.append(await store.commit(checkpoint("a", revision=revision, version=versions[-1])))
    first = await store.commit(checkpoint("b"))
    last = await store.commit(
        replace(checkpoint("b", revision=2, version=first, status="completed"), expires_after=100.0)
    )

    async def shown(after: int) -> list[tuple[str, int, int]]:
        return [
            (each.correlation_id, each.version, each.summary.revision) async for each in store.committed_after(after)
        ]

    assert await shown(0) == [("a", versions[2], 2), ("a", versions[3], 3), ("b", last, 2)]
    assert await shown(versions[2]) == [("a", versions[3], 3), ("b", last, 2)]
    assert [each.version async for each in store.newest()] == [last, versions[3]]
    await store.forget("a")
    assert await shown(0) == [("b", last, 2)]


async def test_who_follows_sees_every_plan_that_is_stored_then_each_further_commit(world: World, bus: Bus) -> None:
    store = bus.checkpoints
    versions = {name: await store.commit(checkpoint(name)) for name in ("a", "b ü.*", "c")}
    following = (await world.connect()).checkpoints.follow(versions["a"])
    seen = []
    async with asyncio.timeout(PATIENCE), aclosing(following):
        async for each in following:
            seen.append((each.correlation_id, each.summary.revision, each.version))
            if each.correlation_id == "c":
                versions["a"] = await store.commit(checkpoint("a", revision=2, version=versions["a"]))
            elif each.correlation_id == "a":
                versions["d"] = await store.commit(checkpoint("d"))
            elif each.correlation_id == "d":
                break
    assert seen == [("b ü.*", 1, versions["b ü.*"]), ("c", 1, versions["c"]), ("a", 2, versions["a"]),
                    ("d", 1, versions["d"])]  # fmt: skip


async def test_follow_reports_when_a_plan_expires(world: World, bus: Bus) -> None:
    await bus.checkpoints.commit(checkpoint("kept"))
    await bus.checkpoints.commit(replace(checkpoint("over", status="completed"), expires_after=100.0))
    found = {}
    async with asyncio.timeout(PATIENCE), aclosing(bus.checkpoints.follow()) as following:
        async for each in following:
            found[each.correlation_id] = each.expires_at
            if len(found) == 2:
                break
    assert found["kept"] == 0
    assert 0 < found["over"] - world.clock.time() <= 101


async def test_a_watch_sees_the_newest_checkpoint_and_later_ones(world: World, bus: Bus) -> None:
    other = await world.connect()
    version = await bus.checkpoints.commit(checkpoint())
    version = await bus.checkpoints.commit(checkpoint(revision=2, version=version))
    await bus.checkpoints.commit(checkpoint("another plan"))
    seen = []
    async with asyncio.timeout(PATIENCE):
        async for each in other.checkpoints.watch("plan-1"):
            seen.append((each.revision, each.version))
            if each.revision == 5:
                break
            version = await bus.checkpoints.commit(checkpoint(revision=each.revision + 1, version=each.version))
    assert [revision for revision, _ in seen] == [2, 3, 4, 5]
    assert seen[-1][1] == version


async def test_a_watch_waits_for_a_plan_that_is_not_there_yet(bus: Bus) -> None:
    watching = bus.checkpoints.watch("plan-1")
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0.1)
    assert not first.done()
    await bus.checkpoints.commit(checkpoint())
    assert (await asyncio.wait_for(first, PATIENCE)).revision == 1
    await watching.aclose()  # type: ignore[attr-defined]


async def test_state_machines_are_stored_by_their_hash(world: World, bus: Bus) -> None:
    other = await world.connect()
    assert await bus.checkpoints.get_machine("abc123") is None
    await bus.checkpoints.put_machine("abc123", b"machine")
    await bus.checkpoints.put_machine("abc123", b"machine")
    await other.checkpoints.put_machine("abc123", b"machine")
    assert await other.checkpoints.get_machine("abc123") == b"machine"
    assert await other.checkpoints.get_machine("abc124") is None


async def machines(bus: Bus, after: int = 0) -> list[StoredMachine]:
    return [each async for each in bus.checkpoints.machines(after)]


async def test_state_machines_are_listed_in_the_order_of_their_puts_and_dropped_unless_put_anew(
    world: World, bus: Bus
) -> None:
    store, other = bus.checkpoints, (await world.connect()).checkpoints
    assert await machines(bus) == []
    for digest in ("a", "b", "c", "a"):
        await store.put_machine(digest, digest.encode())
    kept = await machines(bus)
    assert [each.digest for each in kept] == ["b", "c", "a"]
    assert [each.version for each in kept] == sorted(each.version for each in kept)
    assert all(abs(each.put_at - world.clock.time()) < 60 for each in kept)
    assert await machines(bus, kept[1].version) == kept[2:]
    await other.put_machine("b", b"b")
    for each in kept[:2]:
        await store.drop_machine(each)
        await store.drop_machine(each)
    assert [each.digest for each in await machines(bus)] == ["a", "b"]
    assert await store.get_machine("b") == b"b"
    assert await store.get_machine("c") is None
    await store.put_machine("c", b"c")  # by whoever has put it before, too
    assert await (await world.connect()).checkpoints.get_machine("c") == b"c"


async def test_a_dropped_alias_leads_nowhere_unless_it_was_noted_anew_or_is_another_plans(
    world: World, bus: Bus
) -> None:
    began = world.clock.time()
    await bus.emit([NoteAlias("mine", "plan-1"), NoteAlias("other", "plan-2"), NoteAlias("anew", "plan-1")])
    later = began + 3_600
    drops = [
        DropAlias("mine", "plan-1", later),
        DropAlias("other", "plan-1", later),
        DropAlias("none", "plan-1", later),
    ]
    await bus.emit([*drops, *drops, DropAlias("anew", "plan-1", began - 3_600)])
    assert await bus.checkpoints.get_alias("mine") is None
    assert await bus.checkpoints.get_alias("other") == "plan-2"
    assert await bus.checkpoints.get_alias("anew") == "plan-1"
    await bus.emit([NoteAlias("mine", "plan-1")])
    assert await bus.checkpoints.get_alias("mine") == "plan-1"


# Registry and dead letters.


async def test_registrations_are_listed_by_kind_and_replaced(world: World, bus: Bus) -> None:
    other = await world.connect()
    for key in ANY_IDS:
        await bus.registry.put("agent", key, {"key": key})
    await bus.registry.put("app", "plain", {"n": 1})
    await bus.registry.put("app", "plain", {"n": 2})
    assert await other.registry.list("agent") == {key: {"key": key} for key in ANY_IDS}
    assert await other.registry.list("app") == {"plain": {"n": 2}}
    assert await other.registry.list("event") == {}
    assert await other.registry.get("agent", "a.b") == {"key": "a.b"}
    assert await other.registry.get("agent", "none") is None
    await bus.registry.delete("app", "plain")
    await bus.registry.delete("app", "plain")
    assert await other.registry.get("app", "plain") is None
    assert await other.registry.list("app") == {}


async def test_a_registration_is_gone_after_its_time_unless_put_again(world: World, bus: Bus) -> None:
    await bus.registry.put("agent", "alive", {"n": 1}, ttl=3 * SHORT)
    await bus.registry.put("agent", "gone", {"n": 1}, ttl=SHORT)
    await bus.registry.put("agent", "for ever", {"n": 1})

    async def gone() -> bool:
        await world.clock.sleep(SHORT / 2)
        await bus.registry.put("agent", "alive", {"n": 2}, ttl=3 * SHORT)
        return await bus.registry.get("agent", "gone") is None

    await eventually(gone)
    assert await bus.registry.list("agent") == {"alive": {"n": 2}, "for ever": {"n": 1}}


async def put_aside(bus: Bus, *names: str) -> list[Delivery]:
    consumer = bus.consume(spec(bus))
    for name in names:
        subject = bus.subjects.event("action-results", "a.b *", "t.u")
        await bus.emit([Publish(subject, name.encode() + b"\xc1", name, codec.MSGPACK_TYPE)])
    taken = await take(consumer, len(names))
    await consumer.close()
    for each in taken:
        await bus.dead_letters.put(each, "undecodable", f"about {each.message_id}")
    return taken


async def test_dead_letters_are_stored_once_and_listed_oldest_first(world: World, bus: Bus) -> None:
    assert await bus.dead_letters.count() == 0
    assert [each async for each in bus.dead_letters.list()] == []
    taken = await put_aside(bus, "a", "b", "c")
    for each in taken:
        await bus.dead_letters.put(replace(each, attempt=2, reply="other"), "undecodable", "said again")
    letters = [each async for each in (await world.connect()).dead_letters.list()]
    assert await bus.dead_letters.count() == 3
    assert [each.message_id for each in letters] == ["a", "b", "c"]
    assert [each.number for each in letters] == sorted({each.number for each in letters})
    first = letters[0]
    assert (first.reason, first.detail) == ("undecodable", "about a")
    assert (first.payload, first.content_type) == (b"a\xc1", codec.MSGPACK_TYPE)
    assert first.subject == bus.subjects.event("action-results", "a.b *", "t.u")
    assert abs(first.time - world.clock.time()) < 60
    found = await bus.dead_letters.get(first.number)
    assert replace(found, time=first.time) == first
    assert abs(found.time - first.time) < 0.001
    assert [each.message_id async for each in bus.dead_letters.list(limit=2)] == ["a", "b"]


async def test_a_dead_letter_is_replayed_as_it_came(bus: Bus) -> None:
    (original,) = await put_aside(bus, "a")
    (letter,) = [each async for each in bus.dead_letters.list()]
    await bus.dead_letters.replay(letter.number)
    (again,) = await take(bus.consume(spec(bus)), 1)
    assert (again.subject, again.payload, again.content_type) == (
        original.subject,
        original.payload,
        original.content_type,
    )
    assert again.sequence != original.sequence
    assert await bus.dead_letters.count() == 0


async def test_a_timer_that_was_put_aside_is_replayed_as_a_timer(world: World, bus: Bus) -> None:
    consumer = bus.consume(spec(bus, "timers"))
    await bus.emit([timer(world, "t", 0.0, b"due", plan="a.b")])
    (original,) = await take(consumer, 1)
    await bus.dead_letters.put(original, "failed", "")
    (letter,) = [each async for each in bus.dead_letters.list()]
    assert letter.subject == bus.subjects.timer_due("a.b", "t")
    await bus.dead_letters.replay(letter.number)
    (again,) = await take(consumer, 1)
    assert (again.subject, again.payload) == (original.subject, b"due")


async def test_a_message_that_is_too_large_for_a_letter_is_put_aside_in_part(bus: Bus) -> None:
    payload = b"begin" + bytes(8 * 1024 * 1024 - 400)
    consumer = bus.consume(spec(bus))
    await bus.emit(
        [Publish(bus.subjects.event("action-results", "a.b *", "t.u"), payload, "large", codec.MSGPACK_TYPE)]
    )
    (taken,) = await take(consumer, 1)
    for _ in range(2):
        await bus.dead_letters.put(taken, "crashes-host", "why " + "x" * 1990)
    (letter,) = [each async for each in bus.dead_letters.list()]
    assert (letter.cut_from, letter.payload) == (len(payload), payload[:CUT_BYTES])
    assert (letter.reason, letter.message_id) == ("crashes-host", "large")
    assert letter.subject == bus.subjects.event("action-results", "a.b *", "t.u")
    assert letter.detail.startswith("why ")
    with pytest.raises(PayloadTooLarge, match="cannot be replayed"):
        await bus.dead_letters.replay(letter.number)
    assert await bus.dead_letters.count() == 1


@pytest.mark.parametrize("number", [0, -1, 99])
async def test_an_unknown_number_of_a_dead_letter_raises(bus: Bus, number: int) -> None:
    with pytest.raises(DeadLetterNotFound):
        await bus.dead_letters.get(number)
    with pytest.raises(DeadLetterNotFound):
        await bus.dead_letters.replay(number)


# Connections.


async def test_closing_a_connection_leaves_the_others(world: World) -> None:
    one, other = await world.connect(), await world.connect()
    consumer = one.consume(spec(one, ack_wait=2.0))
    waiting = asyncio.ensure_future(consumer.fetch(1))
    await asyncio.sleep(0.1)
    await one.checkpoints.commit(checkpoint())
    await one.close()
    await one.close()
    with pytest.raises(BusUnavailable):
        await asyncio.wait_for(waiting, PATIENCE)
    with pytest.raises(BusUnavailable):
        await one.publish(event("never"))
    with pytest.raises(BusUnavailable):
        await one.checkpoints.load("plan-1")
    await other.publish(event("a"))  # perhaps offered first to the connection whose end the server has not seen yet
    assert ids(await take(other.consume(spec(other, ack_wait=2.0)), 1)) == ["a"]
    assert await other.checkpoints.load("plan-1") is not None


async def test_streams_can_be_ensured_by_many_at_once(world: World) -> None:
    buses = [await world.connect() for _ in range(4)]
    await asyncio.gather(*(each.ensure_streams() for each in buses for _ in range(2)))
    await buses[0].publish(event("a"))
    await buses[0].ensure_streams()
    assert ids(await take(buses[1].consume(spec(buses[1])), 1)) == ["a"]


async def test_where_nothing_was_deleted_nothing_is_made_again(bus: Bus) -> None:
    await bus.ensure_consumer(spec(bus))
    assert await bus.restore([spec(bus)]) == []
    await bus.publish(event("a"))
    assert ids(await take(bus.consume(spec(bus)), 1)) == ["a"]


async def test_health_is_json(bus: Bus) -> None:
    await bus.publish(event("a"))
    assert codec.dump(await bus.health(), "json")


# Trees.

LONG = 3_600.0


async def test_a_tree_takes_as_many_plans_as_it_may_and_each_once(bus: Bus) -> None:
    joined = [await bus.trees.join("t1", f"plan-{number % 5}", 3, LONG) for number in range(10)]
    assert joined == [True, True, True, False, False] * 2
    assert not await bus.trees.join("t2", "plan-0", 0, LONG)
    assert await bus.trees.join("t1", "plan-4", 4, LONG), "a bound may be raised"
    assert await bus.trees.join("t1", "plan-0", 1, LONG), "who is in a tree stays in it"


async def test_plans_that_join_at_once_over_several_connections_are_exactly_as_many_as_may(world: World) -> None:
    buses = [await world.connect() for _ in range(4)]
    plans = [f"plan-{number}" for number in range(120)]
    joins = [bus.trees.join("t", plan, 50, LONG) for plan in plans for bus in (buses[hash(plan) % 4], buses[0])]
    joined = await asyncio.gather(*joins)
    assert [*joined[::2]] == [*joined[1::2]], "every connection gives a plan the same answer"
    assert sum(joined[::2]) == 50
    again = await world.connect()
    assert [await again.trees.join("t", plan, 50, LONG) for plan in plans] == [*joined[::2]]


async def test_a_tree_of_many_plans_gives_each_its_answer_again(world: World) -> None:
    bus, plans = await world.connect(), [f"plan-{number}" for number in range(3_000)]
    for _ in range(2):
        assert all(await asyncio.gather(*(bus.trees.join("t", plan, 3_000, LONG) for plan in plans)))
        bus = await world.connect()
    assert not await bus.trees.join("t", "another", 3_000, LONG)


async def test_a_tree_that_no_plan_joins_is_forgotten(world: World) -> None:
    bus = await world.connect()
    assert await bus.trees.join("t", "a", 1, SHORT)
    async with asyncio.timeout(PATIENCE):
        while not await (await world.connect()).trees.join("t", "b", 1, SHORT):
            await world.clock.sleep(SHORT / 2)
    assert not await bus.trees.join("t", "c", 1, LONG), "a connection that knew the tree before reads it anew"


def test_trees_of_two_tenants_are_two_trees() -> None:
    names = [tree_name(tenant, root) for tenant in ("", "a", "b") for root in ("plan-1", "plan-2", "\ud800")]
    assert len(set(names)) == len(names)


# Seals.


async def test_a_seal_is_valid_for_its_text_on_every_connection_and_for_no_other_text(world: World) -> None:
    one, other = await world.connect(), await world.connect()
    await one.seals.prepare()
    await other.seals.prepare()
    seal = one.seals.seal("a text")
    assert one.seals.verify("a text", seal)
    assert other.seals.verify("a text", seal)
    for text, wrong in (("another", seal), ("a text", ""), ("a text", "\ud800" * 64), ("a text", seal[:-1])):
        assert not other.seals.verify(text, wrong)
    assert other.seals.verify("\ud800", one.seals.seal("\ud800"))


# Sessions.

ROOMY = SessionBounds(100, 65_536, LONG)


def shared(session: str = "s", **values: object) -> Share:
    return Share(session, codec.pack(values))


async def test_values_of_a_session_are_those_of_the_newest_commits(bus: Bus) -> None:
    assert await bus.sessions.read("s") == {}
    await bus.sessions.merge(shared(a=1, b=[1, None]), 7, ROOMY)
    await bus.sessions.merge(shared(a=2), 9, ROOMY)
    for _ in range(2):  # sent again, as after a crash
        await bus.sessions.merge(shared(a="older", b="newer"), 8, ROOMY)
    await bus.sessions.merge(shared("t", a="other"), 10, ROOMY)
    assert await bus.sessions.read("s") == {"a": 2, "b": "newer"}
    assert list(await bus.sessions.read("s")) == ["b", "a"], "the newest is the last"
    assert await bus.sessions.read("t") == {"a": "other"}


async def test_a_session_keeps_the_newest_values_within_its_bounds(bus: Bus) -> None:
    for version in range(1, 6):
        await bus.sessions.merge(shared(**{f"k{version}": version}), version, SessionBounds(3, 65_536, LONG))
    assert list(await bus.sessions.read("s")) == ["k3", "k4", "k5"]
    await bus.sessions.merge(shared(k1=1), 1, SessionBounds(3, 65_536, LONG))
    assert list(await bus.sessions.read("s")) == ["k3", "k4", "k5"], "an old one that is sent again displaces none"
    await bus.sessions.merge(shared(long="x" * 80), 6, SessionBounds(3, 95, LONG))
    assert list(await bus.sessions.read("s")) == ["k5", "long"]


async def test_plans_that_share_at_once_lose_nothing(world: World) -> None:
    buses = [await world.connect() for _ in range(4)]
    await asyncio.gather(
        *(
            bus.sessions.merge(shared(**{f"k{n}-{at}": n}), 4 * n + at, ROOMY)
            for n in range(10)
            for at, bus in enumerate(buses)
        )
    )
    assert len(await buses[0].sessions.read("s")) == 40


async def test_a_session_to_which_nothing_is_added_is_forgotten(bus: Bus, world: World) -> None:
    await bus.sessions.merge(shared(a=1), 1, SessionBounds(3, 100, SHORT))
    async with asyncio.timeout(PATIENCE):
        while await bus.sessions.read("s"):
            await world.clock.sleep(SHORT / 2)
    await bus.sessions.merge(shared(b=2), 2, SessionBounds(3, 100, 0.0))
    assert await bus.sessions.read("s") == {"b": 2}


def test_sessions_of_two_tenants_are_two_sessions() -> None:
    names = [session_name(tenant, session) for tenant in ("", "a", "b") for session in ("s", "t", "\ud800")]
    assert len(set(names)) == len(names)


# Values.


def of_size(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def reference(content: bytes) -> Reference:
    return Reference(digest_of(content), len(content))


def by_digest(*contents: bytes) -> dict[bytes, bytes]:
    return {digest_of(each): each for each in contents}


@pytest.mark.parametrize("size", [1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES + 7])
async def test_a_value_of_any_size_is_read_as_it_was_stored(world: World, bus: Bus, size: int) -> None:
    content = of_size(size)
    await bus.values.put("acme", "p", by_digest(content))
    reader = await world.connect()
    assert await reader.values.get("acme", [reference(content)]) == by_digest(content)


async def test_many_values_are_stored_and_read_at_once(world: World, bus: Bus) -> None:
    contents = [of_size(100 + n, n) for n in range(300)]
    await bus.values.put("", "p", by_digest(*contents))
    reader = await world.connect()
    assert await reader.values.get("", map(reference, contents)) == by_digest(*contents)
    assert await reader.values.get("", []) == {}


@pytest.mark.parametrize(
    ("owner", "other"), [("acme", "globex"), ("acme", ""), ("", "acme"), ("", "%"), ("a.b", "a"), ("-", "")]
)
async def test_a_tenant_does_not_get_the_value_of_another_by_its_digest(
    world: World, bus: Bus, owner: str, other: str
) -> None:
    content = of_size(100)
    await bus.values.put(owner, "p", by_digest(content))
    for each in (bus, await world.connect()):
        assert await each.values.get(owner, [reference(content)]) == by_digest(content)
        with pytest.raises(UnreadableValue, match=f"the value {digest_of(content).hex()} is missing"):
            await each.values.get(other, [reference(content)])


async def test_a_value_that_was_exchanged_is_named_and_not_returned(world: World, bus: Bus) -> None:
    content = of_size(3_000)
    await bus.values.put("", "p", {digest_of(content): of_size(2_000)})
    with pytest.raises(UnreadableValue, match=r"is damaged: 2,000 bytes of 3,000 were found"):
        await (await world.connect()).values.get("", [reference(content)])


async def test_values_and_the_plans_that_use_them_are_listed(bus: Bus) -> None:
    small, large = of_size(10), of_size(FRAME_BYTES + 5)
    before = await bus.values.now()
    await bus.values.put("acme", "a.b", by_digest(small))
    await bus.values.put("", "other plan", by_digest(large))
    listed = [each async for each in bus.values.values()]
    sizes: dict[tuple[str, bytes], int] = {}
    for each in listed:
        sizes[each.tenant, each.digest] = sizes.get((each.tenant, each.digest), 0) + each.size
    assert sizes == {("acme", digest_of(small)): 10, ("", digest_of(large)): FRAME_BYTES + 5}
    assert [each.correlation_id async for each in bus.values.plans()] == ["a.b", "other plan"]
    assert before <= listed[0].stored_at <= listed[-1].stored_at <= await bus.values.now()


@pytest.mark.parametrize("size", [1_000, 2 * FRAME_BYTES + 5])
async def test_readers_learn_when_a_value_was_stored_last(world: World, bus: Bus, size: int) -> None:
    content, other = of_size(size, 1), of_size(size, 2)
    await bus.values.put("acme", "p", by_digest(content, other))
    between = await bus.values.now()
    await bus.values.put("acme", None, by_digest(content))
    for reader in (bus, await world.connect()):
        for _ in range(2):  # the second time it may be in memory
            times: dict[bytes, float] = {}
            await reader.values.get("acme", [reference(content), reference(other)], stored_at=times)
            assert times[digest_of(other)] <= between <= times[digest_of(content)] <= await bus.values.now()


@pytest.mark.parametrize("size", [600, 100_000, 3 * FRAME_BYTES + 5])
async def test_values_that_can_be_compressed_come_back_as_they_were(world: World, bus: Bus, size: int) -> None:
    content = (b"a value that repeats itself, " * size)[:size]
    await bus.values.put("acme", "p", by_digest(content))
    assert await (await world.connect()).values.get("acme", [reference(content)]) == by_digest(content)


async def test_a_plan_that_is_noted_already_is_not_noted_again(bus: Bus) -> None:
    await bus.values.put("acme", "p", by_digest(of_size(10)))
    noted = [each async for each in bus.values.plans()]
    await bus.values.put("acme", None, by_digest(of_size(20)))
    assert [each async for each in bus.values.plans()] == noted


async def test_what_was_stored_again_is_not_dropped(world: World, bus: Bus) -> None:
    kept, dropped, large = of_size(10, 1), of_size(10, 2), of_size(2 * FRAME_BYTES)
    await bus.values.put("", "kept", by_digest(kept))
    await bus.values.put("", "dropped", by_digest(dropped, large))
    listed = [each async for each in bus.values.values()]
    plans = [each async for each in bus.values.plans()]
    await bus.values.put("", "kept", by_digest(kept))
    for _ in range(2):  # as by a collector that was killed, and begins again
        await bus.values.drop([*listed, *plans])
    reader = await world.connect()
    assert await reader.values.get("", [reference(kept)]) == by_digest(kept)
    assert {each.digest async for each in bus.values.values()} == {digest_of(kept)}
    assert [each.correlation_id async for each in bus.values.plans()] == ["kept"]
    for content in (dropped, large):
        with pytest.raises(UnreadableValue):
            await reader.values.get("", [reference(content)])


async def test_a_folded_checkpoint_is_loaded_in_full_and_watched_in_full(world: World, bus: Bus) -> None:
    state = {"results": {"text": "long " * 2_000, "list": [{"n": n} for n in range(2_000)]}}
    entries = [{"revision": 1, "event": {"data": "said " * 3_000}}, {"revision": 2}]
    done, parts = Folder(1 << 20).fold(state), [Folder(1 << 20).fold(each) for each in entries]
    contents = {digest: each for part in (done, *parts) for digest, each in part.contents.items()}
    await bus.values.put("acme", "p", contents)
    ids = codec.pack(b"id of 01id of 02")
    await bus.values.put("acme", None, {digest_of(ids): ids})
    made = checkpoint("p", state=done.packed, tenant="acme", timeline=(parts[1].packed,))
    made = replace(made, processed=b"id of 03")
    before = reference_to(ids)[1]
    version = await bus.checkpoints.commit(replace(made, is_folded=True, sealed=1, processed_before=before))
    await bus.emit([SealHistory("p", 1, sealed_part([parts[0].packed], compress=True))])
    full = replace(
        made, state=codec.pack(state), timeline=(codec.pack(entries[1]),), sealed=1, version=version,
        processed=b"id of 01id of 02id of 03",
    )  # fmt: skip
    for reader in (bus, await world.connect()):
        assert await reader.checkpoints.load("p") == full
        async with aclosing(reader.checkpoints.watch("p")) as watching:  # type: ignore[type-var]
            assert await anext(watching) == full
        assert await reader.checkpoints.history("p") == [codec.pack(each) for each in entries]
        assert await reader.checkpoints.history("p", folded=True) == [each.packed for each in parts]
        stored = await reader.checkpoints.load("p", folded=True)
        assert stored is not None
        assert (stored.state, stored.is_folded) == (done.packed, True)
    await bus.values.drop([each async for each in bus.values.values()])
    with pytest.raises(UnreadableValue, match="plan p: the value"):
        await (await world.connect()).checkpoints.load("p")


async def test_the_checkpoint_before_the_newest_is_kept_too(bus: Bus) -> None:
    assert await bus.checkpoints.kept("p") == []
    version = await bus.checkpoints.commit(checkpoint("p", state=b"1"))
    for revision in (2, 3):
        version = await bus.checkpoints.commit(
            checkpoint("p", state=b"%d" % revision, revision=revision, version=version)
        )
    assert [each.state for each in await bus.checkpoints.kept("p")] == [b"2", b"3"]
    await bus.checkpoints.commit(replace(checkpoint("p", revision=4, version=version), expires_after=60.0))
    assert [each.revision for each in await bus.checkpoints.kept("p")] == [4]


# Progress notes.


async def kept(bus: Bus, condition: Callable[[list[ProgressNote]], bool]) -> list[ProgressNote]:
    """The notes of a plan, once they are as expected: they are sent, and not waited for."""
    async with asyncio.timeout(PATIENCE):
        while not condition(notes := await bus.progress.kept("plan")):
            await asyncio.sleep(0.05)
    return notes


async def test_notes_are_kept_in_order_for_each_plan(world: World) -> None:
    writer, reader = await world.connect(), await world.connect()
    for number in range(3):
        await writer.progress.put("plan", b"%d" % number)
        await writer.progress.put("plan.b", b"of b")
    notes = await kept(reader, lambda found: len(found) == 3)
    assert [note.payload for note in notes] == [b"0", b"1", b"2"]
    assert [note.sequence for note in notes] == sorted({note.sequence for note in notes})
    assert await reader.progress.kept("plan", after=notes[1].sequence) == notes[2:]
    assert [note.payload for note in await reader.progress.kept("plan.b")] == [b"of b"] * 3
    assert await reader.progress.kept("nobody") == []


async def test_a_reader_of_notes_gets_those_that_are_kept_and_then_all_others(world: World) -> None:
    writer, reader = await world.connect(), await world.connect()
    for number in range(4):
        await writer.progress.put("plan", b"%d" % number)
    notes = await kept(reader, lambda found: len(found) == 4)
    async with asyncio.timeout(PATIENCE), aclosing(reader.progress.follow("plan", after=notes[1].sequence)) as more:
        assert [(await anext(more)).sequence for _ in range(2)] == [note.sequence for note in notes[2:]]
        await writer.progress.put("another", b"-")
        await writer.progress.put("plan", b"4")
        assert (await anext(more)).payload == b"4"


async def test_old_notes_of_a_plan_make_place_for_new_ones(world: World) -> None:
    bus = await world.connect()
    for number in range(KEPT_NOTES + 10):
        await bus.progress.put("plan", b"%d" % number)
    last = b"%d" % (KEPT_NOTES + 9)
    notes = await kept(bus, lambda found: bool(found) and found[-1].payload == last)
    assert [note.payload for note in notes] == [b"%d" % number for number in range(10, KEPT_NOTES + 10)]


async def test_a_schedule_is_replaced_by_its_version_only(world: World, bus: Bus) -> None:
    key, other = ScheduleKey("", "every.day"), ScheduleKey("ac.me", "every.day")
    assert await bus.schedules.read(key) == StoredSchedule(key, b"", 0)
    first = await bus.schedules.replace(key, b"1", 0)
    for stale in (0, first + 7):
        with pytest.raises(CommitConflict):
            await bus.schedules.replace(key, b"2", stale)
    second = await bus.schedules.replace(key, b"2", first)
    of_other = await bus.schedules.replace(other, b"other", 0)
    reader = await world.connect()
    assert await reader.schedules.read(key) == StoredSchedule(key, b"2", second)
    stored = [StoredSchedule(key, b"2", second), StoredSchedule(other, b"other", of_other)]
    assert await reader.schedules.list() == stored


async def test_a_deleted_schedule_may_be_made_again(world: World, bus: Bus) -> None:
    key = ScheduleKey("", "s")
    version = await bus.schedules.replace(key, b"1", 0)
    await bus.schedules.delete(key)
    deleted = await bus.schedules.read(key)
    assert deleted.value == b""
    assert await bus.schedules.list() == []
    with pytest.raises(CommitConflict):
        await bus.schedules.replace(key, b"2", version)
    await bus.schedules.replace(key, b"2", deleted.version)
    await bus.schedules.delete(ScheduleKey("", "nothing"))
    assert [each.value for each in await (await world.connect()).schedules.list()] == [b"2"]


async def test_a_schedule_that_ends_expires(bus: Bus) -> None:
    key = ScheduleKey("", "once")
    await bus.schedules.replace(key, b"1", 0, ttl=1.0)
    async with asyncio.timeout(PATIENCE):
        while (await bus.schedules.read(key)).value:
            await asyncio.sleep(0.05)
    assert await bus.schedules.list() == []


async def test_schedules_are_followed_from_their_newest_versions(world: World, bus: Bus) -> None:
    writer, keys = await world.connect(), [ScheduleKey("t", f"s{number}") for number in range(5)]
    versions = {key: await writer.schedules.replace(key, b"1", 0) for key in keys}
    versions[keys[0]] = await writer.schedules.replace(keys[0], b"2", versions[keys[0]])
    async with aclosing(bus.schedules.watch()) as watching, asyncio.timeout(PATIENCE):
        seen = {(each.key, each.value) for each in [await anext(watching) for _ in keys]}
        assert seen == {(keys[0], b"2"), *((key, b"1") for key in keys[1:])}
        await writer.schedules.replace(keys[1], b"3", versions[keys[1]])
        await writer.schedules.delete(keys[2])
        assert [(await anext(watching))[:2] for _ in range(2)] == [(keys[1], b"3"), (keys[2], b"")]
