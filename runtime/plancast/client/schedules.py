"""Schedules: creates, changes and lists the schedules of a deployment."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from plancast.errors import InvalidSchedule, ScheduleExists, ScheduleNotFound
from plancast.json_values.limits import shown
from plancast.plan_store.run_status import run_status
from plancast.schedules.definition import ScheduleDefinition, check_schedule_name, define, moment_of
from plancast.schedules.firing import trigger_firing
from plancast.schedules.record import ScheduleRecord
from plancast_bus.clock import Clock
from plancast_bus.errors import AccessDenied, BusUnavailable, CommitConflict, InvalidEnvelope
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.schedules import ScheduleKey, StoredSchedule

if TYPE_CHECKING:
    from plancast.client.handle import PlanHandle

_TRIGGER_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
ATTEMPTS = 100
"""Attempts to change a schedule that dispatchers and others change at the same time."""
Change = Callable[[ScheduleRecord, float], ScheduleRecord]


class ScheduleRun(NamedTuple):
    """A firing of a schedule."""

    time: datetime
    """When it was due; of a trigger, when it was triggered."""
    kind: str
    """``time``, ``trigger`` or ``backfill``."""
    state: str
    """``due``, ``queued``, ``started``, ``skipped`` or ``missed``."""
    plan_id: str
    """Id of its plan, if it has started, or is going to."""
    status: str
    """Status of the plan; empty while it has none, and once the plan is deleted after its retention."""


Runs = list[ScheduleRun]
Times = list[datetime]


@dataclass(frozen=True, slots=True)
class ScheduleSummary:
    """A schedule, as lists show it."""

    name: str
    event_type: str
    data: dict[str, Any]
    cron: str | None
    every: float | None
    at: datetime | None
    timezone: str
    overlap: str
    catch_up: float
    tenant_id: str
    user_id: str
    session_id: str
    created_at: datetime
    paused: bool
    next_at: datetime | None
    """When it fires next; None while it is paused, and when it fires no more."""
    last_at: datetime | None
    """The newest firing that has started a plan."""
    last_plan_id: str
    waiting: int
    """Firings that wait for a run to end."""

    @property
    def times(self) -> str:
        """When it fires, in a few words."""
        if self.cron is not None:
            return f"{self.cron} ({self.timezone})"
        return f"every {self.every:g} s" if self.every is not None else f"at {self.at:%Y-%m-%d %H:%M:%S} UTC"


class Schedules:
    """``client.schedules``: submits goals at times.

    Args:
        bus: The connection.
        clock: Its time decides what is past.
        tenant_of: Returns the tenant for a given one, or the client's; raises ForeignPlan for another one.
        require: Checks a goal against the apps that are deployed.
        plan: Returns a handle for a plan.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        tenant_of: Callable[[str | None], str | None],
        require: Callable[[str, Any], Awaitable[None]],
        plan: Callable[[str, str], PlanHandle],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._tenant_of = tenant_of
        self._require = require
        self._plan = plan

    async def create(
        self,
        name: str,
        *,
        event_type: str,
        data: Any = None,
        cron: str | None = None,
        every: float | None = None,
        at: datetime | str | None = None,
        timezone: str = "UTC",
        overlap: str = "skip",
        catch_up: float = 0.0,
        user_id: str = "",
        session_id: str = "",
        tenant_id: str | None = None,
        replace: bool = False,
    ) -> ScheduleSummary:
        """Create a schedule that submits a goal; give one of ``cron``, ``every`` and ``at``.

        Args:
            name: Up to 100 of ``A-Z a-z 0-9 _ . -``; unique for each tenant.
            event_type: Type of the goal.
            data: The goal's data: a JSON object of at most 256 KiB, or a pydantic model.
            cron: Five fields (minute, hour, day, month, weekday), or ``@hourly``, ``@daily``, ``@weekly``,
                ``@monthly``, ``@yearly``.
            every: Seconds between two firings, at least 1, from now on.
            at: A single time: a datetime or ISO 8601; without an offset it is one of ``timezone``.
            timezone: IANA name of the time zone of ``cron`` and ``at``.
            overlap: For a firing while the plan of an earlier one is not over: ``skip`` it, ``queue`` it until that
                plan ends (100 at most), or ``allow`` both.
            catch_up: Seconds by which a firing may be late, as after an outage. Firings up to 10 s late, and the
                newest one up to 60 s late, are always made.
            user_id: The user on whose behalf the plans run.
            session_id: Groups the plans.
            tenant_id: Tenant of schedule and plans. Defaults to the client's.
            replace: Replace a schedule of this name. Its firings, and whether it is paused, stay.

        Raises:
            InvalidSchedule: the definition is invalid; it lists every fault.
            ScheduleExists: there is one of this name.
            UnknownGoal, InvalidGoal: as for a goal that is submitted.
            ForeignPlan: the client is bound to another tenant.
            AccessDenied: this login may not write schedules.
            BusUnavailable: it may have been created nevertheless.
        """
        definition = define(
            name,
            event_type,
            data,
            cron=cron,
            every=every,
            at=at,
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            user_id=user_id,
            session_id=session_id,
            tenant_id=self._tenant_of(tenant_id) or "",
            now=self._clock.time(),
        )
        await self._require(event_type, definition.data)
        uid = uuid4().hex[:12]
        for _ in range(ATTEMPTS):
            stored = await self._bus.schedules.read(definition.key)
            before = _decoded(stored)
            if before is not None and before.uid == uid:
                return summary_of(before)  # the acknowledgement was lost
            if stored.value and not replace:
                raise ScheduleExists(
                    f"there is a schedule {name!r}: replace it (replace=True, --replace), or delete it"
                )
            record = ScheduleRecord.create(definition, uid, self._clock.time(), before)
            if await self._replaced(stored, record):
                return summary_of(record)
        raise _busy(name)

    async def get(self, name: str, *, tenant_id: str | None = None) -> ScheduleSummary:
        """Return a schedule.

        Raises:
            ScheduleNotFound: the tenant has none of this name.
        """
        return summary_of((await self._found(name, tenant_id))[1])

    async def pause(self, name: str, *, tenant_id: str | None = None) -> ScheduleSummary:
        """Stop firing by time until :meth:`resume`. Raises ScheduleNotFound."""
        return summary_of(await self._change(name, tenant_id, lambda record, _: record.pause()))

    async def resume(self, name: str, *, tenant_id: str | None = None) -> ScheduleSummary:
        """Fire again; what was paused is not made up. Raises ScheduleNotFound."""
        return summary_of(await self._change(name, tenant_id, lambda record, now: record.resume(now)))

    async def trigger(self, name: str, *, trigger_id: str | None = None, tenant_id: str | None = None) -> PlanHandle:
        """Start a plan now, also while the schedule is paused and whatever runs; returns when that is durable.

        Args:
            name: The schedule.
            trigger_id: Repeating a trigger with its id starts no second plan; a random one by default.
            tenant_id: As in :meth:`create`.

        Raises:
            ScheduleNotFound: the tenant has no schedule of this name.
            InvalidSchedule: the id is not up to 100 of ``A-Z a-z 0-9 _ -``.
            BusUnavailable: it may have been triggered nevertheless; trigger again with the same id.
        """
        made = uuid4().hex if trigger_id is None else trigger_id
        if not _TRIGGER_ID.fullmatch(str(made)):
            raise InvalidSchedule(name, [f"a trigger's id is up to 100 of A-Z a-z 0-9 _ -, not {shown(made)}"])
        record = await self._change(name, tenant_id, lambda record, now: record.trigger(made, now))
        return self._plan(record.plan_id(trigger_firing(made, 0.0)), record.definition.tenant_id)

    async def backfill(
        self, name: str, begin: datetime | str, end: datetime | str, *, tenant_id: str | None = None
    ) -> Times:
        """Start plans for the times from ``begin`` to ``end``, both included; returns these times.

        Times that have started a plan already, as far as the schedule remembers, start none again. With the overlap
        ``allow`` the plans run at the same time, else one after another.

        Raises:
            ScheduleNotFound: the tenant has no schedule of this name.
            InvalidSchedule: a time is invalid or in the future, or these are more than 1,000.
        """
        times: list[float] = []

        def change(record: ScheduleRecord, now: float) -> ScheduleRecord:
            first, last = _period(record.definition, begin, end, now)
            times[:] = record.times_between(first, last)
            return record.backfill(times)

        await self._change(name, tenant_id, change)
        return [_moment(each) for each in times]

    async def delete(self, name: str, *, tenant_id: str | None = None) -> None:
        """Delete a schedule; its plans go on. Raises ScheduleNotFound."""
        stored, _ = await self._found(name, tenant_id, readable=False)
        await self._bus.schedules.delete(stored.key)

    async def runs(self, name: str, *, limit: int = 50, tenant_id: str | None = None) -> Runs:
        """Return the newest firings, the newest first, with the outcomes of their plans.

        A schedule remembers at least its last 30 runs.

        Raises:
            ScheduleNotFound: the tenant has no schedule of this name.
        """
        _, record = await self._found(name, tenant_id)
        runs = []
        for firing in list(reversed(record.firings))[:limit]:
            has_plan = firing.state in ("due", "queued", "started", "ended")
            plan_id = record.plan_id(firing) if has_plan else ""
            status = ""
            if firing.state in ("started", "ended"):
                status = await run_status(self._bus, plan_id, record.definition.event_type) or ""
            state = "started" if firing.state == "ended" else firing.state
            runs.append(ScheduleRun(_moment(firing.time), firing.kind, state, plan_id, status))
        return runs

    async def list(self, *, tenant_id: str | None = None) -> list[ScheduleSummary]:
        """List schedules by name, of a tenant, by default the client's, or else of all tenants."""
        tenant = self._tenant_of(tenant_id)
        records = (_decoded(each) for each in await self._bus.schedules.list())
        found = [each for each in records if each is not None and tenant in (None, each.definition.tenant_id)]
        return [summary_of(each) for each in sorted(found, key=lambda each: each.definition.key[::-1])]

    async def _change(self, name: str, tenant_id: str | None, change: Change) -> ScheduleRecord:
        """Change a schedule by compare-and-set; one whose outcome is unknown is changed again."""
        for _ in range(ATTEMPTS):
            stored, record = await self._found(name, tenant_id)
            changed = change(record, self._clock.time())
            if changed == record or await self._replaced(stored, changed):
                return changed
        raise _busy(name)

    async def _replaced(self, stored: StoredSchedule, record: ScheduleRecord) -> bool:
        """Store a record; False if another version is stored, or it is not known whether this one is."""
        try:
            await self._bus.schedules.replace(stored.key, record.encode(), stored.version, ttl=record.ttl)
        except CommitConflict:
            return False
        except AccessDenied:
            raise
        except BusUnavailable:
            now = await self._bus.schedules.read(stored.key)  # raises if the store is still away
            return now.value == record.encode()
        return True

    async def _found(
        self, name: str, tenant_id: str | None, *, readable: bool = True
    ) -> tuple[StoredSchedule, ScheduleRecord]:
        key = ScheduleKey(self._tenant_of(tenant_id) or "", check_schedule_name(name))
        stored = await self._bus.schedules.read(key)
        if not stored.value:
            of = f" of the tenant {key.tenant!r}" if key.tenant else ""
            raise ScheduleNotFound(f"there is no schedule {name!r}{of}")
        return stored, ScheduleRecord.decode(stored.value)


def summary_of(record: ScheduleRecord) -> ScheduleSummary:
    """Return a schedule as lists show it."""
    of = record.definition
    last = max(record.of("started", "ended"), key=lambda each: each.time, default=None)
    return ScheduleSummary(
        **of.model_dump(exclude={"at"}),
        at=_moment(of.at) if of.at is not None else None,
        created_at=_moment(record.created_at),
        paused=record.paused,
        next_at=_moment(record.next_at) if record.next_at is not None else None,
        last_at=_moment(last.time) if last is not None else None,
        last_plan_id=record.plan_id(last) if last is not None else "",
        waiting=len(record.of("queued")),
    )


def _decoded(stored: StoredSchedule) -> ScheduleRecord | None:
    """Decode a schedule; None without one, and for one that cannot be read."""
    try:
        return ScheduleRecord.decode(stored.value) if stored.value else None
    except InvalidEnvelope:
        return None


def _period(
    definition: ScheduleDefinition, begin: datetime | str, end: datetime | str, now: float
) -> tuple[float, float]:
    """Return the bounds of a backfill."""
    faults = []
    bounds = []
    for each in (begin, end):
        try:
            bounds.append(moment_of(each, definition.timezone))
        except ValueError as error:
            faults.append(str(error))
    if not faults and not bounds[0] <= bounds[1]:
        faults.append("a backfill ends after it begins")
    if not faults and bounds[1] > now:
        faults.append(f"a backfill is of the past: it is {_moment(now):%Y-%m-%dT%H:%M:%SZ}")
    if faults:
        raise InvalidSchedule(definition.name, faults)
    return bounds[0], bounds[1]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _busy(name: str) -> BusUnavailable:
    return BusUnavailable(f"the schedule {name!r} changes all the time: {ATTEMPTS} attempts to change it have failed")
