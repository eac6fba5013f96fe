"""Checks the times of cron expressions in years of time zones: ``python -m tests.runtime.schedules.zone_years``.

A zone's transitions are found by its offsets alone; around each of them every minute is compared, and every day of the
year has to have its daily firing.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from plancast.schedules.cron import Cron

YEARS = range(1970, 2100)


def zone_years(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Draw zones and years."""
    drawn = random.Random(seed)
    zones = sorted(
        each for each in available_timezones() if "/" in each and not each.startswith(("Etc/", "posix", "right"))
    )
    for _ in range(count):
        yield drawn.choice(zones), drawn.choice(YEARS)


def transitions(zone: ZoneInfo, year: int) -> Iterator[int]:
    """Yield the first seconds of new offsets in a year."""
    begin, end = (int(datetime(each, 1, 4, tzinfo=UTC).timestamp()) for each in (year, year + 1))
    begin -= 3 * 86_400
    before = offset(zone, begin)
    for moment in range(begin, end, 6 * 3600):
        if offset(zone, moment) == before:
            continue
        low, high = moment - 6 * 3600, moment
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
        yield high
        before = offset(zone, moment)


def offset(zone: ZoneInfo, moment: float) -> timedelta:
    found = datetime.fromtimestamp(moment, zone).utcoffset()
    assert found is not None
    return found


def times(cron: str, zone: ZoneInfo, begin: float, end: float) -> list[float]:
    """Return the times of an expression after one time and up to another."""
    parsed, found = Cron(cron), list[float]()
    moment = parsed.next_after(begin, zone)
    while moment is not None and moment <= end:
        found.append(moment)
        moment = parsed.next_after(moment, zone)
    return found


def check(zone_name: str, year: int, minute: int, hour: int) -> list[str]:
    """Return the faults of a year: of an hourly expression around transitions, and of a daily one."""
    zone, faults = ZoneInfo(zone_name), []
    changes = list(transitions(zone, year))
    for change in changes:
        begin, end = change - 30 * 3600, change + 30 * 3600
        found = times(f"{minute} * * * *", zone, begin, end)
        wanted = {
            float(each)
            for each in range(begin - begin % 60 + 60, end + 1, 60)
            if datetime.fromtimestamp(each, zone).minute == minute
        }
        for extra in set(found) - wanted:  # the end of a gap within an hour
            if extra != change or datetime.fromtimestamp(extra, zone).minute <= minute:
                faults.append(f"hourly at {datetime.fromtimestamp(extra, zone)}")
        faults += [f"not hourly at {datetime.fromtimestamp(each, zone)}" for each in wanted - set(found)]
        if found != sorted(set(found)):
            faults.append("hourly times are not in order")
    begin, end = (datetime(each, 1, 2, tzinfo=zone).timestamp() for each in (year, year + 1))
    daily = times(f"{minute} {hour} * * *", zone, begin - 1, end - 1)
    by_day = {date(year, 1, 2) + timedelta(days=each): list[float]() for each in range(366)}
    for moment in daily:
        local = datetime.fromtimestamp(moment, zone)
        if (local.hour, local.minute) == (hour, minute):
            by_day.setdefault(local.date(), []).append(moment)
        elif moment not in changes:
            faults.append(f"daily at {local}")
    for day, moments in by_day.items():
        if day >= date(year + 1, 1, 2):
            continue
        wall = datetime(day.year, day.month, day.day, hour, minute)
        early, late = sorted(wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        exists = datetime.fromtimestamp(early, zone).replace(tzinfo=None) == wall
        if exists and moments != [early]:
            faults.append(f"on {day} daily at {[str(datetime.fromtimestamp(each, zone)) for each in moments]}")
        if not exists and not any(early <= each <= late for each in daily):
            faults.append(f"on {day}, when {wall} does not exist, not daily")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    drawn = random.Random(asked.seed)
    failed = 0
    for zone, year in zone_years(asked.count, asked.seed):
        minute, hour = drawn.randrange(60), drawn.randrange(24)
        for fault in check(zone, year, minute, hour if drawn.random() < 0.5 else drawn.randrange(4)):
            failed += 1
            print(f"{zone} {year}, {minute} {hour}: {fault}")
    print(f"{asked.count} zone-years, {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
