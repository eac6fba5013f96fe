"""`plancast plans`: look at plans, and move them."""

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
from plancast.cli.plans import history_view, plan_view, replay
from plancast.cli.plans.graph import mermaid
from plancast.plan.status import PlanStatus
from plancast.terminal.output import print_json, print_line, report_line
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from plancast.client.client import PlanPage
    from plancast.client.handle import PlanHandle

_T = TypeVar("_T")

plans = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help="Look at plans, and move them.")
plans.command("replay")(replay.replay)
plans.command("fork")(replay.fork)


@plans.command("list")
def list_plans(
    status: Annotated[PlanStatus | None, typer.Option(help="Only plans of this status.")] = None,
    session_id: Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this session.")] = None,
    tenant_id: Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this tenant.")] = None,
    goal: Annotated[
        str | None,
        typer.Option(metavar="EVENT", help="Only plans of this goal.", autocompletion=completion.goals),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only plans with this text in an id, their goal, state or planner."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="At most so many; 0 for all.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="All of them, as --limit 0.")] = False,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on behind a list that was cut off, where it said.")
    ] = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List plans, the one that moved last first."""

    async def read() -> PlanPage:
        async with open_client(nats_url) as client:
            return await client.plans(
                status=status,
                session_id=session_id,
                tenant_id=tenant_id,
                goal_event=goal,
                text=text,
                limit=None if everything else limit or None,
                after=after,
            )

    if after is not None and not after.isdecimal():
        raise usage_error("--after takes the number that a list has ended with")
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
    """Show a plan: where it stands, what it waits for, what it has learned, and the way it took."""

    async def look(handle: PlanHandle) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return await handle.state(), await handle.history()

    state, history = asyncio.run(_with_plan(nats_url, plan, look))
    if graph:
        diagram = mermaid(state, history)
        if as_json:
            print_json({"plan_id": state["plan_id"], "mermaid": diagram})
        else:
            print_line(diagram)
    elif as_json:
        print_json(plan_view.plan_document(state, history))
    else:
        plan_view.show_plan(state, history, time.time())
    return DONE


@plans.command()
def history(
    plan: PlanId,
    full: Annotated[bool, typer.Option("--full", help="With the data of each event, and all that was sent.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Show a plan's timeline: one turn a line, oldest first."""

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
def watch(plan: PlanId, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0) -> int:
    """Follow a plan until it ends; exits 1 when it fails. With --json one line of JSON for each change."""

    async def follow(handle: PlanHandle) -> PlanStatus:
        status = PlanStatus.PENDING
        async for change in handle.watch():
            status = change.status
            if as_json:
                print_json(history_view.change_document(change), compact=True)
            else:
                history_view.show_change(change)
        return status

    ended = asyncio.run(_with_plan(nats_url, plan, follow))
    return DONE if ended is PlanStatus.COMPLETED else FAILED


@plans.command()
def signal(
    plan: PlanId,
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", help="The event type that the plan waits for.", autocompletion=completion.awaited_events
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="JSON", help="The event's data: JSON, @file, or -.")
    ] = "{}",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Send an event to a plan; one that comes early is kept until the plan waits for it."""
    said = read_json(data)
    return _move(nats_url, plan, lambda handle: handle.signal(event, said), f"sent {event}", as_json)


@plans.command()
def resume(
    plan: PlanId,
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="The input: JSON, @file, or -.")] = "{}",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Let a paused plan go on, with what it was waiting for."""
    said = read_json(data)
    return _move(nats_url, plan, lambda handle: handle.resume(said), "asked to resume", as_json)


@plans.command()
def cancel(
    plan: PlanId,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; the requester and the history are told.")
    ] = "cancelled",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Cancel a plan and its children."""
    return _move(nats_url, plan, lambda handle: handle.cancel(reason), "asked to cancel", as_json)


@plans.command()
def pause(
    plan: PlanId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; `plans show` tells.")] = "paused",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Hold a plan until it is resumed."""
    return _move(nats_url, plan, lambda handle: handle.pause(reason), "asked to pause", as_json)


@plans.command()
def reject(
    plan: PlanId,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; the requester and the history are told.")
    ] = "rejected",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """End a plan as failed, because it may not go on like this."""
    return _move(nats_url, plan, lambda handle: handle.reject(reason), "asked to fail", as_json)


@plans.command()
def redirect(
    plan: PlanId,
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="JSON", help="All of the new data: a JSON object, @file, or -.")
    ],
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Give a plan's goal new data, which its planner is shown the next time it is asked."""
    goal_data = read_object(data)
    return _move(nats_url, plan, lambda handle: handle.redirect(goal_data), "asked to redirect", as_json)


@plans.command()
def inject(
    plan: PlanId,
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="The context: JSON, @file, or -.")],
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Hand a plan's planner context, which it is shown the next time it is asked."""
    context = read_json(data)
    return _move(nats_url, plan, lambda handle: handle.inject(context), "sent context", as_json)


def _move(
    nats_url: str | None,
    plan: str,
    send: Callable[[PlanHandle], Awaitable[Any]],
    done: str,
    as_json: bool,
) -> int:
    """Send something to a plan; the handle refuses one that is unknown or has ended."""
    asyncio.run(_with_plan(nats_url, plan, send))
    if as_json:
        print_json({"plan_id": plan, "sent": True})
    else:
        report_line(f"plan {plan}: {done}", good=True)
    return DONE


async def _with_plan(nats_url: str | None, plan: str, look: Callable[[PlanHandle], Awaitable[_T]]) -> _T:
    if not plan:
        raise usage_error("a plan's id may not be empty")
    async with open_client(nats_url) as client:
        return await look(client.plan(plan))
