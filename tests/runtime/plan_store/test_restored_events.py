"""Which events of a backup are published again: those that the restored checkpoints know, and still wait for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from plancast.plan_store.restored_events import RestoredEvents
from plancast_bus.events.codec import CONTENT_TYPES, encode, pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import NoteAlias
from plancast_bus.settings import BusSettings


@pytest.fixture
async def events() -> RestoredEvents:
    """Plan ``p`` at revision 3, which waits for the answer to ``p:3-0``; ``other`` is an id of it."""
    bus = MemoryBus(MemoryWorld(BusSettings()))
    now = time.time()
    summary = PlanSummary("p", "running", "x.goal", "asked", 3, created_at=now, updated_at=now)
    state: dict[str, Any] = {"plan_id": "p", "requests": {"p:3-0": ["a.b", "a.done"]}}
    for revision in (1, 2, 3):
        stored = await bus.checkpoints.load("p")
        version = stored.version if stored is not None else 0
        await bus.checkpoints.commit(Checkpoint("p", revision, "e", pack(state), summary, version=version))
    await bus.emit([NoteAlias("other", "p")])
    return RestoredEvents(bus)


async def is_wanted(events: RestoredEvents, topic: EventTopic = EventTopic.ACTION_REQUESTS, **fields: Any) -> bool:
    event = EventEnvelope(source="test", type="a.b", topic=topic, correlation_id="p", data={}, **fields)
    return await events.is_wanted({"Content-Type": CONTENT_TYPES["msgpack"]}, encode(event, "msgpack"))


ANSWER = EventTopic.ACTION_RESULTS


async def test_an_open_request_and_its_answer_are_wanted(events: RestoredEvents) -> None:
    assert await is_wanted(events, id="p:3-0", response_event="a.done")
    assert await is_wanted(events, ANSWER, id="answer:p:3-0", parent_event_id="p:3-0")


async def test_a_request_whose_answer_was_processed_is_not(events: RestoredEvents) -> None:
    assert not await is_wanted(events, id="p:2-0", response_event="a.done")


async def test_a_request_without_an_answer_is_wanted(events: RestoredEvents) -> None:
    assert await is_wanted(events, id="p:2-0")


async def test_what_a_turn_has_sent_that_is_not_restored_is_not_wanted_and_its_answer_neither(
    events: RestoredEvents,
) -> None:
    assert not await is_wanted(events, id="p:4-0", response_event="a.done")
    assert not await is_wanted(events, EventTopic.BUSINESS_FACTS, id="p:4-1")
    assert not await is_wanted(events, ANSWER, id="answer:p:4-0", parent_event_id="p:4-0")
    assert not await is_wanted(events, ANSWER, id="any", parent_event_id="p:4-0")


async def test_a_plan_is_found_by_its_other_ids(events: RestoredEvents) -> None:
    assert not await is_wanted(events, id="other:4-0", response_event="a.done")
    assert await is_wanted(events, ANSWER, id="any", parent_event_id="other:3-0")


async def test_what_a_plan_has_sent_that_is_not_restored_at_all_is_not_wanted(events: RestoredEvents) -> None:
    assert not await is_wanted(events, id="unknown:1-0", response_event="a.done")


async def test_goals_signals_and_what_is_no_event_are_wanted(events: RestoredEvents) -> None:
    assert await is_wanted(events, id="goal:p")
    assert await is_wanted(events, EventTopic.PLAN_EVENTS, id="signal-1")
    assert await is_wanted(events, id="p:wait:3")
    for payload in (b"", b"\xc1", b"{", b"[]", b"null"):
        assert await events.is_wanted({}, payload)
