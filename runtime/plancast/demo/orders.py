"""The orders demo: every step of an order is decided by a model, or by the stand-in for one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from rich.text import Text

from plancast.demo import display, stub_model
from plancast.demo.decision_log import Account
from plancast.demo.driver import ASKED, SUBMITTED, UNDER_WAY, Journey, PlanDrive, choose, mixed
from plancast.demo.runner import deployed_with_model
from plancast.demo.session import STAND_IN, play, seed_of
from plancast.terminal.output import cell

DECIDED = "approval.decided"
PAYMENT, SHIPPING, CHECK = "payment.process.requested", "shipping.requested", "compliance.check"
PLAN_FAILED = "plan failed"
APPROVAL_SECONDS = "6"
"""Seconds that an order of the demo waits for the manager."""


async def process_orders(plans: int, seed: int | None, *, model: str | None, json_output: bool) -> int:
    """Run the orders, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, OrderDrive.noun)
    return await play(
        OrderDrive,
        choose_orders(plans, seed),
        deployed_with_model("orders", model, {"ORDERS_APPROVAL_SECONDS": APPROVAL_SECONDS}),
        seed=seed,
        starting=f"nats-server and Ray; {model or STAND_IN} decides",
        about={"model": model or stub_model.MODEL, "stand_in": model is None},
        json_output=json_output,
    )


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

    @property
    def subject(self) -> str:
        return f"{self.case.order_id}, {self.case.item} for {self.case.customer}"

    def cells(self) -> Sequence[str | Text]:
        case, account = self.case, self.account
        outcome = cell(self.state, OrderDrive.styles.get(self.state, ""))
        order = (case.order_id, f"${case.amount:,.2f}", case.method, display.steps_text(account.steps))
        return (*order, outcome, f"{account.spent.tokens:,}", display.dollars(account.spent.cost))

    def document(self) -> dict[str, Any]:
        return {
            **self.case.goal,
            "plan_id": self.handle.plan_id,
            "decisions": [step.document for step in self.account.steps],
            "outcome": self.state,
            **self.ending(),
            "spent": asdict(self.account.spent),
            "faults": self.faults(),
        }

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
    journey = OrderRun
    noun = "order"
    states = (SUBMITTED, UNDER_WAY, ASKED, "shipped", "rejected", "expired", "refused")
    styles: ClassVar = {
        "shipped": "green", "rejected": "magenta", "expired": "yellow", "refused": "red", PLAN_FAILED: "bold red"
    }  # fmt: skip
    columns = ("order", "amount", "by", "decisions", "outcome", "tokens", "cost")
    numbers = ("amount", "tokens", "cost")
    killed = False
    goal, response = "order.received", "order.processed"
    human_seconds = 0.7

    async def _decide(self, run: OrderRun) -> None:
        case = run.case
        decision = case.manager or "approves, though no approval was needed"
        self._audience.note(f"{case.order_id}, ${case.amount:,.2f} for {case.item}: the manager {decision}")
        if case.manager != "is silent":
            run.answered_at = time.time()
            await run.handle.signal(DECIDED, {"approved": case.manager != "rejects", "by": "the manager"})

    def _ended(self, run: OrderRun) -> None:
        run.state = str(run.result.get("outcome", "?")) if isinstance(run.result, dict) else PLAN_FAILED
