"""`plancast plans`: inspects and controls plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plancast.cli import completion
from plancast.cli.connection import open_client, read_json, read_object
from plancast.cli.errors import DONE, FAILED, usage_error
from plancast.cli.options import AsJson, NatsUrl, PlanId, Verbose
from plancast.cli.plans import approvals, history_view, plan_view, replay, rollback
from plancast.cli.plans.graph import mermaid
from plancast.plan.attributes import read_attribute
from plancast.plan.status import ListedStatus, PlanStatus
from plancast.terminal.output import print_json, print_line, report_line
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from plancast.client.client import PlanPage
    from plancast.client.handle import PlanHandle
    from plancast.client.signals import SignalOutcome
    from plancast.plan_store.effects import PlanEffect
    from plancast.plan_store.plan_size import PlanSize

_T = TypeVar("_T")

plans = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help="Inspect and control plans.")
plans.command("replay")(replay.replay)
plans.command("fork")(replay.fork)
plans.command("approve")(approvals.approve)
plans.command("reject")(approvals.reject)


@plans.command("list")
def list_plans(
    status: Annotated[
        ListedStatus | None, typer.Option(help="Only plans with this status; waiting: for people.")
    ] = None,
    session_id: Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this session.")] = None,
    tenant_id: Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this tenant.")] = None,
    goal: Annotated[
        str | None,
        typer.Option(metavar="EVENT", help="Only plans with this goal.", autocompletion=completion.goals),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only plans with this text in their ids, goal, state or planner."),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", show_default=False, help="Only plans with this search attribute."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of plans; 0 for all.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="List all plans, as --limit 0 does.")] = False,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Continue a truncated list; it ends with the value to use.")
    ] = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List plans, the most recently updated first."""

    async def read() -> PlanPage:
        async with open_client(nats_url) as client:
            return await client.plans(
                status=status,
                session_id=session_id,
                tenant_id=tenant_id,
                goal_event=goal,
                text=text,
                attributes=having,
                limit=None if everything else limit or None,
                after=after,
            )

    if after is not None and not after.isdecimal():
        raise usage_error("--after needs the number that a truncated list ended with")
    try:
        having = dict(map(read_attribute, attribute or ()))
    except ValueError as error:
        raise usage_error(f"--attribute: {error}") from error
    with working("reading plans"):
        page = asyncio.run(read())
    if as_json:
        print_json([plan_view.summary_document(each) for each in page])
    else:
        plan_view.show_list(page, time.time(), following=page.next)
    return DONE


@plans.command()
def show(
    plan: PlanId,
    graph: Annotated[bool, typer.Option("--graph", help="Print the state machine as a Mermaid diagram.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Show a plan: its state, open requests, results, effects and path."""

    async def look(handle: PlanHandle) -> tuple[dict[str, Any], list[dict[str, Any]], PlanSize, list[PlanEffect]]:
        return await handle.state(), await handle.history(), await handle.size(), await handle.effects()

    state, history, size, effects = asyncio.run(_with_plan(nats_url, plan, look))
    if graph:
        diagram = mermaid(state, history)
        if as_json:
            print_json({"plan_id": state["plan_id"], "mermaid": diagram})
        else:
            print_line(diagram)
    elif as_json:
        print_json(plan_view.plan_document(state, history, size, effects))
    else:
        plan_view.show_plan(state, history, size, effects, time.time())
    return DONE


@plans.command()
def history(
    plan: PlanId,
    full: Annotated[bool, typer.Option("--full", help="Include the data of each event and all sent events.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Show a plan's timeline, one turn per line, oldest first."""

    async def look(handle: PlanHandle) -> list[dict[str, Any]]:
        return await handle.history()

    entries = asyncio.run(_with_plan(nats_url, plan, look))
    if as_json:
        print_json(entries)
    elif full:
        history_view.show_full(entries)
    else:
        history_view.show_table(entries)
    return DONE


@plans.command()
def watch(
    plan: PlanId,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on after the change with this cursor, or after a turn.")
    ] = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Follow a plan and its running tasks until it ends. Exits 1 when it fails.

    --json prints one line of JSON per change, with its cursor.
    """

    from plancast.client.changes import Cursor

    try:
        cursor = None if after is None else str(Cursor.read(after))
    except ValueError as error:
        raise usage_error(str(error)) from None

    async def follow(handle: PlanHandle) -> PlanStatus:
        async for change in handle.watch(cursor):
            if as_json:
                print_json(history_view.change_document(change), compact=True)
            else:
                history_view.show_change(change)
        return await handle.status()

    ended = asyncio.run(_with_plan(nats_url, plan, follow))
    return DONE if ended is PlanStatus.COMPLETED else FAILED


JsonData = Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="JSON, @file, or - for stdin.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason for the requester and the history.")]


@plans.command()
def signal(
    plan: PlanId,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", help="Event type that the plan waits for.", autocompletion=completion.awaited_events
        ),
    ],
    data: JsonData = "{}",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Send an event to a plan; an early event is stored until the plan waits for it. Exits 1 when it is ignored."""
    value = read_json(data)
    outcome = asyncio.run(_with_plan(nats_url, plan, lambda handle: handle.signal(event, value)))
    ignored = str(outcome) == "ignored"
    if as_json:
        print_json({"plan_id": plan, "sent": True, "outcome": outcome})
    else:
        report_line(f"plan {plan}: {_OUTCOMES[outcome].format(event=event)}", good=not ignored)
    return FAILED if ignored else DONE


_OUTCOMES: dict[str, str] = {
    "moved": "sent {event}; the plan has taken it",
    "kept": "sent {event}; it is kept until the plan waits for it",
    "ignored": "nothing waits for {event}, it was ignored; `plancast plans show` lists what the plan waits for",
}
"""Texts for what became of a signal."""


@plans.command()
def resume(
    plan: PlanId, data: JsonData = "{}", nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Resume a paused plan with the input that it waits for."""
    value = read_json(data)
    return _move(nats_url, plan, lambda handle: handle.resume(value), "sent the request to resume", as_json)


@plans.command()
def cancel(
    plan: PlanId, reason: Reason = "cancelled", nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Cancel a plan and its children."""
    return _move(nats_url, plan, lambda handle: handle.cancel(reason), "sent the request to cancel", as_json)


@plans.command("rollback")
def roll_back(
    plan: PlanId,
    reason: Reason = "rolled back",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exits 1 when something is left.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Undo what a plan and its children have done outside, and end it; a plan that has ended, too."""

    async def send(handle: PlanHandle) -> tuple[SignalOutcome, rollback.RolledBack | None]:
        outcome = await handle.rollback(reason)
        ignored = str(outcome) == "ignored"
        return outcome, await rollback.end_of(handle) if wait and not ignored else None

    outcome, ended = asyncio.run(_with_plan(nats_url, plan, send))
    if as_json:
        print_json({"plan_id": plan, "sent": True, "outcome": outcome} | (ended.document() if ended else {}))
    elif ended is not None:
        rollback.show(plan, ended)
    else:
        report_line(f"plan {plan}: {_ROLLBACKS[outcome]}", good=str(outcome) != "ignored")
    return FAILED if str(outcome) == "ignored" or (ended is not None and ended.is_incomplete) else DONE


_ROLLBACKS: dict[str, str] = {
    "moved": "it is being rolled back",
    "kept": "sent the rollback; it begins when the plan goes on",
    "ignored": "it is being rolled back already, or has nothing left to undo",
}
"""Texts for what became of a rollback."""


@plans.command()
def pause(
    plan: PlanId, reason: Reason = "paused", nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Pause a plan until it is resumed."""
    return _move(nats_url, plan, lambda handle: handle.pause(reason), "sent the request to pause", as_json)


@plans.command()
def redirect(
    plan: PlanId, data: JsonData, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Replace the data of a plan's goal by a JSON object; its planner sees it with its next decision."""
    goal_data = read_object(data)
    return _move(nats_url, plan, lambda handle: handle.redirect(goal_data), "sent the new goal data", as_json)


@plans.command()
def inject(
    plan: PlanId, data: JsonData, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Give a plan's planner context, which it sees with its next decision."""
    context = read_json(data)
    return _move(nats_url, plan, lambda handle: handle.inject(context), "sent context", as_json)


def _move(
    nats_url: str | None, plan: str, send: Callable[[PlanHandle], Awaitable[Any]], done: str, as_json: bool
) -> int:
    """Send a control event to a plan; an unknown or finished plan is refused by its handle."""
    asyncio.run(_with_plan(nats_url, plan, send))
    if as_json:
        print_json({"plan_id": plan, "sent": True})
    else:
        report_line(f"plan {plan}: {done}", good=True)
    return DONE


async def _with_plan(nats_url: str | None, plan: str, look: Callable[[PlanHandle], Awaitable[_T]]) -> _T:
    if not plan:
        raise usage_error("the plan id is empty")
    async with open_client(nats_url) as client:
        return await look(client.plan(plan))
