"""The state of a schedule, as a function of time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.errors import InvalidSchedule
from plancast.schedules.definition import MAX_DATA, define
from plancast.schedules.record import DONE_SECONDS, LATE_SECONDS, MAX_QUEUED, ScheduleRecord
from plancast_bus.errors import InvalidEnvelope

NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def record_of(**options: Any) -> ScheduleRecord:
    given = {"every": 60.0, **options} if not {"cron", "at"} & set(options) else options
    return ScheduleRecord.create(define("s", "report.wanted", now=NOW, **given), "uid", NOW)


def done(record: ScheduleRecord, now: float, over: bool = True) -> ScheduleRecord:
    """Decide, send, and let the plans end."""
    ended = [each.id for each in record.of("started")] if over else []
    record = record.advance(now, ended)
    return record.settle({"started": [each.id for each in record.of("due")]})


def states(record: ScheduleRecord) -> list[str]:
    return [each.state for each in record.firings]


def test_firings_are_decided_in_order_and_once() -> None:
    record = record_of(overlap="allow", catch_up=3600)
    assert record.next_at == NOW + 60
    assert record.advance(NOW + 59) is record
    record = record.advance(NOW + 185)
    assert [each.time - NOW for each in record.of("due")] == [60, 120, 180]
    assert record.next_at == NOW + 240
    assert record.advance(NOW + 185) is record
    assert len({record.plan_id(each) for each in record.firings}) == 3


@given(st.floats(1.7e9, 1.9e9), st.sampled_from([1.0, 7.5, 0.1 + 1.1, 3600.0, 86_400.0]))
def test_an_interval_begins_to_count_with_the_creation(now: float, every: float) -> None:
    record = ScheduleRecord.create(define("s", "report.wanted", every=every, now=now), "uid", now)
    for number in range(1, 4):
        assert record.next_at == pytest.approx(now + number * every, abs=0.001)
        record = record.advance(record.next_at)


def test_a_firing_is_skipped_while_a_run_is_not_over() -> None:
    record = done(record_of(), NOW + 60)
    record = done(record, NOW + 120, over=False)
    record = done(record, NOW + 180)
    assert states(record) == ["ended", "skipped", "started"]


def test_skipped_firings_do_not_make_a_run_forgotten() -> None:
    record = done(record_of(), NOW + 60)
    for minute in range(2, 300):
        record = done(record, NOW + 60 * minute, over=False)
    assert states(record).count("started") == 1
    assert len(record.firings) < 30


def test_queued_firings_run_one_after_another_and_are_bounded() -> None:
    record = done(record_of(overlap="queue"), NOW + 60)
    for minute in range(2, MAX_QUEUED + 5):
        record = record.advance(NOW + 60 * minute)
    assert len(record.of("queued")) == MAX_QUEUED
    assert len(record.of("skipped")) == 3
    first = record.of("queued")[0]
    now = NOW + 60 * (MAX_QUEUED + 4)
    assert record.advance(now) is record
    record = record.advance(now, [each.id for each in record.of("started")])
    assert [each.id for each in record.of("due")] == [first.id]


def test_late_firings_are_missed_unless_they_are_caught_up() -> None:
    missed = record_of(overlap="allow").advance(NOW + 3600 + 30)
    assert [each.time - NOW for each in missed.of("due")] == [3600]
    assert missed.of("missed")
    assert missed.next_at == NOW + 3660
    caught = record_of(overlap="allow", catch_up=600).advance(NOW + 3600)
    assert [each.time - NOW for each in caught.of("due")] == list(range(3000, 3601, 60))


def test_a_dispatcher_that_dies_misses_nothing() -> None:
    record = record_of(every=1, overlap="allow").advance(NOW + 1 + LATE_SECONDS)
    assert len(record.of("due")) == 11
    assert not record.of("missed")


def test_a_long_outage_is_caught_up_in_steps() -> None:
    record, now, times = record_of(overlap="allow", catch_up=86_400), NOW + 3 * 86_400, []
    while (changed := record.advance(now)) is not record:
        times += [each.time for each in changed.of("due")]
        record = changed.settle({"started": [each.id for each in changed.of("due")]})
    assert len(times) == len(set(times)) == 1441
    assert record.next_at == now + 60


def test_what_is_paused_is_not_made_up() -> None:
    record = done(record_of(overlap="queue"), NOW + 60).advance(NOW + 120)
    paused = record.pause()
    assert states(paused) == ["started", "skipped"]
    assert paused.next_at is None
    assert paused.advance(NOW + 600) is paused
    resumed = paused.resume(NOW + 600)
    assert resumed.next_at == NOW + 660
    assert resumed.resume(NOW + 700) is resumed


def test_a_trigger_starts_one_plan_also_while_paused() -> None:
    record = record_of().pause()
    once = record.trigger("a", NOW + 5)
    assert once.trigger("a", NOW + 6) == once
    assert [once.plan_id(each) for each in once.of("due")] == ["s:uid:t-a"]


def test_a_backfill_leaves_out_what_has_started() -> None:
    record = done(record_of(), NOW + 60)
    record = record.backfill([NOW, NOW + 60])
    assert [each.time for each in record.of("queued")] == [NOW]
    assert record.backfill([NOW]) == record
    with pytest.raises(InvalidSchedule, match="1000"):
        record.backfill(NOW - 60 * each for each in range(1, 1002))


def test_a_backfill_makes_up_what_was_skipped() -> None:
    record = done(done(record_of(), NOW + 60), NOW + 120, over=False)
    record = record.backfill([NOW + 120])
    assert states(record) == ["started", "queued"]


def test_a_clock_that_was_ahead_is_forgiven() -> None:
    record = record_of(overlap="allow").advance(NOW + 365 * 86_400)
    assert record.next_at is not None
    assert record.next_at > NOW + 86_400
    corrected = record.advance(NOW + 30)
    assert corrected.next_at == NOW + 60


def test_a_single_time_fires_once_and_the_schedule_expires() -> None:
    record = record_of(at="2026-01-01T10:00", timezone="Europe/Berlin")
    assert record.next_at == NOW + 9 * 3600
    assert record.ttl is None
    record = done(record, NOW + 9 * 3600)
    assert states(record) == ["started"]
    assert (record.next_at, record.ttl) == (None, DONE_SECONDS)


def test_a_replaced_schedule_keeps_its_state() -> None:
    record = done(record_of(), NOW + 60).pause()
    other = ScheduleRecord.create(define("s", "other.wanted", every=60, now=NOW + 61), "new", NOW + 61, record)
    assert (other.uid, other.paused, other.after, states(other)) == ("uid", True, record.after, ["started"])
    later = ScheduleRecord.create(
        define("s", "other.wanted", every=70, now=NOW + 61), "new", NOW + 61, other.resume(NOW)
    )
    assert later.next_at == NOW + 131


@given(
    st.sampled_from(["skip", "queue", "allow"]),
    st.sampled_from([{"every": 7.5}, {"cron": "*/2 * * * *"}, {"at": "2026-01-01T00:03"}]),
    st.lists(st.tuples(st.floats(0, 400), st.booleans()), max_size=12),
)
def test_however_time_goes_on_no_time_starts_twice(
    overlap: str, times: dict[str, Any], steps: list[tuple[float, bool]]
) -> None:
    record, now, started = record_of(overlap=overlap, catch_up=300, **times), NOW, list[str]()
    for seconds, over in steps:
        now += seconds
        while True:
            changed = record.advance(now, [each.id for each in record.of("started")] if over else [])
            started += [each.id for each in changed.of("due")]
            changed = changed.settle({"started": [each.id for each in changed.of("due")]})
            if changed == record:
                break
            record = ScheduleRecord.decode(changed.encode())
            assert record == changed
        assert record.next_at is None or record.next_at > now
    assert len(started) == len(set(started))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "give one of cron, every and at"),
        ({"cron": "* * * * *", "every": 5}, "give one of cron, every and at"),
        ({"cron": "nonsense"}, "no cron expression"),
        ({"cron": "* * */20 * 1L"}, "never fires"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Berlni"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "0 9 * * *", "timezone": "../etc/passwd"}, "unknown"),
        ({"every": 0.5}, "every is a number of seconds from 1"),
        ({"every": float("nan")}, "every is a number"),
        ({"every": True}, "every is a number"),
        ({"at": "2025-12-31T23:59"}, "which is past"),
        ({"at": "soon"}, "is no time"),
        ({"every": 5, "overlap": "quue"}, "did you mean 'queue'"),
        ({"every": 5, "catch_up": -1}, "catch_up"),
        ({"every": 5, "data": [1]}, "JSON object"),
        ({"every": 5, "data": {"a": "b" * MAX_DATA}}, "at most"),
        ({"every": 5, "data": {"a": object()}}, "data: a is a object"),
        ({"every": 5, "user_id": 3}, "user_id is a text"),
    ],
)
def test_an_invalid_definition_names_its_faults(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidSchedule, match=fault):
        define("s", "report.wanted", now=NOW, **options)


def test_all_faults_are_listed() -> None:
    with pytest.raises(InvalidSchedule) as refused:
        define("no name", "no type", timezone="Mars", overlap="never", now=NOW)
    assert len(refused.value.faults) == 5


@pytest.mark.parametrize("stored", [b"", b"\xc1", b"\x80", b"\x93abc"])
def test_what_is_no_schedule_is_refused(stored: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        ScheduleRecord.decode(stored)
