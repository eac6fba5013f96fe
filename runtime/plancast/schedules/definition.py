"""The definition of a schedule: which goal is submitted, when, and what holds when firings overlap or are late."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict

from plancast.errors import InvalidSchedule
from plancast.json_values.limits import MAX_SECONDS, is_duration, shown
from plancast.json_values.normalize import plain
from plancast.schedules.cron import parse_cron
from plancast_bus.errors import InvalidSubject, PlancastError
from plancast_bus.events.codec import pack
from plancast_bus.ports.schedules import ScheduleKey
from plancast_bus.spelling import nearest
from plancast_bus.subjects import check_event_type, encode_token

Overlap = Literal["skip", "queue", "allow"]
OVERLAPS: Final[tuple[Overlap, ...]] = ("skip", "queue", "allow")
MIN_EVERY: Final = 1.0
"""Least seconds between two firings."""
MAX_DATA: Final = 256 * 1024
"""Maximum bytes of a goal's data: a schedule is one message, with its definition and state."""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


class ScheduleDefinition(BaseModel):
    """A valid definition; :func:`define` makes one from what a user gives."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    name: str
    event_type: str
    data: dict[str, Any] = {}
    cron: str | None = None
    every: float | None = None
    at: float | None = None
    """Seconds since the epoch."""
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: float = 0.0
    tenant_id: str = ""
    user_id: str = ""
    session_id: str = ""

    @property
    def key(self) -> ScheduleKey:
        return ScheduleKey(self.tenant_id, self.name)

    def fires_like(self, other: ScheduleDefinition) -> bool:
        """Return whether both have the same times."""
        return (self.cron, self.every, self.at, self.timezone) == (other.cron, other.every, other.at, other.timezone)

    def next_after(self, after: float, anchor: float) -> float | None:
        """Return the first time after a time, in seconds since the epoch; None when there is none.

        Args:
            after: The time.
            anchor: A time from which on ``every`` counts; its grid goes on in both directions.

        Raises:
            InvalidSchedule: this machine has no data of the time zone.
        """
        if self.at is not None:
            return self.at if self.at > after else None
        if self.cron is not None:
            return parse_cron(self.cron).next_after(after, zone_of(self.timezone))
        assert self.every is not None
        period, begin = round(self.every * 1000), round(anchor * 1000)  # of whole milliseconds, sums are exact
        return (begin + ((round(after * 1000) - begin) // period + 1) * period) / 1000

    def next_from(self, at_least: float, anchor: float) -> float | None:
        """Return the first time that is not before a time."""
        return self.next_after(at_least - 0.001, anchor)


def define(
    name: str,
    event_type: str,
    data: Any = None,
    *,
    cron: str | None = None,
    every: float | None = None,
    at: datetime | str | None = None,
    timezone: str = "UTC",
    overlap: str = "skip",
    catch_up: float = 0.0,
    tenant_id: str = "",
    user_id: str = "",
    session_id: str = "",
    now: float,
) -> ScheduleDefinition:
    """Make a definition.

    Args:
        at: A time; without an offset it is one of ``timezone``. A text is ISO 8601.
        now: Seconds since the epoch.

    Raises:
        InvalidSchedule: it lists every fault.
    """
    faults = list(
        _text_faults(name, event_type, {"tenant_id": tenant_id, "user_id": user_id, "session_id": session_id})
    )
    moment: float | None = None
    if sum(each is not None for each in (cron, every, at)) != 1:
        faults.append("give one of cron, every and at")
    zone = None
    try:
        zone = zone_of(timezone)
        if cron is not None:
            if not isinstance(cron, str):
                raise ValueError(f"cron is an expression such as '0 9 * * MON-FRI', not {shown(cron)}")
            if parse_cron(cron).next_after(now, zone) is None:
                raise ValueError(f"cron {cron[:80]!r} never fires: no day matches")
        if at is not None:
            moment = moment_of(at, timezone)
            if moment <= now:
                raise ValueError(f"at is {_iso(moment)}, which is past: it is {_iso(now)}")
    except (InvalidSchedule, ValueError) as error:
        faults += error.faults if isinstance(error, InvalidSchedule) else [str(error)]
    if every is not None and not (is_duration(every) and every >= MIN_EVERY):
        faults.append(f"every is a number of seconds from {MIN_EVERY:g} to {MAX_SECONDS}, not {shown(every)}")
    if overlap not in OVERLAPS:
        faults.append(f"overlap is one of {', '.join(OVERLAPS)}, not {shown(overlap)}{nearest(str(overlap), OVERLAPS)}")
    if catch_up != 0 and not is_duration(catch_up):
        faults.append(f"catch_up is a number of seconds from 0 to {MAX_SECONDS}, not {shown(catch_up)}")
    sent: Any = {}
    try:
        sent = {} if data is None else plain(data)
        if not isinstance(sent, Mapping):
            faults.append(f"data is a JSON object, not {shown(data)}")
        elif (size := len(pack(sent))) > MAX_DATA:
            faults.append(f"data has {size} bytes, at most {MAX_DATA} are allowed: give the goal a reference instead")
    except (TypeError, ValueError, PlancastError) as error:
        faults.append(f"data: {error}")
    if faults:
        raise InvalidSchedule(str(name)[:100], faults)
    return ScheduleDefinition(
        name=name,
        event_type=event_type,
        data=dict(sent),
        cron=cron,
        every=float(every) if every is not None else None,
        at=moment,
        timezone=timezone,
        overlap=overlap,  # type: ignore[arg-type]
        catch_up=float(catch_up),
        tenant_id=tenant_id,
        user_id=user_id,
        session_id=session_id,
    )


def check_schedule_name(name: str) -> str:
    """Return the name if a schedule may have it.

    Raises:
        InvalidSchedule: it may not.
    """
    if faults := list(_name_faults(name)):
        raise InvalidSchedule(str(name)[:100], faults)
    return name


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name.

    Raises:
        InvalidSchedule: there is none, or this machine does not know it.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        from zoneinfo import available_timezones

        known = available_timezones()
        about = nearest(str(name), known) if known else "; this machine has no time zones: install tzdata"
        fault = f"timezone {str(name)[:80]!r} is unknown: use an IANA name such as Europe/Berlin{about}"
        raise InvalidSchedule("", [fault]) from None


def moment_of(moment: datetime | str, timezone: str = "UTC") -> float:
    """Return a time as seconds since the epoch, with milliseconds; without an offset it is one of a time zone.

    Raises:
        ValueError: it is no time, or beyond the year 9999.
        InvalidSchedule: the time zone is unknown.
    """
    try:
        read = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if not isinstance(read, datetime):
            raise ValueError(type(read).__name__)
        return round((read if read.tzinfo else read.replace(tzinfo=zone_of(timezone))).timestamp(), 3)
    except InvalidSchedule:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError):
        raise ValueError(f"{shown(moment)} is no time: use one such as 2030-01-31T09:00 or a datetime") from None


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def _text_faults(name: str, event_type: str, ids: Mapping[str, Any]) -> Iterator[str]:
    yield from _name_faults(name)
    try:
        check_event_type(event_type)
    except InvalidSubject as error:
        yield f"event_type: {error}"
    for field, value in ids.items():
        if not isinstance(value, str):
            yield f"{field} is a text, not {shown(value)}"
        elif value:
            try:
                encode_token(value)
            except InvalidSubject:
                yield f"{field} is a text of at most 400 characters, not {shown(value)}"


def _name_faults(name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{shown(name)} is no name for a schedule: use up to 100 of A-Z a-z 0-9 _ . - and begin with a letter"
