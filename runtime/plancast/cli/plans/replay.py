"""`plancast plans replay` and `plans fork`."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.apps.validate import load
from plancast.cli.connection import open_client, read_object
from plancast.cli.errors import DONE, FAILED, usage_error
from plancast.cli.options import AsJson, NatsUrl, PlanId, Verbose
from plancast.terminal.output import print_json, report_line

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.replay.report import Replay

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="App with the current code. Without it, the plan's own machine and recorded decisions are used.",
        show_default=False,
    ),
]


class MachineChoice(StrEnum):
    """The state machine that a replay starts with."""

    THEN = "then"
    NOW = "now"


def replay(
    plan: PlanId,
    app: AppOption = None,
    machine: Annotated[
        MachineChoice,
        typer.Option(help="then: the state machine that the plan started with. now: its goal's current one."),
    ] = MachineChoice.THEN,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit 1 when a turn cannot be replayed.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Re-run a plan's history and show where the current code differs. Exits 1 when it does.

    Models and workers are not called, and nothing is sent; handlers run.
    """
    code = _app(app)
    if code is None and machine is MachineChoice.NOW:
        raise usage_error("--machine now requires the app that has the machine: --app MODULE:APP")

    async def run() -> Replay:
        async with open_client(nats_url) as client:
            return await client.plan(_named(plan)).replay(app=code, machine=machine.value)

    from plancast.cli.plans.replay_view import show_replay
    from plancast.replay.report import Outcome

    replayed = asyncio.run(run())
    if as_json:
        print_json(replayed.to_dict())
    else:
        show_replay(replayed)
    bad = (Outcome.DIFFERS, Outcome.UNKNOWN) if strict else (Outcome.DIFFERS,)
    return FAILED if replayed.outcome in bad else DONE


def fork(
    plan: PlanId,
    at: Annotated[int, typer.Option("--at", metavar="REV", help="Revision to fork at: the number of a turn, from 1.")],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="JSON", help="Changed fields of the goal's data: JSON, @file, or -."),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the new plan; forking twice with it creates one plan.")
    ] = None,
    app: AppOption = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Start a new plan from an earlier revision and print its id. Requests that were open then are sent again."""
    changed = read_object(data) if data is not None else None
    code = _app(app)

    async def run() -> str:
        async with open_client(nats_url) as client:
            handle = await client.fork(_named(plan), at=at, data=changed, correlation_id=correlation_id, app=code)
            return handle.plan_id

    fork_id = asyncio.run(run())
    if as_json:
        print_json({"plan_id": fork_id, "forked_from": plan, "revision": at})
    else:
        report_line(f"plan {fork_id}: continues from revision {at} of plan {plan}", good=True)
    return DONE


def _app(address: str | None) -> App | None:
    return load(address) if address is not None else None


def _named(plan: str) -> str:
    if not plan:
        raise usage_error("the plan id is empty")
    return plan
