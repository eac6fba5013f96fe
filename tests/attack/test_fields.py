"""Fields that become a subject or a header: whatever is in them, no connection ends, and the next goal is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.aio.msg import Msg
from tests.attack.running import GOAL, PATIENCE, TASK, Running

from plancast import BusUnavailable
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.effects import Respond

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "x" * 5000
NO_INBOXES = {
    "5,000 characters": f"_INBOX.{LONG}",
    "the API": "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS",
    "a checkpoint": "plancast-store.checkpoints.x",
    "a wildcard": "_INBOX.>",
    "a wildcard token": "_INBOX.a.*",
    "a blank": "_INBOX.a b",
    "a line break": "_INBOX.a\r\nPUB x 0\r\n",
    "no token": "_INBOX.",
    "an empty token": "_INBOX.a..b",
    "no text": 7,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(nats_server: NatsServer) -> AsyncIterator[Running]:
    async with Running(nats_server.url) as app:
        yield app


def goal(**fields: Any) -> bytes:
    return json.dumps({"data": {"n": 1}, **fields}).encode()


@pytest.mark.attack(who="client", what="a goal is to be told of on no inbox", expected="a dead letter that says so")
@pytest.mark.parametrize("kind", NO_INBOXES)
async def test_a_goal_is_told_of_on_inboxes_only(running: Running, kind: str) -> None:
    before = await running.bus.dead_letters.count()
    await running.publish(goal(metadata={"notify": NO_INBOXES[kind]}))
    letter = (await running.letters(before + 1))[-1]
    assert letter.reason == "undecodable"
    assert "metadata.notify" in letter.detail
    assert len(letter.detail) < 300
    await running.serves()
    assert not running.broken


@pytest.mark.attack(who="client", what="a parent, or where to answer, that is no id", expected="a dead letter")
@pytest.mark.parametrize("name", ["reply_to", "parent_plan_id"])
@pytest.mark.parametrize("value", [LONG, "", 7], ids=["5,000 characters", "empty", "no text"])
async def test_a_parent_is_an_id(running: Running, name: str, value: Any) -> None:
    before = await running.bus.dead_letters.count()
    await running.publish(goal(metadata={"parent_plan_id": "p", "reply_to": "p"} | {name: value}))
    letter = (await running.letters(before + 1))[-1]
    assert f"metadata.{name}" in letter.detail
    await running.serves()
    assert not running.broken


NAMES = ("id", "source", "subject", "session_id", "user_id", "tenant_id", "trace_id", "goal_id", "plan_id",
         "parent_event_id", "payload_schema_name", "response_schema_name", "specversion")  # fmt: skip


@pytest.mark.attack(who="publisher", what="an id or a name of 5,000 characters", expected="a dead letter")
@pytest.mark.parametrize("event_type", [GOAL, TASK])
async def test_ids_and_names_have_a_length(running: Running, event_type: str) -> None:
    before = await running.bus.dead_letters.count()
    for name in NAMES:
        await running.publish(goal(**{name: LONG}), event_type=event_type)
    await running.publish(goal(metadata={"session_id": LONG}) if event_type == GOAL else goal(source=LONG))
    letters = (await running.letters(before + len(NAMES) + 1))[-len(NAMES) - 1 :]
    details = " ".join(each.detail for each in letters)
    assert all(f"{name}: it has 5,000 characters" in details for name in NAMES)
    await running.serves()
    assert not running.broken


BREAKS = "a\r\nPUB plancast-store.checkpoints.x 1\r\n\r\nNats-Rollup: all"


@pytest.mark.attack(who="publisher", what="line breaks in every field", expected="one answer, nothing else is written")
async def test_line_breaks_are_no_commands(running: Running) -> None:
    seen: list[str] = []

    async def note(subject: str, payload: bytes, content_type: str | None) -> None:
        seen.append(subject)

    spy = await running.bus.subscribe("plancast-store.>", note)
    before = await running.bus.dead_letters.count()
    names = [name for name in NAMES if name != "specversion"]
    for name in (*names, "response_event", "response_topic"):
        plan = uuid4().hex
        await running.publish(goal(**{name: BREAKS}), correlation=plan)
        if not name.startswith("response_"):
            result = await running.client.plan(plan).result(timeout=PATIENCE)
            assert result["start"] == {"n": 2}, name
    event, topic = sorted(each.detail for each in (await running.letters(before + 2))[-2:])
    assert "is no event type" in event
    assert "is not a valid EventTopic" in topic
    await running.serves()
    await spy.close()
    assert not seen
    assert not running.broken


async def test_ids_that_differ_by_a_line_break_are_two(running: Running) -> None:
    """As headers both would read the same, and a stream would drop the second one."""
    plans = [uuid4().hex, uuid4().hex]
    same = uuid4().hex
    for plan, event_id in zip(plans, (f"{same}\nb", f"{same} b"), strict=True):
        event = EventEnvelope(
            id=event_id, source="t", type=GOAL, topic="action-requests", data={"n": 1}, correlation_id=plan
        )
        await running.bus.publish(event)
    for plan in plans:
        assert await running.client.plan(plan).result(timeout=PATIENCE)


@pytest.mark.attack(who="client", what="a session's id of 5,000 characters", expected="refused at once")
@pytest.mark.parametrize("name", ["session_id", "user_id"])
async def test_a_client_is_told_at_once(running: Running, name: str) -> None:
    with pytest.raises(InvalidEnvelope, match=name):
        await running.client.submit(GOAL, {"n": 1}, **{name: LONG})


async def test_what_a_goal_cannot_be_told_on_is_not_published_on_from_a_checkpoint_either(running: Running) -> None:
    """An earlier version may have committed it."""
    for notify in (f"_INBOX.{LONG}", "_INBOX.a b", "plancast-store.checkpoints.x"):
        effect = Respond("action-results", uuid4().hex, "x.done", b"{}", uuid4().hex, "application/json", notify)
        await running.bus.emit([effect])
    assert await running.bus.dead_letters.count() is not None
    assert not running.broken


@pytest.mark.attack(who="app code", what="a subject or header that no server takes", expected="an error, no lost link")
async def test_what_would_end_the_connection_is_not_sent(running: Running) -> None:
    requester = running.bus._publisher._requester
    for subject in (
        f"plancast.{LONG}",
        "plancast.a b",
        "plancast.a\r\nb",
        "plancast.\ud800",
        "",
        "plancast.*.x",
        "x.>",
    ):
        with pytest.raises(InvalidSubject):
            await requester.begin(subject, b"", {"A": "b"}, lambda ack: ack)
        with pytest.raises(InvalidSubject):
            await requester.send(subject, b"")
        with pytest.raises((InvalidSubject, BusUnavailable)):
            await running.bus.subscribe(subject.replace("*", "").replace(">", ""), _ignore)
    with pytest.raises(InvalidEnvelope):
        await requester.begin("plancast.a", b"", {"A": "\ud800"}, lambda ack: ack)
    with pytest.raises(InvalidEnvelope):
        await requester.send("plancast.a", b"", {"A": "\ud800"})
    heard: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def hear(message: Msg) -> None:
        heard.put_nowait(dict(message.headers or {}))

    client = running.bus._connection.client
    listening = await client.subscribe(subject := f"heard.{uuid4().hex}", cb=hear)
    requester.send_one_way(subject, b"", {"A": "a\r\nNats-Rollup: all"})
    async with asyncio.timeout(PATIENCE):
        assert (await heard.get()).keys() == {"A"}
    await listening.unsubscribe()
    for reply in (LONG, "a b", "a\r\nb", "a.>"):
        with pytest.raises(Exception, match="invalid subject"):
            await client.publish("plancast.a", b"", reply)
    await running.serves()
    assert not running.broken


async def _ignore(subject: str, payload: bytes, content_type: str | None) -> None:
    pass


TEXT = st.text(max_size=30) | st.sampled_from([LONG, BREAKS, "", "a.b", "*", ">", "$JS.API.X", "\x00", "\u2028", "."])
ANY = st.none() | st.integers() | st.lists(TEXT, max_size=2) | TEXT
FIELDS = st.dictionaries(
    st.sampled_from([*(set(EventEnvelope.model_fields) - {"metadata", "correlation_id", "type", "topic"})]),
    ANY,
    max_size=6,
)
METADATA = st.dictionaries(
    st.sampled_from(["notify", "reply_to", "parent_plan_id", "session_id", "response_event", "traceparent", "by"]),
    ANY | st.sampled_from([*map(str, NO_INBOXES.values())]),
    max_size=4,
)


@pytest.mark.attack(who="stranger", what="anything in any field", expected="the next goal is served")
async def test_whatever_is_in_a_field_the_next_goal_is_served(running: Running) -> None:
    loop, sent = asyncio.get_running_loop(), []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(fields=FIELDS, metadata=METADATA, event_type=st.sampled_from([GOAL, TASK]))
    def publish(fields: dict[str, Any], metadata: dict[str, Any], event_type: str) -> None:
        payload = json.dumps({"data": {"n": 1}, **fields, "metadata": metadata}).encode()
        sending = asyncio.run_coroutine_threadsafe(running.publish(payload, event_type=event_type), loop)
        sending.result(PATIENCE)
        sent.append(payload)

    await asyncio.to_thread(publish)
    assert len(sent) >= 50
    await running.serves()
    async with asyncio.timeout(PATIENCE):
        while running.dispatcher.in_flight.out or running.dispatcher.in_flight.waiting:
            await asyncio.sleep(0.05)
    await running.serves()
    assert not running.broken
