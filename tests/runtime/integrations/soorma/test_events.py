"""Events between Soorma's envelope and ours: nothing is lost, mixed up, or taken from where it may not come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.integrations.soorma import events
from plancast.integrations.soorma.events import join_tenant, mark_id, may_answer, outcome_of, read_event, split_tenant
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventEnvelope

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def written(**fields: Any) -> bytes:
    said = {"id": "e1", "source": "shop", "type": "order.goal", "topic": "action-requests", "correlation_id": "c1"}
    return json.dumps(said | fields).encode()


def test_an_event_keeps_what_it_says_but_for_its_marked_id() -> None:
    said = {"data": {"n": 1}, "response_event": "order.done", "user_id": "u", "session_id": "s", "trace_id": "t"}
    event = read_event(written(**said, parent_event_id="p1"), "action-requests")
    assert (event.id, event.type, event.correlation_id) == ("soorma:e1", "order.goal", "c1")
    assert event.model_dump(include={*said}) == said
    assert event.parent_event_id == "p1"


def test_camel_case_is_read_too() -> None:
    event = read_event(written(responseEvent="order.done", platformTenantId="p", tenantId="t"), "action-requests")
    assert (event.response_event, event.tenant_id) == ("order.done", "p/t")


def test_metadata_from_there_names_no_parent_and_no_inbox() -> None:
    assert read_event(written(metadata={"reply_to": "x", "notify": "y"}), "action-requests").metadata == {}


def test_what_has_no_id_is_the_same_event_when_it_comes_twice() -> None:
    payload = json.dumps({"type": "order.goal", "source": "shop", "data": {}}).encode()
    first, again = (read_event(payload, "action-requests") for _ in range(2))
    assert (first.id, first.correlation_id) == (again.id, again.correlation_id)


@pytest.mark.parametrize(
    ("payload", "topic", "why"),
    [
        (b"{no json", "action-requests", "JSON"),
        (b"[" * 100_000, "action-requests", "JSON"),
        (b"[]", "action-requests", "object"),
        (written(), "gossip", "topic"),
        (written(), "action-results", "published on"),
        (written(type="with blanks"), "action-requests", "event type"),
        (written(type=7), "action-requests", "type"),
        (written(correlation_id="x" * 500), "action-requests", "longer than"),
        (written(data={"n": 2**70}), "action-requests", "64 bits"),
    ],
    ids=["no JSON", "deep", "list", "topic", "other topic", "type", "type no text", "long", "large number"],
)
def test_what_cannot_be_an_event_says_why(payload: bytes, topic: str, why: str) -> None:
    with pytest.raises((InvalidEnvelope, InvalidSubject), match=why):
        read_event(payload, topic)


@given(st.none() | TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT)
def test_no_two_pairs_of_tenants_are_one_tenant(
    platform: str | None, tenant: str | None, other_platform: str | None, other: str | None
) -> None:
    joined = join_tenant(platform, tenant)
    assert split_tenant(joined) == (platform, tenant)
    assert (joined == join_tenant(other_platform, other)) == ((platform, tenant) == (other_platform, other))


@given(TEXT)
def test_ids_come_back_as_they_were(event_id: str) -> None:
    marked = mark_id(event_id)
    assert marked.isascii()
    assert " " not in marked
    assert events.unmark_id(marked) == event_id


def test_an_event_of_ours_is_written_as_theirs() -> None:
    event = EventEnvelope(
        id="p:3:0", source="greeter", type="order.done", topic="action-results", correlation_id="c1", data={"a": 1},
        parent_event_id="soorma:e%201", goal_id="soorma:e%201", tenant_id="p/t", metadata={"notify": "secret"},
    )  # fmt: skip
    said = json.loads(events.write_event(event, "plancast"))
    assert (said["parent_event_id"], said["goal_id"]) == ("e 1", "e 1")
    assert (said["platform_tenant_id"], said["tenant_id"]) == ("p", "t")
    assert said["source"] == "plancast:plancast:greeter"
    assert "metadata" not in said
    assert "user_id" not in said
    assert events.is_own(EventEnvelope.model_validate(said), {}, "plancast")
    assert not events.is_own(EventEnvelope.model_validate(said), {}, "another")


@pytest.mark.parametrize(
    ("data", "result", "error"),
    [
        ({"task_id": "t", "status": "completed", "result": {"n": 1}}, {"n": 1}, None),
        ({"task_id": "t", "status": "failed", "result": None, "error": "no"}, None, "no"),
        ({"request_id": "r", "success": True, "result": [1]}, [1], None),
        ({"request_id": "r", "success": False, "result": None}, None, "the worker reports a failure"),
        ({"success": False, "error": "no"}, None, "no"),
        ({"n": 1}, {"n": 1}, None),
        ({"result": 3, "unit": "m"}, {"result": 3, "unit": "m"}, None),
        ({"order": 7, "status": "failed"}, {"order": 7, "status": "failed"}, None),
        ([1], [1], None),
    ],
    ids=str,
)
def test_answers_of_every_shape_are_understood(data: Any, result: Any, error: str | None) -> None:
    assert outcome_of(data) == events.Outcome(result, error)


@pytest.mark.parametrize(
    ("asked", "said", "may"),
    [
        ("t", None, True),
        ("t", "t", True),
        ("t", "u", False),
        ("p/t", "t", True),
        ("p/t", "q/t", False),
        (None, "t", False),
    ],
)
def test_only_the_tenant_that_was_asked_answers(asked: str | None, said: str | None, may: bool) -> None:
    assert may_answer(asked, said) is may
