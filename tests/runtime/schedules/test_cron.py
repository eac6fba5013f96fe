"""Cron expressions in time zones."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from tests.runtime.schedules import zone_years

from plancast.schedules.cron import Cron


def firings(cron: str, zone: str, begin: str, count: int) -> list[str]:
    """The first times after one, as wall times with offset."""
    place = ZoneInfo(zone)
    moment: float | None = datetime.fromisoformat(begin).replace(tzinfo=place).timestamp()
    found = []
    for _ in range(count):
        assert moment is not None
        moment = Cron(cron).next_after(moment, place)
        assert moment is not None
        found.append(datetime.fromtimestamp(moment, place).strftime("%d %H:%M %z"))
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "begin", "wanted"),
    [
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30", ["29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T01:45", ["25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:00 +0200"]),
        ("*/20 * * * *", "Europe/Berlin", "2026-03-29T01:20", ["29 01:40 +0100", "29 03:00 +0200", "29 03:20 +0200"]),
        ("0 9-10 * * MON-FRI", "Asia/Tokyo", "2026-01-02T10:00", ["05 09:00 +0900", "05 10:00 +0900"]),
        ("0 * * * *", "Australia/Lord_Howe", "2026-10-04T01:00", ["04 02:30 +1100", "04 03:00 +1100"]),
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00", ["31 00:00 +1400", "31 09:00 +1400"]),
        ("0 0 * * *", "America/Havana", "2026-10-31T12:00", ["01 00:00 -0400", "02 00:00 -0500"]),
        ("0 0 29 2 MON#5", "UTC", "2040-01-01T00:00", ["29 00:00 +0000", "29 00:00 +0000"]),
        ("@daily", "UTC", "2026-01-01T00:00", ["02 00:00 +0000", "03 00:00 +0000"]),
        ("0 0 L * *", "UTC", "2026-02-01T00:00", ["28 00:00 +0000", "31 00:00 +0000"]),
    ],
)
def test_an_expression_fires_by_the_clocks_of_its_zone(cron: str, zone: str, begin: str, wanted: list[str]) -> None:
    assert firings(cron, zone, begin, len(wanted)) == wanted


@pytest.mark.parametrize(
    "cron",
    [
        *("", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", "a", "* * * * 1L/2", "0 0 * * FRI-MON"),
        *("\u00b2 * * * *", "0 " * 200),
    ],
)
def test_an_invalid_expression_is_refused(cron: str) -> None:
    with pytest.raises(ValueError, match="cron expression"):
        Cron(cron)


def test_an_expression_may_never_fire() -> None:
    assert Cron("* * */20 * 1L").next_after(0, ZoneInfo("UTC")) is None
    assert Cron("0 0 1 1 *").next_after(253_402_300_000, ZoneInfo("UTC")) is None


@pytest.mark.parametrize(("zone", "year"), list(zone_years.zone_years(60, seed=7)))
def test_the_clocks_of_a_year_lose_and_double_nothing(zone: str, year: int) -> None:
    for minute, hour in ((0, 0), (30, 2), (59, 23)):
        assert zone_years.check(zone, year, minute, hour) == []
