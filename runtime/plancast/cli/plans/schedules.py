"""`plancast schedules`: goals that are submitted at times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plancast.cli import completion
from plancast.cli.connection import open_client, read_json
from plancast.cli.errors import DONE
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import (
    cell,
    fields,
    iso,
    note,
    out,
    print_json,
    print_line,
    report_line,
    status_text,
    table,
)

if TYPE_CHECKING:
    from plancast.client.schedules import ScheduleRun, Schedules, ScheduleSummary

_T = TypeVar("_T")
schedules = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Submit goals at times: by cron, at intervals, or once.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
OfTenant = Annotated[str | None, typer.Option("--tenant-id", metavar="ID", help="Tenant of the schedule.")]


class Overlap(StrEnum):
    """Treatment of a firing while an earlier run is not over."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


@schedules.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")],
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The goal to submit.", autocompletion=completion.goals)],
    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", show_default=False, help="The goal's data: JSON, @file, or - for standard input."),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="CRON", help="Fire by a cron expression, such as '0 9 * * MON-FRI'.")
    ] = None,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", help="Fire at intervals.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Fire once, such as 2030-01-31T09:00.")] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron and --at.")] = "UTC",
    overlap: Annotated[
        Overlap, typer.Option(help="Treatment of a firing while an earlier run goes on.")
    ] = Overlap.SKIP,
    catch_up: Annotated[float, typer.Option(metavar="SECONDS", help="Make up firings that are this late.")] = 0.0,
    user_id: Annotated[str, typer.Option(metavar="ID", help="The user for whom the plans run.")] = "",
    session_id: Annotated[str, typer.Option(metavar="ID", help="Session of the plans.")] = "",
    tenant_id: Annotated[str | None, typer.Option(metavar="ID", help="Tenant of schedule and plans.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a schedule of this name.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Create a schedule; give one of --cron, --every and --at."""
    sent = read_json(data, "--data") if data is not None else None

    async def run(of: Schedules) -> ScheduleSummary:
        return await of.create(
            name,
            event_type=event,
            data=sent,
            cron=cron,
            every=every,
            at=at,
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            user_id=user_id,
            session_id=session_id,
            tenant_id=tenant_id,
            replace=replace,
        )

    return _tell(_call(nats_url, run), "is created", as_json)


@schedules.command("list")
def list_schedules(
    tenant_id: OfTenant = None, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """List schedules."""
    found = _call(nats_url, lambda of: of.list(tenant_id=tenant_id))
    if as_json:
        print_json([_document(each) for each in found])
    elif not found:
        note("no schedules")
    else:
        made = table("schedule", "goal", "fires", "overlap", "next", "last")
        for each in found:
            made.add_row(
                cell(_label(each)), cell(each.event_type, "cyan"), cell(each.times), cell(each.overlap),
                cell("paused" if each.paused else _text(each.next_at), "yellow" if each.paused else ""),
                cell(_text(each.last_at), "dim"),
            )  # fmt: skip
        out().print(made)
    return DONE


@schedules.command()
def show(
    name: Name, tenant_id: OfTenant = None, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Show a schedule."""
    found = _document(_call(nats_url, lambda of: of.get(name, tenant_id=tenant_id)))
    if as_json:
        print_json(found)
        return DONE
    made = fields()
    for field, value in found.items():
        if value not in (None, "", {}):
            made.add_row(field.replace("_", " "), cell(value))
    out().print(made)
    return DONE


@schedules.command()
def pause(
    name: Name, tenant_id: OfTenant = None, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Stop a schedule until it is resumed; triggers and backfills go on."""
    return _tell(_call(nats_url, lambda of: of.pause(name, tenant_id=tenant_id)), "is paused", as_json)


@schedules.command()
def resume(
    name: Name, tenant_id: OfTenant = None, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Let a paused schedule fire again; what was paused is not made up."""
    return _tell(_call(nats_url, lambda of: of.resume(name, tenant_id=tenant_id)), "is resumed", as_json)


@schedules.command()
def delete(name: Name, tenant_id: OfTenant = None, nats_url: NatsUrl = None, verbose: Verbose = 0) -> int:
    """Delete a schedule; its plans go on."""
    _call(nats_url, lambda of: of.delete(name, tenant_id=tenant_id))
    report_line(f"schedule {name} is deleted", good=True)
    return DONE


@schedules.command()
def trigger(
    name: Name,
    trigger_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Triggers with the same id start one plan.")
    ] = None,
    tenant_id: OfTenant = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Start a plan of a schedule now, also while it is paused, and print the plan's id."""

    async def run(of: Schedules) -> str:
        return (await of.trigger(name, trigger_id=trigger_id, tenant_id=tenant_id)).plan_id

    plan_id = _call(nats_url, run)
    if as_json:
        print_json({"schedule": name, "plan_id": plan_id})
    else:
        print_line(plan_id)
    return DONE


@schedules.command()
def backfill(
    name: Name,
    begin: Annotated[str, typer.Argument(metavar="FROM", help="First time, such as 2026-01-31 or 2026-01-31T09:00.")],
    end: Annotated[str, typer.Argument(metavar="TO", help="Last time, in the past.")],
    tenant_id: OfTenant = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Start plans for past times of a schedule, one after another unless they may overlap."""
    times = _call(nats_url, lambda of: of.backfill(name, begin, end, tenant_id=tenant_id))
    if as_json:
        print_json({"schedule": name, "times": [iso(each.timestamp()) for each in times]})
    elif times:
        report_line(f"schedule {name}: {len(times)} from {_text(times[0])} to {_text(times[-1])}", good=True)
    else:
        note(f"{name} has no times from {begin} to {end}")
    return DONE


@schedules.command()
def runs(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of firings.")] = 20,
    tenant_id: OfTenant = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List the newest firings of a schedule, with the plans that they have started."""
    found: list[ScheduleRun] = _call(nats_url, lambda of: of.runs(name, limit=limit, tenant_id=tenant_id))
    if as_json:
        print_json([each._asdict() | {"time": iso(each.time.timestamp())} for each in found])
    elif not found:
        note(f"{name} has not fired")
    else:
        made = table("time", "by", "state", "plan", "status")
        for each in found:
            status = status_text(each.status) if each.status else cell("")
            made.add_row(cell(_text(each.time)), cell(each.kind), cell(each.state), cell(each.plan_id), status)
        out().print(made)
    return DONE


def _call(nats_url: str | None, work: Callable[[Schedules], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with open_client(nats_url) as client:
            return await work(client.schedules)

    return asyncio.run(run())


def _tell(schedule: ScheduleSummary, what: str, as_json: bool) -> int:
    if as_json:
        print_json(_document(schedule))
    else:
        following = f"; it fires next at {_text(schedule.next_at)}" if schedule.next_at is not None else ""
        report_line(f"schedule {schedule.name} {what}{following}", good=True)
    return DONE


def _document(schedule: ScheduleSummary) -> dict[str, Any]:
    return {
        name: iso(value.timestamp()) if isinstance(value, datetime) else value
        for name, value in asdict(schedule).items()
    }


def _label(schedule: ScheduleSummary) -> str:
    return f"{schedule.name} ({schedule.tenant_id})" if schedule.tenant_id else schedule.name


def _text(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z" if moment is not None else "–"
