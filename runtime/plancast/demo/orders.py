"""The demo of the orders: thirty of them, each step decided by a model or by the stand-in for one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.demo import orders_display, stub_model
from plancast.demo.driver import Spent
from plancast.demo.orders_cases import choose_orders
from plancast.demo.orders_driver import OrderDrive, OrderRun
from plancast.demo.runner import deployed_with_model
from plancast.terminal.output import out, plural, print_json, public_url

APPROVAL_SECONDS = "6"
"""How long an order of the demo waits for the manager."""


async def process_orders(plans: int, seed: int | None, *, model: str | None, json_output: bool) -> int:
    """Run so many orders, and show how they went; 0 when all ended as they should."""
    if plans < 1:
        raise ValueError("the demo needs at least one order")
    seed = random.randrange(1_000_000) if seed is None else seed
    console = out()
    with orders_display.OrderBoard(console, quiet=json_output) as board:
        decides = model or "a stand-in for a model, which knows the rules of this example and no more,"
        board.note(f"starting nats-server and Ray; {decides} decides (seed {seed})")
        environment = {"ORDERS_APPROVAL_SECONDS": APPROVAL_SECONDS}
        async with (
            deployed_with_model("orders", model, environment) as runtime,
            Client.connect(runtime.nats_url) as client,
        ):
            drive = OrderDrive(client, choose_orders(plans, seed), board)
            board.watch(drive)
            board.note(f"NATS is at {public_url(runtime.nats_url)}; submitting {plural(plans, 'order')}")
            begun = time.monotonic()
            await drive.run()
            seconds = time.monotonic() - begun
            board.note("every order has been heard of; stopping")
    good = not any(run.faults for run in drive.runs)
    if json_output:
        print_json(_report(seed, model, drive.runs, seconds, good))
    else:
        _show(console, seed, model, drive.runs)
    return 0 if good else 1


def _show(console: Console, seed: int, model: str | None, runs: Sequence[OrderRun]) -> None:
    told = max(runs, key=lambda run: len(run.account.steps))
    console.print()
    orders_display.print_orders(console, runs)
    console.print()
    title = f"Decisions of plan {told.handle.plan_id}: {told.case.order_id}, {told.case.item} for {told.case.customer}"
    orders_display.print_decisions(console, title, told.account, told.submitted_at)
    console.print()
    spent = Spent.total(run.account.spent for run in runs)
    orders_display.print_spent(console, model or stub_model.MODEL, spent, stand_in=model is None)
    console.print()
    orders_display.print_order_faults(console, runs)
    good = sum(not run.faults for run in runs)
    style = "bold green" if good == len(runs) else "bold red"
    console.print(Text(f"{good} of {plural(len(runs), 'order')} ended as they should (seed {seed})", style=style))


def _report(seed: int, model: str | None, runs: Sequence[OrderRun], seconds: float, good: bool) -> dict[str, Any]:
    return {
        "good": good,
        "seed": seed,
        "model": model or stub_model.MODEL,
        "stand_in": model is None,
        "seconds": round(seconds, 3),
        "spent": asdict(Spent.total(run.account.spent for run in runs)),
        "orders": [
            {
                **run.case.goal,
                "plan_id": run.handle.plan_id,
                "decisions": [{"action": dict(step.action), "why": step.reasoning} for step in run.account.steps],
                "outcome": run.outcome,
                "error": run.error or None,
                "seconds": round(run.seconds, 3) if run.ended_at else None,
                "spent": asdict(run.account.spent),
                "faults": run.faults,
            }
            for run in runs
        ],
    }
