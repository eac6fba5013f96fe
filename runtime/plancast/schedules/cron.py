"""Cron expressions in a time zone, with the rules for days on which clocks are set.

An expression whose minute or hour begins with ``*`` fires at every instant with a matching wall time, so that an hourly
one fires in each hour that there is. Any other expression names times of a day: one that comes twice fires the first
time, one that does not exist fires when the gap ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_CHARACTERS: Final = 200
MAX_YEARS: Final = 50
"""Years in which an expression has to match a day; any that exists does: leap days on a weekday come every 40 years."""
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DAY: Final = timedelta(days=1)


class Cron:
    """A cron expression of five fields. cronsim parses it and matches days; the times are computed here.

    Raises:
        ValueError: the expression is invalid; the message says which field.
    """

    def __init__(self, expression: str) -> None:
        written = ALIASES.get(expression.strip().lower(), expression)
        if len(written) > MAX_CHARACTERS or len(written.split()) != 5:
            raise ValueError(f"{expression[:80]!r} is no cron expression of five fields: minute hour day month weekday")
        try:
            self._fields = CronSim(written, datetime(2000, 1, 1))
        except (CronSimError, ValueError, AssertionError, TypeError) as error:
            raise ValueError(
                f"{expression[:80]!r} is no cron expression: {str(error) or 'a field is invalid'}"
            ) from error
        minute, hour = written.split()[:2]
        self._is_periodic = minute.startswith("*") or hour.startswith("*")
        hours, minutes = sorted(self._fields.hours), sorted(self._fields.minutes)
        self._offsets = [3600 * each + 60 * minute for each in hours for minute in minutes]
        """Matching wall times, in seconds of a day."""

    def next_after(self, after: float, zone: ZoneInfo) -> float | None:
        """Return the first time after a time, both in seconds since the epoch; None when there is none.

        Times before the year 1 and after 9999 do not exist.
        """
        try:
            return self._next_after(after, zone)
        except (OverflowError, ValueError):
            return None

    def _next_after(self, after: float, zone: ZoneInfo) -> float | None:
        today = datetime.fromtimestamp(after, zone).date()
        # Of a day before: its times in a gap that ends after midnight, and those that come twice around midnight.
        for day in self._days(today - _DAY):
            following = self._times_after(day, zone, after)
            if following is None:
                continue
            # Where clocks go back over midnight, times of the next day come before the last ones of this one.
            tomorrow = day + _DAY
            if not _is_regular(day, zone) and self._matches(tomorrow):
                return min(following, self._times_after(tomorrow, zone, after) or following)
            return following
        return None

    def _days(self, first: date) -> Iterator[date]:
        day = first
        while day.year <= first.year + MAX_YEARS:
            if day.month not in self._fields.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            if self._fields.match_day(day):
                yield day
            day += _DAY

    def _matches(self, day: date) -> bool:
        return day.month in self._fields.months and self._fields.match_day(day)

    def _times_after(self, day: date, zone: ZoneInfo, after: float) -> float | None:
        """Return the first of a day's times after a time."""
        if _is_regular(day, zone):
            midnight = _instant(datetime.combine(day, time(), zone))
            index = bisect_right(self._offsets, after - midnight)
            return midnight + self._offsets[index] if index < len(self._offsets) else None
        # A wall time is at one of two instants, or at the end of a gap between them.
        local_midnight = _instant(datetime.combine(day, time(), UTC))
        changes = [each.total_seconds() for each in _offsets(day, zone)]
        best: float | None = None
        for offset in self._offsets[bisect_right(self._offsets, after + min(changes) - local_midnight) :]:
            if best is not None and local_midnight + offset - max(changes) > best:
                break
            later = (each for each in self._instants(day, offset, zone) if each > after)
            best = min((*later, *([best] if best is not None else ())), default=None)
        return best

    def _instants(self, day: date, offset: int, zone: ZoneInfo) -> Iterator[float]:
        """Yield the instants for a wall time of a day."""
        wall = datetime.combine(day, time(offset // 3600, offset // 60 % 60))
        first, second = (_instant(wall.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
        if first > second:  # the wall time is in a gap, which has the transition between the two
            end = _transition(second, first, zone)
            if not self._is_periodic or datetime.fromtimestamp(end, zone).hour == wall.hour:
                yield end
            return
        yield first
        if self._is_periodic and second > first:
            yield second


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> Cron:
    """Parse an expression; raises as :class:`Cron`."""
    return Cron(expression)


@lru_cache(maxsize=4096)
def _is_regular(day: date, zone: ZoneInfo) -> bool:
    """Return whether no clock is set on a day, and on the days beside it."""
    if zone.key == "UTC":
        return True
    return len(_offsets(day, zone)) == 1


def _offsets(day: date, zone: ZoneInfo) -> set[timedelta]:
    """Return the offsets from UTC around a day."""
    around = (datetime.combine(day + each * _DAY, time(), zone).utcoffset() for each in (-1, 0, 1, 2))
    return {each for each in around if each is not None}


def _instant(moment: datetime) -> float:
    return moment.astimezone(UTC).timestamp()


def _transition(before: float, after: float, zone: ZoneInfo) -> float:
    """Return the first whole second between two times from which on the offset is that of the second one."""
    low, high = int(before), int(after)
    target = datetime.fromtimestamp(high, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == target:
            high = middle
        else:
            low = middle
    return float(high)
