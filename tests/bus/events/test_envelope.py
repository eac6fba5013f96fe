"""Event envelopes: what is accepted, and what is there by default."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from plancast_bus.events.envelope import EventEnvelope, EventTopic, utc_text

REQUIRED: dict[str, Any] = {"source": "test", "type": "a.b", "topic": "action-results"}


def envelope(**fields: Any) -> EventEnvelope:
    return EventEnvelope.model_validate({**REQUIRED, **fields})


def test_what_is_left_out_is_as_in_cloudevents() -> None:
    one, other = envelope(), envelope()
    assert one.specversion == "1.0"
    assert (one.data, one.metadata) == ({}, {})
    assert one.id != other.id
    assert one.correlation_id != other.correlation_id
    assert abs(one.time - datetime.now(UTC)) < timedelta(minutes=1)
    assert one.time.utcoffset() == timedelta(0)
    assert one.subject is None


@pytest.mark.parametrize("missing", ["source", "type", "topic"])
def test_source_type_and_topic_are_required(missing: str) -> None:
    fields = {name: value for name, value in REQUIRED.items() if name != missing}
    with pytest.raises(ValidationError, match=missing):
        EventEnvelope.model_validate(fields)


def test_keys_may_be_camel_case_and_are_written_in_snake_case() -> None:
    event = envelope(
        correlationId="c",
        responseEvent="a.done",
        responseTopic="action-results",
        responseSchemaName="r",
        payloadSchemaName="p",
        traceId="t",
        parentEventId="e",
        planId="p",
        goalId="g",
        sessionId="s",
        tenantId="te",
        userId="u",
    )
    assert (event.correlation_id, event.response_event, event.user_id) == ("c", "a.done", "u")
    wire = event.to_wire()
    assert not [name for name in wire if name != name.lower()]
    assert EventEnvelope.model_validate(wire) == event


def test_fields_are_given_by_name_too() -> None:
    event = EventEnvelope(source="s", type="t", topic=EventTopic.PLAN_EVENTS, correlation_id="c")
    assert (event.topic, event.correlation_id) == (EventTopic.PLAN_EVENTS, "c")


def test_event_type_is_an_alias_that_cannot_be_set() -> None:
    event = envelope()
    assert event.event_type == event.type == "a.b"
    with pytest.raises(AttributeError):
        event.event_type = "c.d"  # type: ignore[misc]
    assert "event_type" not in event.to_wire()


def test_an_unknown_topic_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValidationError) as refusal:
        envelope(topic="no-topic")
    for topic in EventTopic:
        assert topic.value in str(refusal.value)


@pytest.mark.parametrize("name", ["type", "id", "correlation_id"])
def test_what_identifies_may_not_be_empty(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        envelope(**{name: ""})


def test_unknown_fields_are_ignored() -> None:
    assert "somethingElse" not in envelope(somethingElse=1).to_wire()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        (datetime(2026, 1, 2, 3, 4, 5), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=-5))),
            datetime(2026, 1, 2, 8, 4, 5, tzinfo=UTC),
        ),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_utc(given: Any, expected: datetime) -> None:
    time = envelope(time=given).time
    assert time == expected
    assert time.utcoffset() == timedelta(0)


@pytest.mark.parametrize("given", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "soon", 1e300])
def test_a_time_that_is_none_in_utc_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="time"):
        envelope(time=given)


@pytest.mark.parametrize("data", [{}, {"a": [1]}, [1, 2], "text", 3, None, True])
def test_data_is_any_json(data: Any) -> None:
    event = envelope(data=data)
    assert event.data == data
    assert EventEnvelope.model_validate(event.to_wire()) == event


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_times_are_written_as_iso_8601(moment: datetime) -> None:
    assert envelope(time=moment).to_wire()["time"] == moment.replace(tzinfo=UTC).isoformat()


@given(st.floats(-6e10, 2.5e11) | st.integers(0, 4 * 10**9) | st.floats(0, 1).map(lambda part: 1_700_000_000 + part))
@example(0.0)
@example(1.9999996)
@example(5.0000005)
def test_seconds_are_written_as_iso_8601(moment: float) -> None:
    assert utc_text(moment) == datetime.fromtimestamp(moment, UTC).isoformat()


def test_absent_fields_are_left_out_on_the_wire() -> None:
    assert set(envelope().to_wire()) == {
        "id",
        "source",
        "type",
        "topic",
        "specversion",
        "time",
        "data",
        "correlation_id",
    }
