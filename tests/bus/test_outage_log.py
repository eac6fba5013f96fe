"""Warnings during an outage."""

from __future__ import annotations

import logging

import pytest

from plancast_bus import outage_log
from plancast_bus.errors import BusUnavailable, PublishRefused

logger = logging.getLogger("outage")


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(outage_log, "time", made)
    return made


def test_equal_failures_are_logged_after_doubling_intervals_with_their_number(
    clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    begun = clock.now
    for number in range(1403):
        outage_log.warn(logger, "retrying: %s", BusUnavailable("away"), extra={"plan_id": number})
        clock.now += 0.25
    said = [each.getMessage() for each in caplog.records]
    assert said[:3] == [
        "retrying: away",
        "retrying: away (and 3 more of its kind since the last such line)",
        "retrying: away (and 7 more of its kind since the last such line)",
    ]
    assert len(said) == 9, f"0, 1, 3, 7 and so on until {clock.now - begun:g} s"
    assert vars(caplog.records[1])["plan_id"] == 4


def test_intervals_have_a_maximum(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10 * 3600):
        outage_log.warn(logger, "retrying: %s", BusUnavailable("away"))
        clock.now += 1.0
    assert len(caplog.records) == pytest.approx(10 * 3600 / outage_log.LONGEST_INTERVAL, abs=10)


def test_other_failures_are_logged_at_once(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    for error in (BusUnavailable("away"), PublishRefused("full"), BusUnavailable("away")):
        outage_log.warn(logger, "retrying: %s", error)
    outage_log.warn(logger, "waiting: %s", BusUnavailable("away"))
    outage_log.warn(logging.getLogger("other"), "retrying: %s", BusUnavailable("away"))
    said = [each.getMessage() for each in caplog.records]
    assert said == ["retrying: away", "retrying: full", "waiting: away", "retrying: away"]


def test_the_next_outage_is_logged_at_once(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        outage_log.warn(logger, "retrying: %s", BusUnavailable("away"))
        clock.now += 0.25
    caplog.clear()
    clock.now += 2 * outage_log.QUIET
    outage_log.warn(logger, "retrying: %s", BusUnavailable("again"))
    assert [each.getMessage() for each in caplog.records] == ["retrying: again"]
