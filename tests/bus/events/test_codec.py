"""Encoding of envelopes: both wire formats, and untrusted bytes."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events import codec
from plancast_bus.events.codec import JSON_TYPE, MAX_DEPTH, MSGPACK_TYPE, WireFormat
from plancast_bus.events.envelope import EventEnvelope, EventTopic, from_wire_fields

FORMATS: list[WireFormat] = ["msgpack", "json"]

any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
words = st.text(min_size=1, max_size=20)
envelopes = st.builds(
    EventEnvelope,
    source=st.text(max_size=20),
    type=words,
    topic=st.sampled_from(EventTopic),
    id=words,
    data=any_json,
    time=st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    subject=st.none() | st.text(max_size=5),
    correlation_id=words,
    response_event=st.none() | words,
    tenant_id=st.none() | words,
    metadata=st.dictionaries(st.text(max_size=5), any_json, max_size=3),
)


def event(data: Any = None, **fields: Any) -> EventEnvelope:
    return EventEnvelope(
        source="s", type="t", topic=EventTopic.ACTION_RESULTS, data={} if data is None else data, **fields
    )


def wire(**fields: Any) -> dict[str, Any]:
    return {"source": "s", "type": "t", "topic": "action-results", **fields}


@pytest.mark.parametrize("wire_format", FORMATS)
@given(sent=envelopes)
def test_an_envelope_comes_back_as_it_was(wire_format: WireFormat, sent: EventEnvelope) -> None:
    payload = codec.encode(sent, wire_format)
    assert codec.decode(payload, codec.CONTENT_TYPES[wire_format]) == sent


@given(sent=envelopes)
def test_both_formats_say_the_same(sent: EventEnvelope) -> None:
    read = {name: codec.decode(codec.encode(sent, name), codec.CONTENT_TYPES[name]) for name in FORMATS}
    assert read["json"] == read["msgpack"]


@given(
    payload=st.binary(max_size=200),
    content_type=st.sampled_from([None, JSON_TYPE, MSGPACK_TYPE, "", "text/plain"]) | st.text(),
)
def test_any_bytes_are_an_envelope_or_an_invalid_one(payload: bytes, content_type: str | None) -> None:
    check_nothing_but_invalid(payload, content_type)


@given(fields=st.dictionaries(st.text() | st.sampled_from([*EventEnvelope.model_fields, "correlationId"]), any_json))
def test_any_object_is_an_envelope_or_an_invalid_one(fields: dict[str, Any]) -> None:
    check_nothing_but_invalid(json.dumps({**wire(), **fields}).encode(), JSON_TYPE)
    check_nothing_but_invalid(msgpack.packb({**wire(), **fields}), MSGPACK_TYPE)


@given(sent=envelopes, place=st.integers(0, 500), byte=st.integers(0, 255), wire_format=st.sampled_from(FORMATS))
def test_a_damaged_envelope_is_an_envelope_or_an_invalid_one(
    sent: EventEnvelope, place: int, byte: int, wire_format: WireFormat
) -> None:
    payload = bytearray(codec.encode(sent, wire_format))
    payload[place % len(payload)] = byte
    check_nothing_but_invalid(bytes(payload), codec.CONTENT_TYPES[wire_format])


odd = st.none() | st.text(max_size=3) | st.integers() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda time: time.isoformat() + "+00:00")
other_times = st.text("0123456789-:.TZW+ ", max_size=34) | st.from_regex(
    r"[0-9]{3}[0-9W]-[0-9W]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,7})?(Z|[+-][0-9]{2}:[0-9]{2})?",
    fullmatch=True,
)


@given(
    sent=envelopes,
    changes=st.dictionaries(st.sampled_from([*EventEnvelope.model_fields, "correlationId", "else"]), odd, max_size=2),
    time=times | other_times,
    without=st.sets(st.sampled_from([*EventEnvelope.model_fields]), max_size=2),
)
def test_what_is_read_by_a_glance_is_what_the_schema_would_read(
    sent: EventEnvelope, changes: dict[str, Any], time: str, without: set[str]
) -> None:
    assert from_wire_fields(sent.to_wire()) in (sent, None)
    fields = {
        name: value for name, value in ({**sent.to_wire(), "time": time} | changes).items() if name not in without
    }
    read = from_wire_fields(fields)
    if read is None:
        return
    by_schema = EventEnvelope.model_validate(fields)
    assert read == by_schema
    assert (list(read.__dict__), read.model_fields_set) == (list(by_schema.__dict__), by_schema.model_fields_set)
    assert list(read.to_wire().items()) == list(by_schema.to_wire().items())
    assert read.model_copy(deep=True) == by_schema


packable = st.none() | st.text(max_size=3) | st.integers(-(2**63), 2**64 - 1) | st.just({}) | st.just({"a": [1.5]})


@given(
    sent=envelopes,
    changes=st.dictionaries(st.sampled_from([*EventEnvelope.model_fields, "correlationId"]), packable, max_size=2),
    without=st.sets(st.sampled_from([*EventEnvelope.model_fields]), max_size=2),
    twice=st.none() | st.sampled_from([*EventEnvelope.model_fields]),
)
def test_bytes_that_are_passed_on_equal_the_encoding_of_their_event(
    sent: EventEnvelope, changes: dict[str, Any], without: set[str], twice: str | None
) -> None:
    fields = {name: value for name, value in (sent.to_wire() | changes).items() if name not in without}
    payload = msgpack.packb(fields)
    if twice is not None:
        count = len(fields) + 1
        header = bytes((0x80 | count,)) if count < 16 else b"\xde" + count.to_bytes(2, "big")
        body = payload[1 if len(fields) < 16 else 3 :]
        payload = header + msgpack.packb(twice) + msgpack.packb("hidden") + body
    check_what_stands_for_an_event(payload)


@given(sent=envelopes, place=st.integers(0, 500), byte=st.integers(0, 255))
def test_damaged_bytes_do_not_stand_for_an_event(sent: EventEnvelope, place: int, byte: int) -> None:
    payload = bytearray(codec.encode(sent))
    payload[place % len(payload)] = byte
    check_what_stands_for_an_event(bytes(payload))


def test_what_is_encoded_stands_for_its_event_unless_it_has_many_fields() -> None:
    sent = event({"n": 1}, metadata={"a": 1}, time=datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    assert codec.decode_packed(codec.encode(sent)) == (sent, True)
    fuller = sent.model_copy(update=dict.fromkeys(("subject", "trace_id", "plan_id", "goal_id", "user_id"), "x"))
    fuller = fuller.model_copy(update=dict.fromkeys(("tenant_id", "session_id", "response_event"), "x"))
    assert codec.decode_packed(codec.encode(fuller)) == (fuller, False)


@pytest.mark.parametrize(
    "changes",
    [{"metadata": {}}, {"metadata": None}, {"user_id": None}, {"time": "2026-01-02T03:04:05Z"}, {"correlationId": "c"}],
)
def test_bytes_that_say_it_in_another_way_do_not_stand_for_an_event(changes: dict[str, Any]) -> None:
    sent = event({"n": 1}, time=datetime(2026, 1, 2, 3, 4, 5, 6, UTC)).to_wire()
    assert codec.decode_packed(codec.pack(sent))[1]
    assert not codec.decode_packed(codec.pack(sent | changes))[1]


@pytest.mark.parametrize("name", ["data", "specversion"])
def test_bytes_that_leave_out_what_is_always_written_do_not_stand_for_an_event(name: str) -> None:
    sent = event({"n": 1}, time=datetime(2026, 1, 2, 3, 4, 5, 6, UTC)).to_wire()
    del sent[name]
    read, in_full = codec.decode_packed(codec.pack(sent))
    assert read is not None
    assert not in_full


def check_what_stands_for_an_event(payload: bytes) -> None:
    """It is read as :func:`codec.decode` reads it, or not at all, and unpacks to the event as it is written."""
    try:
        read = codec.decode(payload, MSGPACK_TYPE, defaults=DEFAULTS)
    except InvalidEnvelope:
        read = None
    try:
        packed, in_full = codec.decode_packed(payload)
    except InvalidEnvelope:
        assert read is None
        return
    assert packed in (read, None)
    if in_full:
        assert packed is not None
        assert msgpack.unpackb(payload) == packed.to_wire()


DEFAULTS = {"id": "e1", "source": "unknown", "topic": "action-results", "type": "a.b", "correlation_id": "c1"}


def test_what_is_written_is_read_by_a_glance() -> None:
    sent = event({"n": 1}, tenant_id="t", metadata={"a": 1}, time=datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    assert from_wire_fields(sent.to_wire()) == sent


def check_nothing_but_invalid(payload: bytes, content_type: str | None) -> None:
    """Every decodable event can be encoded again, in both formats."""
    try:
        read = codec.decode(payload, content_type)
    except InvalidEnvelope:
        return
    for wire_format in FORMATS:
        assert codec.decode(codec.encode(read, wire_format), codec.CONTENT_TYPES[wire_format]) == read


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b"", JSON_TYPE),
        (b"", MSGPACK_TYPE),
        (b"[]", JSON_TYPE),
        (b"null", None),
        (b'"text"', None),
        (b"{", None),
        (b'{"a":1}{', None),
        (b"\xff\xfe", None),
        (b"\x80\x80", MSGPACK_TYPE),
        (b"\xc1", MSGPACK_TYPE),
        (b"\xdd\xff\xff\xff\xff", MSGPACK_TYPE),
        (b"\xdf\xff\xff\xff\xff", MSGPACK_TYPE),
        (b"\xc6\xff\xff\xff\xff", MSGPACK_TYPE),
        (b"[" * 100_000, JSON_TYPE),
        (b'{"a":' * 100_000, JSON_TYPE),
        (b"\x91" * 100_000, MSGPACK_TYPE),
        (b"\x81\xa1a" * 100_000, MSGPACK_TYPE),
        (b"1" * 10_000, JSON_TYPE),
    ],
)
def test_what_is_no_object_is_refused(payload: bytes, content_type: str | None) -> None:
    with pytest.raises(InvalidEnvelope):
        codec.decode(payload, content_type)


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "", "application/x-python"])
def test_an_unknown_content_type_is_refused_with_what_is_known(content_type: str) -> None:
    payload = json.dumps(wire()).encode()
    if not content_type:
        assert codec.decode(payload, content_type).type == "t"
        return
    with pytest.raises(InvalidEnvelope, match="application/json or application/msgpack"):
        codec.decode(payload, content_type)


@pytest.mark.parametrize(
    "content_type", [None, JSON_TYPE, "application/json; charset=utf-8", "APPLICATION/JSON", "application/ce+json"]
)
def test_json_has_many_names(content_type: str | None) -> None:
    assert codec.decode(json.dumps(wire()).encode(), content_type).type == "t"


@pytest.mark.parametrize("content_type", ["application/x-msgpack", "application/vnd.msgpack", MSGPACK_TYPE])
def test_msgpack_has_several_names(content_type: str) -> None:
    assert codec.decode(msgpack.packb(wire()), content_type).type == "t"


@pytest.mark.parametrize(
    "data", ["NaN", "Infinity", "-Infinity", "1e999", str(2**64), str(-(2**63) - 1), r'"\ud800"', r'{"\udfff":1}']
)
def test_json_beyond_json_is_refused(data: str) -> None:
    payload = json.dumps(wire(data={"x": 0})).replace('{"x": 0}', f'{{"x": {data}}}')
    assert data in payload
    with pytest.raises(InvalidEnvelope):
        codec.decode(payload.encode(), JSON_TYPE)


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        float("nan"),
        float("inf"),
        {1: "integer key"},
        {b"bytes": "key"},
        msgpack.ExtType(5, b"x"),
        msgpack.Timestamp(1, 2),
    ],
)
def test_msgpack_beyond_json_is_refused(data: Any) -> None:
    with pytest.raises(InvalidEnvelope):
        codec.decode(msgpack.packb(wire(data={"x": data})), MSGPACK_TYPE)


@pytest.mark.parametrize("wire_format", FORMATS)
@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        float("nan"),
        float("-inf"),
        {1: "integer key"},
        {"a": {2, 3}},
        datetime(2026, 1, 1, tzinfo=UTC),
        2**64,
        "\ud800",
        {"\udfff": 1},
        object(),
    ],
)
def test_undecodable_values_are_not_encoded(data: Any, wire_format: WireFormat) -> None:
    with pytest.raises(InvalidEnvelope):
        codec.encode(event({"x": data}), wire_format)


@pytest.mark.parametrize("wire_format", FORMATS)
def test_endless_data_is_not_written(wire_format: WireFormat) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidEnvelope, match="nested"):
        codec.encode(event(endless), wire_format)


@pytest.mark.parametrize("wire_format", FORMATS)
def test_nesting_has_a_limit_that_is_the_same_for_readers_and_writers(wire_format: WireFormat) -> None:
    def nested(levels: int) -> Any:
        data: Any = "leaf"
        for _ in range(levels):
            data = [data]
        return data

    deepest = event(nested(MAX_DEPTH))
    assert codec.decode(codec.encode(deepest, wire_format), codec.CONTENT_TYPES[wire_format]) == deepest
    with pytest.raises(InvalidEnvelope, match="nested"):
        codec.encode(event(nested(MAX_DEPTH + 1)), wire_format)
    with pytest.raises(InvalidEnvelope, match="nested"):
        codec.decode(codec.dump(wire(data=nested(MAX_DEPTH + 1)), wire_format), codec.CONTENT_TYPES[wire_format])


def test_fields_of_the_subject_are_defaults_for_plain_publishers() -> None:
    defaults = {"topic": "action-results", "type": "a.b", "correlation_id": "c", "id": "m1"}
    read = codec.decode(b'{"source":"cli","data":{"n":1}}', None, defaults=defaults)
    assert (read.topic, read.type, read.correlation_id, read.id) == (
        EventTopic.ACTION_RESULTS,
        "a.b",
        "c",
        "m1",
    )
    assert read.data == {"n": 1}


@pytest.mark.parametrize("name", ["correlation_id", "correlationId"])
def test_fields_of_the_event_take_precedence_over_defaults(name: str) -> None:
    payload = json.dumps(wire(id="own", **{name: "own"})).encode()
    read = codec.decode(payload, None, defaults={"correlation_id": "c", "id": "m1", "type": "other"})
    assert (read.correlation_id, read.id, read.type) == ("own", "own", "t")


@pytest.mark.parametrize("name", ["correlation_id", "correlationId"])
def test_a_field_that_is_null_counts_as_left_out(name: str) -> None:
    payload = json.dumps(wire(id=None, **{name: None})).encode()
    read = codec.decode(payload, None, defaults={"correlation_id": "c", "id": "m1"})
    assert (read.correlation_id, read.id) == ("c", "m1")


def test_the_error_names_the_fields_and_keeps_their_values_to_itself() -> None:
    with pytest.raises(InvalidEnvelope) as refusal:
        codec.decode(json.dumps({"type": 5, "topic": "s3cret", "data": "s3cret"}).encode())
    assert all(name in str(refusal.value) for name in ("source", "type", "topic"))
    assert "s3cret" not in str(refusal.value)


@given(value=any_json | st.binary() | st.lists(st.binary()))
def test_packed_values_come_back_as_they_were(value: Any) -> None:
    assert codec.unpack(codec.pack(value)) == value


def test_packing_a_large_value_leaves_no_large_buffer() -> None:
    codec.pack("x")
    tracemalloc.start()
    try:
        size = len(codec.pack("x" * 30_000_000))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak > size > 30_000_000
    assert kept < codec.KEPT_BYTES
