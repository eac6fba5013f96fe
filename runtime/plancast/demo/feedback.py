"""The feedback demo: a report on each product, whose steps are decided by a model or the stand-in for one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.demo import display, stub_model
from plancast.demo.decision_log import Account, Spent
from plancast.demo.runner import deployed_with_model
from plancast.errors import PlanCancelled, PlanFailed
from plancast.terminal.output import err, out, plain, plural, print_json

GOAL = "feedback.goal"
PRODUCTS = ("headphones", "kettle", "desk lamp")
PLAN_SECONDS = 180.0
"""Seconds after which a plan counts as lost; a model may take seconds for each decision."""


@dataclass
class FeedbackRun:
    product: str
    plan_id: str
    submitted_at: float
    report: str = ""
    """Markdown; empty when there is none."""
    error: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def account(self) -> Account:
        return Account.of(self.history)


async def report_feedback(plans: int, *, model: str | None, json_output: bool) -> int:
    """Run the plans, and show their reports; 0 when none is missing."""
    if plans < 1:
        raise ValueError("the demo needs at least one report")
    console, notes = out(), err()
    notes.print(Text(f"starting nats-server and Ray; {model or 'a stand-in for a model'} decides", style="dim"))
    async with deployed_with_model("feedback", model) as runtime, Client.connect(runtime.nats_url) as client:
        products = itertools.islice(itertools.cycle(PRODUCTS), plans)
        runs = await asyncio.gather(*(_run(client, product) for product in products))
    good = all(run.report for run in runs)
    if json_output:
        print_json(_report(model, runs, good))
    else:
        _show(console, model, runs)
    return 0 if good else 1


async def _run(client: Client, product: str) -> FeedbackRun:
    submitted_at = time.time()
    handle = await client.submit(GOAL, {"product": product})
    run = FeedbackRun(product, handle.plan_id, submitted_at)
    try:
        result = await handle.result(timeout=PLAN_SECONDS)
        run.report = str(result.get("report") or "") if isinstance(result, dict) else ""
        run.error = "" if run.report else f"no report in the result: {result!r:.200}"
    except (PlanFailed, PlanCancelled, TimeoutError) as error:
        run.error = str(error)
    run.history = await handle.history()
    return run


def _show(console: Console, model: str | None, runs: Sequence[FeedbackRun]) -> None:
    for run in runs:
        console.print()
        text = Text(plain(run.report)) if run.report else Text(plain(f"{run.product}: {run.error}"), style="red")
        console.print(text)
    first = runs[0]
    console.print()
    title = f"Decisions of plan {first.plan_id}: {first.product}"
    display.print_decisions(console, title, first.account, first.submitted_at)
    console.print()
    spent = Spent.total(run.account.spent for run in runs)
    display.print_spent(console, model or stub_model.MODEL, spent, stand_in=model is None)
    good = sum(bool(run.report) for run in runs)
    display.print_verdict(console, good, len(runs), f"{plural(len(runs), 'report')} written")


def _report(model: str | None, runs: Sequence[FeedbackRun], good: bool) -> dict[str, Any]:
    return {
        "good": good,
        "model": model or stub_model.MODEL,
        "stand_in": model is None,
        "spent": asdict(Spent.total(run.account.spent for run in runs)),
        "plans": [
            {
                "plan_id": run.plan_id,
                "product": run.product,
                "report": run.report or None,
                "error": run.error or None,
                "decisions": [step.document for step in run.account.steps],
            }
            for run in runs
        ],
    }
