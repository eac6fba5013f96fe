"""CloudEvents 1.0 over NATS, and trace context in headers, of other publishers and of plancast."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import JSON_TYPE, MSGPACK_TYPE, decode, encode, pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.nats_binding import MAX_ATTRIBUTES, as_cloud_event, read_message
from plancast_bus.events.trace_context import MAX_STATE, read_trace, trace_id_of, write_trace

SUBJECT_SAYS = {
    "id": "seq",
    "source": "unknown",
    "topic": "action-requests",
    "type": "greet.goal",
    "correlation_id": "p",
}
CORE = {"ce-specversion": "1.0", "ce-id": "A234", "ce-source": "/shop/till%201", "ce-type": "greet.goal"}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
envelopes = st.builds(
    EventEnvelope,
    id=text.filter(bool),
    source=text,
    type=text.filter(bool),
    topic=st.sampled_from(EventTopic),
    data=json_value,
    correlation_id=text.filter(bool),
    subject=st.none() | text,
    tenant_id=st.none() | text,
    parent_event_id=st.none() | text,
    trace_id=st.none() | text,
    metadata=st.dictionaries(text, json_value, max_size=3),
)


def read(headers: dict[str, str], payload: bytes, **said: str) -> EventEnvelope:
    """The event in a message, as a plan host reads it."""
    message = read_message(headers, payload)
    return decode(message.payload, message.content_type, defaults={**SUBJECT_SAYS, **said})


# Binary mode.


def test_an_event_in_binary_mode_is_read_with_its_attributes_and_extensions() -> None:
    headers = {
        **CORE,
        "ce-time": "2026-01-02T03:04:05Z",
        "ce-subject": "order%207",
        "ce-correlationid": "p",
        "ce-tenantid": "acme",
        "ce-responseevent": "greet.done",
        "ce-partitionkey": "k",
        "content-type": "application/json; charset=utf-8",
    }
    event = read(headers, b'{"name": "Ada"}')
    assert (event.id, event.source, event.type) == ("A234", "/shop/till 1", "greet.goal")
    assert (event.subject, event.time.isoformat()) == ("order 7", "2026-01-02T03:04:05+00:00")
    assert (event.correlation_id, event.tenant_id, event.response_event) == ("p", "acme", "greet.done")
    assert event.data == {"name": "Ada"}
    assert event.metadata == {"partitionkey": "k"}


def test_absent_fields_are_taken_from_the_subject() -> None:
    event = read({"CE-SpecVersion": "1.0", "Ce-Id": "x"}, b"")
    assert (event.id, event.type, event.topic, event.correlation_id) == ("x", "greet.goal", "action-requests", "p")
    assert (event.source, event.data) == ("unknown", {})


@pytest.mark.parametrize(
    ("content_type", "payload", "data"),
    [
        (None, b"[1, 2]", [1, 2]),
        ("application/vnd.shop+json", b'"x"', "x"),
        (MSGPACK_TYPE, pack({"n": 1}), {"n": 1}),
        ("text/plain", "naïve".encode(), "naïve"),
    ],
)
def test_the_content_type_determines_the_decoding(content_type: str | None, payload: bytes, data: Any) -> None:
    headers = CORE if content_type is None else {**CORE, "Content-Type": content_type}
    assert read(headers, payload).data == data


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({"Content-Type": "image/png"}, b"\x89PNG"),
        ({"Content-Type": "application/json"}, b"{"),
        ({"Content-Type": "text/plain"}, b"\xff"),
        ({"ce-metadata": "nonsense"}, b'{"id": "forged", "source": "x"}'),
        ({"ce-metadata": "[1]"}, b"{}"),
        ({"ce-source": "%ff"}, b"{}"),
        ({"ce-time": "yesterday"}, b"{}"),
        ({"Content-Type": "application/cloudevents-batch+json"}, b"[]"),
    ],
)
def test_an_event_that_cannot_be_read_is_refused_and_never_taken_for_another(
    headers: dict[str, str], payload: bytes
) -> None:
    with pytest.raises(InvalidEnvelope):
        read({**CORE, **headers}, payload)


@given(
    headers=st.dictionaries(st.sampled_from([*CORE, "content-type", "ce-metadata", "ce-x"]) | text, text),
    payload=st.binary(),
)
def test_reading_any_headers_raises_nothing_but_that_it_is_no_event(headers: dict[str, str], payload: bytes) -> None:
    message = read_message(headers, payload)
    with suppress(InvalidEnvelope):
        decode(message.payload, message.content_type, defaults=SUBJECT_SAYS)


# Structured mode.


def test_an_event_in_structured_mode_is_read() -> None:
    body = {
        "specversion": "1.0",
        "id": "A234",
        "source": "/shop",
        "type": "greet.goal",
        "correlationid": "p",
        "sessionid": "today",
        "partitionkey": "k",
        "datacontenttype": "application/json",
        "data": {"name": "Ada"},
    }
    headers = {"content-type": "application/cloudevents+json; charset=UTF-8"}
    event = read(headers, json.dumps(body).encode())
    assert (event.id, event.session_id, event.correlation_id, event.topic) == ("A234", "today", "p", "action-requests")
    assert (event.data, event.metadata) == ({"name": "Ada"}, {"partitionkey": "k"})
    encoded = {**body, "data_base64": "eyJuIjogMX0="}
    del encoded["data"]
    assert read(headers, json.dumps(encoded).encode()).data == {"n": 1}
    for wrong in ({"data_base64": "!"}, {"data_base64": "iVBORw==", "datacontenttype": "image/png"}):
        with pytest.raises(InvalidEnvelope):
            read(headers, json.dumps({**encoded, **wrong}).encode())


# As we write them.


@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
@given(event=envelopes)
def test_what_is_written_in_binary_mode_is_read_as_the_same_event(wire_format: Any, event: EventEnvelope) -> None:
    content_type = {"json": JSON_TYPE, "msgpack": MSGPACK_TYPE}[wire_format]
    before = encode(event, wire_format)
    payload, headers = as_cloud_event(before, content_type)
    assert all(value.isascii() and value.isprintable() and value == value.strip() for value in headers.values())
    after = read_message({**headers, "Content-Type": content_type}, payload)
    assert decode(after.payload, after.content_type) == decode(before, content_type)
    assert len(after.payload) <= len(before) + 8  # so that what was let out is let in


def test_an_event_with_too_many_attributes_for_headers_goes_out_as_an_envelope() -> None:
    event = EventEnvelope(source="s", type="t", topic=EventTopic.BUSINESS_FACTS, metadata={"k": "x" * MAX_ATTRIBUTES})
    payload = encode(event)
    assert as_cloud_event(payload, MSGPACK_TYPE) == (payload, {})
    assert as_cloud_event(b"no event", "text/plain") == (b"no event", {})


# Trace context.


@pytest.mark.parametrize(
    ("parent", "state", "trace"),
    [
        (TRACEPARENT, None, TRACEPARENT),
        (TRACEPARENT, "a=1, b=2", f"{TRACEPARENT} a=1, b=2"),
        (TRACEPARENT, "x" * (MAX_STATE + 1), TRACEPARENT),
        (TRACEPARENT, "a=1\r\nNats-Msg-Id: forged", TRACEPARENT),
        ("cc" + TRACEPARENT[2:] + "-what-the-future-says", None, TRACEPARENT),
        ("cc" + TRACEPARENT[2:] + "what-it-may-not", None, ""),
        (TRACEPARENT + "-more", None, ""),
        ("00-" + "0" * 32 + TRACEPARENT[35:], None, ""),
        (None, "a=1", ""),
        ("x" * 60_000, "y" * 60_000, ""),
    ],
)
def test_trace_context_is_read_when_it_is_well_formed_and_never_longer_than_it_may_be(
    parent: str | None, state: str | None, trace: str
) -> None:
    assert read_trace(parent, state) == trace
    if trace:
        headers: dict[str, str] = {}
        write_trace(trace, headers)
        assert read_trace(headers["traceparent"], headers.get("tracestate")) == trace
        assert trace_id_of(trace) == "0af7651916cd43dd8448eb211c80319c"


@given(parent=text | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"), state=text)
def test_no_header_from_outside_makes_more_than_two_bounded_lines(parent: str, state: str) -> None:
    trace = read_trace(parent, state)
    assert len(trace) <= 55 + 1 + MAX_STATE
    assert trace.isprintable() or not trace
