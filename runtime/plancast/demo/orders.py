"""The orders demo: every step of an order is decided by a model, or by the stand-in for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rich.console import Console

from plancast.client.handle import PlanHandle
from plancast.demo import display, stub_model
from plancast.demo.decision_log import Account, Spent
from plancast.demo.driver import SUBMITTED, Journey, PlanDrive, choose, mixed
from plancast.demo.runner import deployed_with_model
from plancast.demo.session import STAND_IN, Session, run_session, seed_of
from plancast.errors import PlanFinished
from plancast.plan.status import PlanStatus
from plancast.terminal.output import cell, out, plural, print_json, table

GOAL, RESPONSE, DECIDED = "order.received", "order.processed", "approval.decided"
PAYMENT, SHIPPING, CHECK = "payment.process.requested", "shipping.requested", "compliance.check"
UNDER_WAY, ASKED, PLAN_FAILED = "under way", "asked", "plan failed"
STATES = (SUBMITTED, UNDER_WAY, ASKED, "shipped", "rejected", "expired", "refused")
STYLES = {"shipped": "green", "rejected": "magenta", "expired": "yellow", "refused": "red", PLAN_FAILED: "bold red"}
APPROVAL_SECONDS = "6"
"""Seconds that an order of the demo waits for the manager."""
MANAGER_SECONDS = 0.7
"""Seconds that the manager takes to decide."""


async def process_orders(plans: int, seed: int | None, *, model: str | None, json_output: bool) -> int:
    """Run the orders, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, "order")
    console = out()
    with display.Board(console, "order", STATES, STYLES, quiet=json_output) as board:
        board.note(f"starting nats-server and Ray; {model or STAND_IN} decides (seed {seed})")
        cases = choose_orders(plans, seed)
        deployment = deployed_with_model("orders", model, {"ORDERS_APPROVAL_SECONDS": APPROVAL_SECONDS})
        session = await run_session(board, deployment, lambda client: OrderDrive(client, cases, board))
    if json_output:
        print_json(_report(seed, model, session))
    else:
        _show(console, seed, model, session.runs)
    return 0 if session.good else 1


Manager = Literal["", "approves", "rejects", "is silent"]
Outcome = Literal["shipped", "rejected", "expired", "refused"]
LIMIT = 5_000.0
"""US dollars above which a manager decides."""


@dataclass(frozen=True)
class OrderCase:
    """An order, the manager's decision, and the expected outcome."""

    customer: str
    item: str
    amount: float
    method: str = "card"
    manager: Manager = ""
    """Empty where no manager may be asked."""
    outcome: Outcome = "shipped"
    order_id: str = ""

    @property
    def goal(self) -> dict[str, Any]:
        return {
            "order_id": self.order_id,
            "customer": self.customer,
            "item": self.item,
            "amount": self.amount,
            "payment_method": self.method,
        }


SMALL = tuple(
    OrderCase(customer, item, amount)
    for customer, item, amount in (
        ("Ada", "a desk lamp", 49.90), ("Ben", "a kettle", 35.00), ("Chloé", "headphones", 129.00),
        ("Deniz", "an office chair", 640.00), ("Emeka", "a standing desk", 1_190.00), ("Farah", "a monitor", 880.00),
        ("Goran", "a laptop", 2_450.00), ("Hana", "a camera", 4_999.99), ("Ines", "a printer", 310.00),
        ("Jun", "a server rack", 5_000.00), ("Kofi", "a keyboard", 75.50), ("Lena", "a projector", 1_720.00),
    )
)  # fmt: skip
"""The last but two costs 5,000 dollars, which is not over the limit."""
APPROVED = tuple(
    OrderCase(customer, item, amount, manager="approves")
    for customer, item, amount in (
        ("Maja", "ten laptops", 24_500.00), ("Nuri", "a laser cutter", 12_000.00), ("Olga", "a kiln", 6_300.00),
        ("Pavel", "a server", 5_000.01), ("Quinn", "a 3D printer", 7_800.00), ("Rosa", "a lathe", 9_950.00),
    )
)  # fmt: skip
REJECTED = tuple(
    OrderCase(customer, item, amount, manager="rejects", outcome="rejected")
    for customer, item, amount in (
        ("Sami", "a hot tub", 8_700.00), ("Tess", "a grand piano", 61_000.00),
        ("Umar", "a drone", 5_400.00), ("Vera", "gold-plated pens", 15_000.00),
    )
)  # fmt: skip
EXPIRED = (OrderCase("Wim", "an espresso machine", 5_900.00, manager="is silent", outcome="expired"),)
WIRED = (
    OrderCase("Xenia", "a violin", 3_200.00, "wire"),
    OrderCase("Yusuf", "a bicycle", 1_450.00, "wire"),
    OrderCase("Zoe", "a sewing machine", 780.00, "wire"),
    OrderCase("Arun", "a telescope", 4_100.00, "wire"),
    OrderCase("Northwind Shell Ltd", "a telescope", 4_100.00, "wire", outcome="refused"),
)
WIRED_AND_ASKED = (
    OrderCase("Bea", "a pipe organ", 88_000.00, "wire", manager="approves"),
    OrderCase("Carlos", "a speedboat", 47_000.00, "wire", manager="rejects", outcome="rejected"),
)

KINDS = (APPROVED, WIRED, REJECTED, EXPIRED, WIRED_AND_ASKED, SMALL)
ORDERS = mixed(*KINDS)


def choose_orders(plans: int, seed: int) -> Sequence[OrderCase]:
    """Orders in the order of the seed, numbered."""
    return [replace(case, order_id=f"A-{number:03}") for number, case in enumerate(choose(ORDERS, plans, seed), 1)]


@dataclass
class OrderRun(Journey[OrderCase]):
    @property
    def title(self) -> str:
        return self.case.order_id

    def faults(self) -> list[str]:
        """Deviations from the rules and the expected outcome; empty when all is well."""
        if not self.ended_at:
            return [f"did not end within {OrderDrive.plan_seconds:g} s"]
        if self.error:
            return [f"failed: {self.error}"]
        faults = _faults_of(self.case, self.account)
        if self.state != self.case.outcome:
            faults.insert(0, f"ended as {self.state}, not {self.case.outcome}: {self.result!r:.300}")
        return faults + self.committed_faults()


def _faults_of(case: OrderCase, account: Account) -> list[str]:
    """Rules that the decisions broke, whatever the outcome."""
    kinds = [kind for step in account.steps for kind in step.objects]
    before = kinds[: kinds.index(PAYMENT)] if PAYMENT in kinds else kinds
    due = 1 if case.outcome == "shipped" else 0
    faults = [
        f"requested {task} {kinds.count(task)} times, not {due}"
        for task in (PAYMENT, SHIPPING)
        if kinds.count(task) != due
    ]
    paid = [data.get("amount") for step in account.steps for kind, data in step.published if kind == PAYMENT]
    faults += [f"paid {amount}, not {case.amount}" for amount in paid if amount != case.amount]
    if case.method == "wire" and CHECK not in before:
        faults.append("a wire transfer was not delegated to compliance")
    if case.amount > LIMIT and case.outcome != "refused" and DECIDED not in before:
        faults.append("no manager was asked")
    if not case.manager and DECIDED in kinds:
        faults.append("a manager was asked needlessly")
    return faults


class OrderDrive(PlanDrive[OrderCase, OrderRun]):
    goal, response = GOAL, RESPONSE
    plan_seconds = 180.0  # a model may take seconds for each decision

    def _data(self, case: OrderCase) -> dict[str, Any]:
        return case.goal

    def _begin(self, case: OrderCase, handle: PlanHandle, submitted_at: float) -> OrderRun:
        return OrderRun(case, handle, submitted_at)

    async def _accompany(self, run: OrderRun) -> None:
        """Watch a plan to its end, and decide when the manager is asked."""
        async for change in run.handle.watch():
            if change.status is not PlanStatus.PAUSED:
                self._moving(run, UNDER_WAY)
            elif not run.asked_at:
                self._moving(run, ASKED)
                run.asked_at = time.time()
                await asyncio.sleep(MANAGER_SECONDS)
                await self._decide(run)

    async def _decide(self, run: OrderRun) -> None:
        case = run.case
        decision = case.manager or "approves, though no approval was needed"
        self._audience.note(f"{case.order_id}, ${case.amount:,.2f} for {case.item}: the manager {decision}")
        if case.manager == "is silent":
            return
        run.answered_at = time.time()
        try:
            await run.handle.signal(DECIDED, {"approved": case.manager != "rejects", "by": "the manager"})
        except PlanFinished:
            return  # too late

    def _ended(self, run: OrderRun) -> None:
        run.state = str(run.result.get("outcome", "?")) if isinstance(run.result, dict) else PLAN_FAILED


def _show(console: Console, seed: int, model: str | None, runs: Sequence[OrderRun]) -> None:
    longest = max(runs, key=lambda run: len(run.account.steps))
    console.print()
    _print_orders(console, runs)
    console.print()
    title = f"{longest.case.order_id}, {longest.case.item} for {longest.case.customer}"
    display.print_decisions(
        console, f"Decisions of plan {longest.handle.plan_id}: {title}", longest.account, longest.submitted_at
    )
    console.print()
    spent = Spent.total(run.account.spent for run in runs)
    display.print_spent(console, model or stub_model.MODEL, spent, stand_in=model is None)
    console.print()
    display.print_faults(console, runs)
    good = sum(not run.faults() for run in runs)
    display.print_verdict(console, good, len(runs), f"{plural(len(runs), 'order')} ended as expected (seed {seed})")


def _print_orders(console: Console, runs: Sequence[OrderRun]) -> None:
    """Print amount, decisions, outcome and model usage of each order."""
    right = ("amount", "tokens", "cost", "time")
    shown = table("order", "amount", "by", "decisions", "outcome", "tokens", "cost", "time", "", right=right)
    for run in runs:
        account = run.account
        shown.add_row(
            cell(run.case.order_id),
            cell(f"${run.case.amount:,.2f}"),
            cell(run.case.method),
            display.steps_text(account.steps),
            cell(run.state, STYLES.get(run.state, "")),
            cell(f"{account.spent.tokens:,}"),
            cell(display.dollars(account.spent.cost)),
            *display.verdict_cells(run),
        )
    console.print(shown)


def _report(seed: int, model: str | None, session: Session[OrderRun]) -> dict[str, Any]:
    return {
        "good": session.good,
        "seed": seed,
        "model": model or stub_model.MODEL,
        "stand_in": model is None,
        "seconds": round(session.seconds, 3),
        "spent": asdict(Spent.total(run.account.spent for run in session.runs)),
        "orders": [
            {
                **run.case.goal,
                "plan_id": run.handle.plan_id,
                "decisions": [{"action": dict(step.action), "why": step.reasoning} for step in run.account.steps],
                "outcome": run.state,
                "error": run.error or None,
                "seconds": round(run.seconds, 3) if run.ended_at else None,
                "spent": asdict(run.account.spent),
                "faults": run.faults(),
            }
            for run in session.runs
        ],
    }
