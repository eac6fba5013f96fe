"""Scheduler: starts the plans of schedules when they are due."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Awaitable
from contextlib import aclosing
from math import inf

from plancast.errors import InvalidSchedule
from plancast.plan.status import PlanStatus
from plancast.plan_store.run_status import run_status
from plancast.schedules.firing import Firing, FiringState
from plancast.schedules.record import CLOCK_SECONDS, ScheduleRecord
from plancast_actors.telemetry.metrics import FIRING_LATENESS
from plancast_actors.telemetry.samples import Samples
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, CommitConflict, InvalidEnvelope
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic, utc_text
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.schedules import ScheduleKey, StoredSchedule
from plancast_bus.retry import UNSENDABLE
from plancast_bus.schedule import Schedule

logger = logging.getLogger(__name__)
TAKEOVER_SECONDS = 2.0
"""Seconds after which the next dispatcher does what one has not done."""
POLL_SECONDS, LONGEST_POLL = 2.0, 30.0
"""Seconds until the next look at the run that a queued firing waits for: they grow while it goes on."""
LOOK_SECONDS = 60.0
"""Longest sleep: the clock may be corrected meanwhile."""
PAUSE_SECONDS = 1.0
"""Seconds until a schedule is tried again after an error, and the least between two attempts to follow all."""
MAX_POLLS = 20
"""Looks after which the seconds between them grow no more."""
STALE_SECONDS = 30.0
"""Seconds after which a decision is read again before its goals are sent: this process may have been suspended."""
CONCURRENT = 64
"""Schedules that are worked on at the same time."""
ATTEMPTS = 50
"""Steps for one schedule before others have their turn."""
BATCH = 256
"""Versions that are taken in before other tasks have their turn."""


class Scheduler:
    """Follows all schedules and makes their firings; every dispatcher runs one.

    A firing has three steps: the decision, stored by compare-and-set; the goal, whose plan's id is that of schedule and
    firing; the note that it is sent. One dispatcher wins the decision. Whoever takes over repeats the goal, and the
    plan of that id ignores it, so that no lease is needed. For each schedule the dispatchers have an order, in which
    they wait for each other, so that all but one are idle.

    Args:
        bus: A connection.
        index: Number of this dispatcher.
        count: Number of dispatchers.
        clock: The clock of the bus unless given.
    """

    def __init__(self, bus: Bus, *, index: int = 0, count: int = 1, clock: Clock | None = None) -> None:
        self._bus = bus
        self._clock = clock or bus.clock
        self._index, self._count = index, count
        self._due: Schedule[str] = Schedule()
        """When to look at a schedule, by its subject."""
        self._versions: dict[str, int] = {}
        """The version of each schedule that is known here."""
        self._polls: dict[str, int] = {}
        """Looks at the run that a queued firing waits for, since the schedule has changed."""
        self._busy: dict[str, StoredSchedule | None] = {}
        """Schedules that are worked on, with a newer version that has arrived since."""
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._tasks: list[asyncio.Task[None]] = []
        self._working: set[asyncio.Task[None]] = set()
        self.samples: Samples | None = None
        """Receives by how much firings are late; None measures nothing."""
        self.firings: Counter[str] = Counter()
        """Firings that this dispatcher has decided, by state, since the start."""

    def start(self) -> None:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._follow()), loop.create_task(self._run())]

    async def stop(self) -> None:
        """Stop at once; another dispatcher goes on."""
        tasks = [*self._tasks, *self._working]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._busy.clear()
        self._versions.clear()
        self._due = Schedule()

    async def share(self, index: int, count: int) -> None:
        """Take another place among the dispatchers; beyond their number it stands by."""
        if (index, count) != (self._index, self._count):
            await self.stop()
            self._index, self._count = index, count
        if index < count:
            self.start()

    @property
    def known(self) -> int:
        """Number of schedules."""
        return len(self._versions)

    @property
    def is_busy(self) -> bool:
        """True if it works on a schedule."""
        return bool(self._busy)

    @property
    def next_due(self) -> float | None:
        """When it looks at a schedule next; now while it works on one."""
        return self._clock.time() if self._busy else self._due.next_due()

    def overdue(self) -> float:
        """Seconds by which the schedule that is due first is late."""
        return max(0.0, self._clock.time() - (self._due.next_due() or inf))

    # Following.

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._bus.schedules.watch()) as versions:
                    taken = 0
                    async for stored in versions:
                        self._note(stored)
                        taken += 1
                        if taken % BATCH == 0:
                            await asyncio.sleep(0)
            except BusError as error:
                logger.warning("schedules cannot be followed: %s", error)
            except Exception:
                logger.exception("schedules cannot be followed")
            await asyncio.sleep(PAUSE_SECONDS)

    def _begin_anew(self) -> None:
        """Look at all schedules again, since the clock was ahead."""
        self._tasks[0].cancel()
        self._tasks[0] = asyncio.get_running_loop().create_task(self._follow())
        self._versions.clear()
        self._due = Schedule()

    def _note(self, stored: StoredSchedule) -> None:
        subject = self._bus.subjects.schedule(*stored.key)
        if stored.version <= self._versions.get(subject, 0):
            return
        if subject in self._busy:
            self._busy[subject] = stored
            return
        self._plan(subject, stored)

    def _plan(self, subject: str, stored: StoredSchedule) -> None:
        """Take a version for the newest, and plan the next look at it."""
        if not stored.value:
            self._versions.pop(subject, None)
            self._due.remove(subject)
            return
        polls = self._polls.get(subject, 0) + 1 if self._versions.get(subject) == stored.version else 0
        self._versions[subject] = stored.version
        now = self._clock.time()
        rank = (zlib.crc32(subject.encode()) + self._index) % self._count
        try:
            fields = unpack(stored.value)
            states = {each["state"] for each in fields["firings"]}
            at = now if "due" in states else inf
            self._polls.pop(subject, None)
            if "queued" in states:
                self._polls[subject] = min(polls, MAX_POLLS)
                at = min(at, now + min(POLL_SECONDS * 1.3 ** min(polls, MAX_POLLS), LONGEST_POLL) * (1 + 4 * rank))
            at = min(at, inf if fields["next_at"] is None else float(fields["next_at"]))
            if at < inf and fields["after"] > now + CLOCK_SECONDS:
                at = now  # decided by a clock that has been corrected since
        except (InvalidEnvelope, KeyError, TypeError, ValueError):
            logger.warning("a schedule cannot be read and does not fire", extra={"schedule": stored.key.name})
            at = inf
        if at == inf:
            self._due.remove(subject)
            return
        self._due.set(subject, at + rank * TAKEOVER_SECONDS)
        self._changed.set()

    # Working.

    async def _run(self) -> None:
        last = self._clock.time()
        while True:
            now = self._clock.time()
            if now < last - CLOCK_SECONDS:
                self._begin_anew()
            last = now
            while (subject := self._due.pop(now)) is not None:
                if subject not in self._busy:
                    self._busy[subject] = None
                    task = asyncio.get_running_loop().create_task(self._work(subject))
                    self._working.add(task)
                    task.add_done_callback(self._working.discard)
            self._changed.clear()
            following = self._due.next_due()
            waiting: list[Awaitable[object]] = [self._changed.wait()]
            if following is not None:
                waiting.append(self._clock.sleep(min(following - now, LOOK_SECONDS)))
            await _first(waiting)

    async def _work(self, subject: str) -> None:
        key = ScheduleKey(*self._bus.subjects.parse_schedule(subject))
        again: float | None = None
        try:
            async with self._slots:
                stored = await self._advance(key)
            if stored is not None:
                self._plan(subject, stored)
            else:
                again = 0.0
        except (InvalidEnvelope, InvalidSchedule) as error:  # another version of it, or of this program, is waited for
            logger.error("a schedule does not fire: %s", error, extra={"schedule": key.name})
        except BusError as error:
            logger.warning("a schedule is tried again: %s", error, extra={"schedule": key.name})
            again = PAUSE_SECONDS
        except Exception:
            logger.exception("a schedule has failed, and is tried again", extra={"schedule": key.name})
            again = LOOK_SECONDS
        finally:
            newer = self._busy.pop(subject, None)
        if again is not None:
            self._due.set(subject, self._clock.time() + again)
        if newer is not None:
            self._note(newer)
        self._changed.set()

    async def _advance(self, key: ScheduleKey) -> StoredSchedule | None:
        """Do what is due of a schedule; return its newest version, or None if there is more to do.

        Raises:
            InvalidEnvelope: it cannot be read.
            BusError: a step has failed, or its outcome is unknown; it is to be repeated.
        """
        stored, record, read_at = await self._read(key)
        for _ in range(ATTEMPTS):
            now = self._clock.time()
            if record is None or not ((due := record.of("due")) or record.is_due(now)):
                return stored
            if due and not 0 <= now - read_at <= STALE_SECONDS:
                stored, record, read_at = await self._read(key)
                continue
            if due:
                changed = await self._send(record, due)
            else:
                over = await self._over(record) if record.waits_for_runs else frozenset()
                changed = record.advance(now, over)
            if changed == record:
                return stored
            value = changed.encode()
            try:
                version = await self._bus.schedules.replace(key, value, stored.version, ttl=changed.ttl)
            except CommitConflict:
                stored, record, read_at = await self._read(key)
                continue
            if not due:
                self._count_decided(record, changed)
            stored, record, read_at = StoredSchedule(key, value, version), changed, now
        return None

    async def _read(self, key: ScheduleKey) -> tuple[StoredSchedule, ScheduleRecord | None, float]:
        read_at = self._clock.time()
        stored = await self._bus.schedules.read(key)
        record = ScheduleRecord.decode(stored.value) if stored.value else None
        if record is not None and record.definition.key != key:
            raise InvalidEnvelope(f"the schedule {key.name!r} holds another one")
        return stored, record, read_at

    async def _over(self, record: ScheduleRecord) -> frozenset[str]:
        """Return the ids of the started firings whose plans are over, or could not begin."""
        over = set()
        for firing in record.of("started"):
            try:
                status = await run_status(self._bus, record.plan_id(firing), record.definition.event_type)
            except InvalidEnvelope:
                status = None
            if status is None or PlanStatus(status).finished:
                over.add(firing.id)
        return frozenset(over)

    async def _send(self, record: ScheduleRecord, due: list[Firing]) -> ScheduleRecord:
        """Send the goals of firings; return the record with what has become of them."""
        sent: dict[FiringState, set[str]] = {"started": set(), "skipped": set()}
        for firing in due:
            try:
                await self._bus.publish(_goal(record, firing))
            except UNSENDABLE as error:
                logger.error(
                    "the goal of a schedule cannot be sent: %s", error, extra={"schedule": record.definition.name}
                )
                sent["skipped"].add(firing.id)
                continue
            sent["started"].add(firing.id)
            if self.samples is not None and firing.kind == "time":
                self.samples.note(FIRING_LATENESS, (), max(0.0, self._clock.time() - firing.time))
        return record.settle(sent)

    def _count_decided(self, before: ScheduleRecord, after: ScheduleRecord) -> None:
        known = {each.id for each in before.firings}
        self.firings.update(each.state for each in after.firings if each.id not in known)


def _goal(record: ScheduleRecord, firing: Firing) -> EventEnvelope:
    """Make the goal of a firing, with ids that depend on schedule and firing only."""
    of = record.definition
    plan_id = record.plan_id(firing)
    return EventEnvelope(
        id=f"schedule:{plan_id}",
        source="schedule",
        type=of.event_type,
        topic=EventTopic.ACTION_REQUESTS,
        data=of.data,
        correlation_id=plan_id,
        tenant_id=of.tenant_id or None,
        user_id=of.user_id or None,
        session_id=of.session_id or None,
        metadata={"schedule": of.name, "scheduled_for": utc_text(firing.time), "firing": firing.kind},
    )


async def _first(waiting: list[Awaitable[object]]) -> None:
    """Wait for the first of some awaitables, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
