"""ScheduleRecord: a schedule with its state, and the changes of it as functions of the time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from plancast.errors import InvalidSchedule
from plancast.schedules.definition import ScheduleDefinition
from plancast.schedules.firing import Firing, FiringState, firing_at, trigger_firing
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack

LATE_SECONDS: Final = 10.0
"""Seconds by which a firing may be late without ``catch_up``: a dispatcher that dies is replaced in the meantime."""
LATE_NEWEST_SECONDS: Final = 60.0
"""The same for the newest firing that is due."""
CLOCK_SECONDS: Final = 60.0
"""Seconds by which clocks of servers may differ; what was decided later than that from now on was decided by a clock
that has been corrected since."""
MAX_STEP: Final = 100
"""Firings decided in one step; the next step follows at once."""
MAX_QUEUED: Final = 100
"""Firings that wait for a run to end; further ones are skipped. A backfill may add up to ``MAX_BACKFILL``."""
MAX_BACKFILL: Final = 1_000
KEPT: Final[tuple[tuple[tuple[FiringState, ...], int], ...]] = (
    (("started",), 50),
    (("ended",), 30),
    (("skipped", "missed"), 20),
)
"""Numbers of firings that are kept, by state; runs that are not over stay longest, since others wait for them."""
DONE_SECONDS: Final = 7 * 86400.0
"""Seconds for which a schedule is kept that fires no more."""


class ScheduleRecord(BaseModel):
    """A schedule as it is stored: one value, replaced by compare-and-set."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    definition: ScheduleDefinition
    uid: str
    """Part of the ids of its plans: a schedule of the same name that is created later has others."""
    created_at: float
    """Also the time from which on ``every`` counts."""
    after: float
    """Firings up to this time are decided."""
    next_at: float | None = None
    """Time of the next firing; None while it is paused, and when there is none."""
    paused: bool = False
    firings: tuple[Firing, ...] = ()
    """In the order of their decision."""

    @classmethod
    def create(cls, definition: ScheduleDefinition, uid: str, now: float, before: ScheduleRecord | None = None) -> Self:
        """Make the record of a new definition.

        The one that it replaces hands down its state. With the same times, also those that are due and undecided.
        """
        if before is None:
            made = cls(definition=definition, uid=uid, created_at=now, after=now)
        else:
            same = definition.fires_like(before.definition)
            times = {} if same else {"created_at": now, "after": now}
            made = cls(**{**dict(before), "definition": definition, **times})
        return made._timed()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a stored record.

        Raises:
            InvalidEnvelope: it is none.
        """
        try:
            return cls.model_validate(unpack(value))
        except (ValidationError, ValueError) as error:
            raise InvalidEnvelope(f"not a schedule: {type(error).__name__}") from error

    def encode(self) -> bytes:
        return pack(self.model_dump())

    @property
    def ttl(self) -> float | None:
        """Seconds after which the schedule is deleted; None: it still fires, or waits for people."""
        done = self.next_at is None and not self.paused and not any(self.of(state) for state in ("due", "queued"))
        return DONE_SECONDS if done else None

    def of(self, *states: FiringState) -> list[Firing]:
        """Return the firings in one of some states, the oldest first."""
        return [each for each in self.firings if each.state in states]

    def lateness(self, now: float) -> float:
        """Return by how many seconds the firing that is due first is late; 0 when none is."""
        times = [each.time for each in self.of("due") if each.kind != "backfill"]
        if self.next_at is not None:
            times.append(self.next_at)
        return max(0.0, now - min(times, default=now))

    def plan_id(self, firing: Firing) -> str:
        """Return the id of a firing's plan."""
        return f"{self.definition.name}:{self.uid}:{firing.id}"

    # What people do.

    def pause(self) -> Self:
        """Stop firing by time. Firings that wait are skipped; triggers and backfills go on."""
        stopped = {each.id for each in self.of("queued") if each.kind == "time"}
        return self._moved(stopped, "skipped", paused=True)._timed()

    def resume(self, now: float) -> Self:
        """Fire again, from now on: what was paused is not made up."""
        if not self.paused:
            return self
        return self.model_copy(update={"paused": False, "after": now})._timed()

    def trigger(self, trigger_id: str, now: float) -> Self:
        """Add a firing that is not by time. The same id again changes nothing."""
        return self._with([trigger_firing(trigger_id, now)])

    def backfill(self, times: Iterable[float]) -> Self:
        """Add firings of the past, except those that have started; one after another unless runs may overlap.

        Raises:
            InvalidSchedule: there are too many.
        """
        state: FiringState = "due" if self.definition.overlap == "allow" else "queued"
        begun = {each.id for each in self.firings if each.state not in ("skipped", "missed")}
        added = [firing_at(each, "backfill").in_state(state) for each in times]
        added = [each for each in added if each.id not in begun]
        if len(added) + len(self.of("due", "queued")) > MAX_BACKFILL:
            fault = f"a backfill has at most {MAX_BACKFILL} firings, with those that wait: give a shorter time"
            raise InvalidSchedule(self.definition.name, [fault])
        again = {each.id for each in added}
        kept = tuple(each for each in self.firings if each.id not in again)
        return self.model_copy(update={"firings": kept})._with(added)

    def times_between(self, begin: float, end: float) -> list[float]:
        """Return the times from one to another, both included, and at most one more than a backfill may have."""
        times: list[float] = []
        moment = self.definition.next_from(begin, self.created_at)
        while moment is not None and moment <= end and len(times) <= MAX_BACKFILL:
            times.append(moment)
            moment = self.definition.next_after(moment, self.created_at)
        return times

    # What time does.

    def is_due(self, now: float) -> bool:
        """Return whether there may be something to decide."""
        timed = self.next_at is not None and self.next_at <= now
        return timed or bool(self.of("queued")) or (self.after > now + CLOCK_SECONDS and not self.paused)

    @property
    def waits_for_runs(self) -> bool:
        """True if a decision needs to know which runs are over."""
        return self.definition.overlap != "allow" or bool(self.of("queued"))

    def advance(self, now: float, over: Collection[str] = ()) -> Self:
        """Decide about firings whose time has come, and about those that wait for runs to end.

        The result is a list of firings that are ``due``, which the caller stores before it sends their goals. Without
        anything to decide it is the record itself.

        Args:
            now: Seconds since the epoch.
            over: Ids of started firings whose plans are over.
        """
        record = self._moved({each.id for each in self.of("started")}.intersection(over), "ended")
        if record.after > now + CLOCK_SECONDS:
            record = record.model_copy(update={"after": now})
        taken: list[float] = []
        if not record.paused:
            taken = record._times_due(now)
            record = record._decide(taken, now)
        if (first := next(iter(record.of("queued")), None)) is not None and not record.of("due", "started"):
            record = record._moved({first.id}, "due")
        timed = record._timed()
        return self if timed == self else timed

    def settle(self, outcomes: Mapping[FiringState, Collection[str]]) -> Self:
        """Record what has become of firings that were due, by their ids."""
        record = self
        for state, ids in outcomes.items():
            record = record._moved(ids, state)
        return record

    def _times_due(self, now: float) -> list[float]:
        times: list[float] = []
        moment = self._next(self.after)
        if moment is not None and moment <= now:  # what is too late anyway is not counted one by one
            earliest = now - max(self.definition.catch_up, LATE_NEWEST_SECONDS)
            if moment < earliest:
                times.append(moment)
                moment = self.definition.next_from(earliest, self.created_at)
        while moment is not None and moment <= now and len(times) < MAX_STEP:
            times.append(moment)
            moment = self._next(moment)
        return times

    def _decide(self, times: Sequence[float], now: float) -> Self:
        record, added = self, list[Firing]()
        busy = bool(record.of("due", "queued", "started"))
        waiting = len(record.of("queued"))
        known = {each.id for each in record.firings}
        for moment in times:
            firing, late = firing_at(moment), now - moment
            newest = (following := self._next(moment)) is None or following > now
            if firing.id in known:
                continue
            if late > max(self.definition.catch_up, LATE_NEWEST_SECONDS if newest else LATE_SECONDS):
                state: FiringState = "missed"
            elif self.definition.overlap == "allow" or not busy:
                state, busy = "due", True
            elif self.definition.overlap == "queue" and waiting < MAX_QUEUED:
                state, waiting = "queued", waiting + 1
            else:
                state = "skipped"
            added.append(firing.in_state(state))
        record = record._with(added)
        return record.model_copy(update={"after": times[-1]}) if times else record

    def _next(self, after: float) -> float | None:
        return self.definition.next_after(after, self.created_at)

    def _timed(self) -> Self:
        next_at = None if self.paused else self._next(self.after)
        return self if next_at == self.next_at else self.model_copy(update={"next_at": next_at})

    def _with(self, added: Sequence[Firing]) -> Self:
        known = {each.id for each in self.firings}
        new = [each for each in added if each.id not in known]
        return self._kept((*self.firings, *new)) if new else self

    def _moved(self, ids: Collection[str], state: FiringState, **fields: Any) -> Self:
        if ids:
            fields["firings"] = tuple(each.in_state(state) if each.id in ids else each for each in self.firings)
        moved = self.model_copy(update=fields) if fields else self
        return moved._kept(moved.firings) if ids else moved

    def _kept(self, firings: tuple[Firing, ...]) -> Self:
        """Drop the oldest of the firings that are decided of each state."""
        dropped: set[str] = set()
        for states, most in KEPT:
            decided = [each.id for each in firings if each.state in states]
            dropped.update(decided[: max(0, len(decided) - most)])
        return self.model_copy(update={"firings": tuple(each for each in firings if each.id not in dropped)})
