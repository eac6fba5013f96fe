"""The demo of the tickets: the same ones, decided by a tree, a model or a state machine; a plan host is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.demo import PlannerKind, display, orders_display, stub_model
from plancast.demo.driver import SUBMITTED, Cost, most_telling
from plancast.demo.driver_account import Spent
from plancast.demo.research import Executioner
from plancast.demo.runner import deployed
from plancast.demo.triage_cases import choose_tickets
from plancast.demo.triage_drive import ASKED, FAILED, REJECTED, ROUTED, UNDER_WAY, TicketRun, TriageDrive
from plancast.demo.with_model import deployed_with_model
from plancast.terminal.output import cell, duration, out, plural, print_json, public_url, table

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

WORDS: Final = {"tree": "a decision tree", "machine": "a state machine"}
STYLES: Final = {ROUTED: "green", REJECTED: "magenta", FAILED: "bold red"}


class TicketBoard(display.Board):
    """A board that shows how tickets stand."""

    states = (SUBMITTED, UNDER_WAY, ASKED, ROUTED, REJECTED)


async def triage_tickets(
    plans: int, seed: int | None, *, planner: PlannerKind, model: str | None, kill: bool, json_output: bool
) -> int:
    """Run so many tickets, kill a plan host halfway, and show how they ended; 0 when all is as it should be."""
    if plans < 1:
        raise ValueError("the demo needs at least one ticket")
    seed = random.randrange(1_000_000) if seed is None else seed
    console = out()
    with TicketBoard(console, quiet=json_output) as board:
        who = (
            WORDS.get(planner) or model or "a stand-in for a model, which knows the rules of this example and no more,"
        )
        board.note(f"starting nats-server and Ray; {who} decides (seed {seed})")
        async with _deployed(planner, model) as runtime, Client.connect(runtime.nats_url) as client:
            drive = TriageDrive(client, choose_tickets(plans, seed), board)
            board.follow(drive)
            board.note(f"NATS is at {public_url(runtime.nats_url)}; submitting {plural(plans, 'ticket')}")
            executioner = Executioner(runtime, board)
            begun = time.monotonic()
            await drive.run(executioner.kill if kill else None)
            seconds = time.monotonic() - begun
            cost = await executioner.cost(drive.runs) if kill else None
            board.note("every ticket has been heard of; stopping")
    good = not any(run.faults() for run in drive.runs)
    stand_in = planner == "llm" and model is None
    model = (model or stub_model.MODEL) if planner == "llm" else None
    if json_output:
        told = {"good": good, "seed": seed, "planner": planner, "model": model, "stand_in": stand_in}
        print_json({**told, "seconds": round(seconds, 3), **_report(drive.runs, cost)})
    else:
        _show(console, drive.runs, cost, executioner.killed_at)
        if model is not None:
            console.print()
            orders_display.print_spent(console, model, _spent(drive.runs), stand_in=stand_in)
        console.print()
        display.print_faults(console, drive.runs)
        console.print(_summary(drive.runs, who if planner in WORDS else model or "", seed, seconds))
    return 0 if good else 1


def _deployed(planner: PlannerKind, model: str | None) -> AbstractAsyncContextManager[LocalRuntime]:
    if planner == "llm":
        return deployed_with_model("triage", model, app="llm_app")
    return deployed(f"plancast.demo.apps.triage:{planner}_app")


def _show(console: Console, runs: Sequence[TicketRun], cost: Cost | None, killed_at: float | None) -> None:
    console.print()
    _print_tickets(console, runs)
    console.print()
    display.print_timeline(console, most_telling(runs, killed_at), killed_at)
    if cost is not None:
        console.print()
        display.print_cost(console, cost)


def _print_tickets(console: Console, runs: Sequence[TicketRun]) -> None:
    """A row for each ticket: what was found out, who let it pass, its queue, and what it took."""
    right = ("turns", "time")
    shown = table("ticket", "subject", "category", "severity", "person", "end", "turns", "time", "", right=right)
    for run in sorted(runs, key=lambda run: run.case.ticket_id):
        good = not run.faults()
        result = run.result if isinstance(run.result, dict) else {}
        shown.add_row(
            cell(run.case.ticket_id),
            cell(run.case.subject),
            cell(str(result.get("category", "–"))),
            cell(str(result.get("severity", "–"))),
            cell(run.case.person if run.asked_at else ""),
            cell(str(result.get("queue") or run.state), STYLES.get(run.state, "")),
            cell(str(len(run.history))),
            cell(duration(run.seconds) if run.ended_at else "–"),
            cell("✓" if good else "✗", "green" if good else "bold red"),
        )
    console.print(shown)


def _summary(runs: Sequence[TicketRun], who: str, seed: int, seconds: float) -> Text:
    good = sum(not run.faults() for run in runs)
    routed = sum(len(run.committed) == 1 for run in runs)
    return Text(
        f"{good} of {plural(len(runs), 'ticket')} ended as they should in {duration(seconds)}, {routed} routed once "
        f"each; {who} decided (seed {seed})",
        style="bold green" if good == len(runs) else "bold red",
    )


def _spent(runs: Sequence[TicketRun]) -> Spent:
    return Spent.total(run.account.spent for run in runs)


def _report(runs: Sequence[TicketRun], cost: Cost | None) -> dict[str, Any]:
    return {
        "spent": asdict(_spent(runs)),
        "tickets": [
            {
                **run.case.goal,
                "plan_id": run.handle.plan_id,
                "decisions": [{"action": dict(step.action), "why": step.reasoning} for step in run.account.steps],
                "path": run.path_at(run.ended_at),
                "result": run.result,
                "error": run.error or None,
                "seconds": round(run.seconds, 3) if run.ended_at else None,
                "responses": run.responses,
                "routed": run.committed,
                "faults": run.faults(),
            }
            for run in runs
        ],
        "kill": asdict(cost) if cost is not None else None,
    }
