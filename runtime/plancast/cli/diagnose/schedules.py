"""The check of schedules: those that are late, paused or cannot be read, and those whose runs fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from plancast.cli.diagnose.finding import NAMED, Finding, fault, ok, warning
from plancast.terminal.output import duration, plural
from plancast_bus.errors import AccessDenied, InvalidEnvelope

if TYPE_CHECKING:
    from plancast.schedules.record import ScheduleRecord
    from plancast_bus.ports.bus import Bus

MAX_RUNS: Final = 500
"""Maximum number of runs whose status is read."""


@dataclass(frozen=True)
class ScheduleReport:
    """State of all schedules, each by its name and its tenant."""

    total: int
    late: tuple[str, ...] = ()
    """With the seconds by which they are late."""
    paused: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    """Those whose newest run has failed or was cancelled, with its plan; of the ``MAX_RUNS`` that fired last."""
    unreadable: int = 0


async def read_schedules(bus: Bus) -> ScheduleReport | None:
    """Read all schedules, and how the last runs of those that fired last have ended."""
    from plancast.plan_store.run_status import run_status
    from plancast.schedules.record import LATE_SECONDS, ScheduleRecord

    try:
        stored = await bus.schedules.list()
    except AccessDenied:
        return None
    records, unreadable = list[ScheduleRecord](), 0
    for each in stored:
        try:
            records.append(ScheduleRecord.decode(each.value))
        except InvalidEnvelope:
            unreadable += 1
    records.sort(key=lambda record: record.definition.key[::-1])
    now = bus.clock.time()
    lateness = {_label(each): seconds for each in records if (seconds := each.lateness(now)) > LATE_SECONDS}
    ended = [(each.of("started", "ended")[-1], each) for each in records if each.of("started", "ended")]
    failing = list[str]()
    for firing, record in sorted(ended, key=lambda pair: -pair[0].time)[:MAX_RUNS]:
        try:
            status = await run_status(bus, record.plan_id(firing), record.definition.event_type)
        except InvalidEnvelope:
            status = "unreadable"
        if status in ("failed", "cancelled", "unreadable"):
            failing.append(f"{_label(record)} ({status}: {record.plan_id(firing)})")
    return ScheduleReport(
        total=len(stored),
        late=tuple(f"{name} by {duration(seconds)}" for name, seconds in lateness.items()),
        paused=tuple(_label(each) for each in records if each.paused),
        failing=tuple(failing),
        unreadable=unreadable,
    )


def _label(record: ScheduleRecord) -> str:
    of = record.definition
    return f"{of.name} (tenant {of.tenant_id})" if of.tenant_id else of.name


def schedule_findings(report: ScheduleReport) -> Iterator[Finding]:
    """Yield what a person should know of the schedules."""
    if report.late:
        yield fault(
            f"{plural(len(report.late), 'schedule')} late: {_some(report.late)}",
            "`plancast status` shows whether a dispatcher is alive; its log names schedules that do not fire.",
            "Firings that are too late are not made up, unless the schedule has a catch_up.",
        )
    if report.unreadable:
        yield fault(
            f"{plural(report.unreadable, 'schedule')} cannot be read",
            "A newer version may have written them: upgrade, or create them again.",
            "They do not fire.",
        )
    if report.failing:
        yield warning(
            f"{plural(len(report.failing), 'schedule')} whose last run has failed: {_some(report.failing)}",
            "`plancast schedules runs NAME` lists the plans; `plancast plans history PLAN` shows what happened.",
        )
    if report.paused:
        yield ok(f"{plural(len(report.paused), 'schedule')} paused: {_some(report.paused)}")
    if report.total and not report.late:
        yield ok(f"{plural(report.total, 'schedule')}, none is late")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
