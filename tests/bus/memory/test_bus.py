"""Behaviour of the memory bus alone: a manual clock, and injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.bus.stored_plans import stored_plans

from plancast_bus.clock import ManualClock
from plancast_bus.errors import BusError, BusUnavailable, CommitConflict, PublishRefused
from plancast_bus.events.codec import JSON_TYPE, pack
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.memory.faults import Point
from plancast_bus.memory.subscriptions import SubjectIndex, overlap
from plancast_bus.ports.bus import Bus, Consumer, ConsumerSpec, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import CancelTimer, NoteAlias, Publish, SealHistory, SetTimer
from plancast_bus.settings import BusSettings


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def world(clock: ManualClock) -> AsyncIterator[MemoryWorld]:
    yield MemoryWorld(clock=clock)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not others, "something is left running"


def message(bus: Bus, name: str) -> Publish:
    return Publish(bus.subjects.event("action-results", "plan-1", "t"), name.encode(), name, JSON_TYPE)


def consumer(bus: MemoryBus, name: str = "reader", **fields: float) -> Consumer:
    filters = (bus.subjects.stored("action-results"),)
    return bus.consume(replace(ConsumerSpec(name, "results", filters), **fields))  # type: ignore[arg-type]


def timers(bus: MemoryBus) -> Consumer:
    return bus.consume(ConsumerSpec("timers", "timers", (bus.subjects.timers_due(),)))


def checkpoint(**fields: object) -> Checkpoint:
    summary = PlanSummary("plan-1", "running", "goal", "start", 1)
    return replace(Checkpoint("plan-1", 1, "epoch-1", b"state", summary), **fields)  # type: ignore[arg-type]


def seen(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(each.payload.decode(), each.attempt) for each in deliveries]


class Fault:
    """Raises at a point a given number of times, and records all points."""

    def __init__(self, point: Point, error: Exception, times: int = 1) -> None:
        self.point = point
        self.error = error
        self.times = times
        self.points: list[tuple[Point, str]] = []

    async def __call__(self, point: Point, subject: str) -> None:
        self.points.append((point, subject))
        if point == self.point and self.times > 0:
            self.times -= 1
            raise self.error


# Time.


async def test_a_waiting_consumer_gets_a_message_again_when_its_time_is_over(
    world: MemoryWorld, clock: ManualClock
) -> None:
    bus = MemoryBus(world)
    reader = consumer(bus, ack_wait=30.0)
    await bus.emit([message(bus, "a")])
    assert seen(await reader.fetch(10)) == [("a", 1)]
    waiting = asyncio.ensure_future(reader.fetch(10))
    await clock.advance(29.9)
    assert not waiting.done()
    await clock.advance(0.2)
    assert seen(await waiting) == [("a", 2)]


async def test_progress_and_delays_count_from_their_call(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    reader = consumer(bus, ack_wait=30.0)
    await bus.emit([message(bus, "kept"), message(bus, "delayed")])
    kept, delayed = await reader.fetch(10)
    await clock.advance(20)
    await reader.in_progress([kept])
    await reader.nak(delayed, delay=100)
    waiting = asyncio.ensure_future(reader.fetch(10))
    await clock.advance(29.9)
    assert not waiting.done()
    await clock.advance(0.2)
    (again,) = await waiting
    assert again.payload == b"kept"
    await reader.ack([again])
    waiting = asyncio.ensure_future(reader.fetch(10))
    await clock.advance(69)
    assert not waiting.done()
    await clock.advance(2)
    assert seen(await waiting) == [("delayed", 2)]


async def test_a_late_acknowledgement_counts(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    reader = consumer(bus, ack_wait=30.0)
    await bus.emit([message(bus, "a")])
    late = await reader.fetch(1)
    await clock.advance(31)
    await reader.fetch(1)
    await reader.ack(late)
    assert not world.streams["results"].messages


async def test_a_timer_fires_at_its_time_and_wakes_a_waiting_fetch(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    waiting = asyncio.ensure_future(timers(bus).fetch(10))
    await bus.emit(
        [
            SetTimer("p", "replaced", clock.time() + 10, b"old", JSON_TYPE),
            SetTimer("p", "replaced", clock.time() + 3600, b"new", JSON_TYPE),
            SetTimer("p", "cancelled", clock.time() + 20, b"cancelled", JSON_TYPE),
            CancelTimer("p", "cancelled"),
        ]
    )
    await clock.advance(3599)
    assert not waiting.done()
    await clock.advance(1)
    assert seen(await waiting) == [("new", 1)]


async def test_many_replaced_timers_leave_nothing_behind(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    for number in range(5000):
        await bus.emit([SetTimer("p", "t", clock.time() + 3600 + number, b"x", JSON_TYPE)])
    assert len(world.timers._schedule._heap) < 2000
    await clock.advance(3600 + 4999)
    assert len(await timers(bus).fetch(10)) == 1


async def test_many_naks_leave_nothing_behind(world: MemoryWorld) -> None:
    bus = MemoryBus(world)
    reader = consumer(bus)
    await bus.emit([message(bus, "a")])
    for attempt in range(1, 4000):
        (taken,) = await reader.fetch(1)
        assert taken.attempt == attempt
        await reader.nak(taken)
    assert len(world.streams["results"].durable(reader._spec)._redeliveries._heap) < 2000  # type: ignore[attr-defined]


async def test_finished_plans_leave_nothing_behind(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    await bus.emit([NoteAlias("alias", "plan-1"), SealHistory("plan-1", 1, pack([b"one"]))])
    version = await bus.checkpoints.commit(checkpoint())
    await bus.emit([SealHistory("plan-1", 1, pack([b"one"]))])
    await bus.checkpoints.commit(checkpoint(revision=2, version=version, expires_after=3600.0))
    await clock.advance(3599)
    assert await bus.checkpoints.history("plan-1") == [b"one"]
    assert await bus.checkpoints.get_alias("alias") == "plan-1"
    await clock.advance(2)
    assert await stored_plans(bus) == []
    assert await bus.checkpoints.get_alias("alias") is None
    assert not world.plans.sealed("plan-1")


async def test_facts_expire(clock: ManualClock) -> None:
    world = MemoryWorld(BusSettings(facts_max_age=60), clock=clock)
    bus = MemoryBus(world)
    reader = bus.consume(ConsumerSpec("reader", "facts", (bus.subjects.stored("business-facts"),)))

    def fact(name: str) -> Publish:
        return Publish(bus.subjects.event("business-facts", "c", "t"), name.encode(), name, JSON_TYPE)

    await bus.emit([fact("old")])
    await clock.advance(61)
    await bus.emit([fact("new")])
    assert seen(await reader.fetch(10)) == [("new", 1)]
    assert len(world.streams["facts"].messages) == 1


async def test_dead_letters_and_responses_expire(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world)
    await bus.emit([message(bus, "a")])
    (taken,) = await consumer(bus).fetch(1)
    await bus.dead_letters.put(taken, "reason", "detail")
    await clock.advance(world.settings.dead_letters_max_age + 1)
    assert await bus.dead_letters.count() == 0


# Faults.


async def test_a_lost_acknowledgement_of_a_commit_is_found_out_by_reading_back(world: MemoryWorld) -> None:
    fault = Fault("commit.after", BusUnavailable("lost"))
    bus = MemoryBus(world, faults=fault)
    version = await bus.checkpoints.commit(checkpoint())
    loaded = await bus.checkpoints.load("plan-1")
    assert loaded is not None
    assert loaded.version == version
    assert [point for point, _ in fault.points] == ["commit.before", "commit.after", "commit.readback"]
    assert {subject for _, subject in fault.points} == {bus.subjects.checkpoint("plan-1")}


async def test_a_commit_over_which_another_was_written_meanwhile_is_a_conflict(world: MemoryWorld) -> None:
    other = MemoryBus(world)

    class Overtaken(Fault):
        async def __call__(self, point: Point, subject: str) -> None:
            if point == "commit.after":
                stored = await other.checkpoints.load("plan-1")
                assert stored is not None
                await other.checkpoints.commit(replace(stored, revision=2, epoch="epoch-2"))
            await super().__call__(point, subject)

    bus = MemoryBus(world, faults=Overtaken("commit.after", BusUnavailable("lost")))
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(checkpoint())


async def test_a_commit_whose_outcome_cannot_be_read_back_is_unknown_and_can_be_repeated(
    world: MemoryWorld,
) -> None:
    class Unreachable(Fault):
        async def __call__(self, point: Point, subject: str) -> None:
            if point in ("commit.after", "commit.readback") and self.times > 0:
                self.times -= 1
                raise self.error

    bus = MemoryBus(world, faults=Unreachable("commit.after", BusUnavailable("lost"), times=2))
    with pytest.raises(BusUnavailable):
        await bus.checkpoints.commit(checkpoint())
    stored = await bus.checkpoints.load("plan-1")
    assert stored is not None
    assert await bus.checkpoints.commit(checkpoint()) == stored.version


async def test_a_commit_that_fails_before_it_takes_place_stores_nothing(world: MemoryWorld) -> None:
    bus = MemoryBus(world, faults=Fault("commit.before", BusUnavailable("no connection")))
    with pytest.raises(BusUnavailable):
        await bus.checkpoints.commit(checkpoint())
    assert await bus.checkpoints.load("plan-1") is None


async def test_a_publish_whose_acknowledgement_was_lost_is_harmless_to_repeat(world: MemoryWorld) -> None:
    bus = MemoryBus(world, faults=Fault("publish.after", BusUnavailable("lost")))
    with pytest.raises(BusUnavailable):
        await bus.emit([message(bus, "a"), message(bus, "b")])
    assert await bus.emit([message(bus, "a"), message(bus, "b")]) == [1, 2]
    assert seen(await consumer(bus).fetch(10)) == [("a", 1), ("b", 1)]


async def test_a_refused_publish_stores_nothing(world: MemoryWorld) -> None:
    bus = MemoryBus(world, faults=Fault("publish.before", PublishRefused("full")))
    with pytest.raises(PublishRefused):
        await bus.emit([message(bus, "a")])
    assert not world.streams["results"].messages


async def test_a_lost_acknowledgement_of_a_delivery_brings_it_again(world: MemoryWorld, clock: ManualClock) -> None:
    bus = MemoryBus(world, faults=Fault("ack", BusUnavailable("lost")))
    reader = consumer(bus, ack_wait=30.0)
    await bus.emit([message(bus, "a"), message(bus, "b")])
    await reader.ack(await reader.fetch(10))
    await clock.advance(31)
    assert seen(await reader.fetch(10)) == [("a", 2)]


async def test_faults_strike_one_connection_only(world: MemoryWorld) -> None:
    MemoryBus(world, faults=Fault("publish.before", PublishRefused("full")))
    other = MemoryBus(world)
    assert await other.emit([message(other, "a")]) == [1]


# Connections.


async def test_closing_wakes_waiting_fetches_and_leaves_nothing_running(world: MemoryWorld) -> None:
    bus = MemoryBus(world)

    async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
        await asyncio.Event().wait()

    await bus.subscribe(f"{bus.subjects.prefix}.>", notice)
    await bus.emit([SetTimer("p", "far", 9e9, b"", JSON_TYPE)])
    await bus.emit([message(bus, "a")])
    reading = asyncio.ensure_future(timers(bus).fetch(1))
    watching = asyncio.ensure_future(anext(bus.checkpoints.watch("nobody")))
    await asyncio.sleep(0.01)
    await bus.close()
    for each in (reading, watching):
        with pytest.raises(BusUnavailable):
            await asyncio.wait_for(each, 5)
    assert not world.plans.listeners
    await asyncio.sleep(0.01)


async def test_a_cancelled_fetch_loses_nothing(world: MemoryWorld) -> None:
    bus = MemoryBus(world)
    reader = consumer(bus)
    for number in range(50):
        waiting = asyncio.ensure_future(reader.fetch(1))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        await bus.emit([message(bus, f"m{number}")])
        waiting.cancel()
        await asyncio.wait([waiting])
        taken = waiting.result() if not waiting.cancelled() else await reader.fetch(1)
        assert seen(taken) == [(f"m{number}", 1)]
        await reader.ack(taken)


async def test_overlapping_consumers_of_a_work_queue_are_refused_at_once(world: MemoryWorld) -> None:
    bus = MemoryBus(world)
    consumer(bus)
    with pytest.raises(BusError, match="overlaps consumer reader"):
        consumer(bus, "other")


async def test_changed_filters_of_a_consumer_take_effect(world: MemoryWorld) -> None:
    bus = MemoryBus(world)
    await bus.emit([message(bus, "a")])
    shard = int(next(iter(world.streams["results"].messages.values())).subject.split(".")[2])
    elsewhere = bus.subjects.stored("action-results", (shard + 1) % world.settings.shards)
    reader = bus.consume(ConsumerSpec("reader", "results", (elsewhere,)))
    waiting = asyncio.ensure_future(reader.fetch(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    heir = bus.consume(ConsumerSpec("reader", "results", (bus.subjects.stored("action-results", shard),)))
    assert seen(await waiting) == [("a", 1)]
    await heir.close()


async def test_reconnect_calls_the_callbacks(world: MemoryWorld) -> None:
    bus, calls = MemoryBus(world), []
    bus.on_reconnect(lambda: calls.append(1))
    assert not calls
    bus.reconnect()
    assert calls == [1]


def test_a_world_has_one_clock(world: MemoryWorld, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="clock"):
        MemoryBus(world, clock=clock)


# Subjects.


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.*.c", "a.b.c", True),
        ("*.b.>", "a.b", False),
        ("*.b.>", "a.b.c", True),
    ],
)
def test_patterns_match_as_on_nats(pattern: str, subject: str, matches: bool) -> None:
    index: SubjectIndex[str] = SubjectIndex()
    index.add(pattern, "it")
    index.add("other.>", "other")
    assert index.match(subject) == (["it"] if matches else [])
    assert overlap(pattern, subject) == overlap(subject, pattern) == matches
    index.remove(pattern, "it")
    index.remove(pattern, "it")
    assert index.match(subject) == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("a.*", "*.b", True), ("a.>", "a.b.*", True), ("a.*", "b.*", False), ("*", "*.a", False), (">", "a.b", True)],
)
def test_patterns_overlap_when_some_subject_matches_both(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) == overlap(other, one) == expected
