"""Drives the orders of the demo: submits them, decides as a manager does, and judges how they ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.decisions.executor import WAITING_EVENT
from plancast.demo.driver import LATE_SECONDS, Account, Audience
from plancast.demo.orders_cases import LIMIT, OrderCase
from plancast.errors import PlanCancelled, PlanFailed, PlanFinished
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

GOAL, RESPONSE, DECIDED = "order.received", "order.processed", "approval.decided"
PAYMENT, SHIPPING, CHECK = "payment.process.requested", "shipping.requested", "compliance.check"

PACE = 0.05
"""Seconds between two orders."""
MANAGER_SECONDS = 0.7
"""How long the manager takes to decide."""
PLAN_SECONDS = 180.0
"""After so long an order counts as lost; a model may take seconds for each decision."""


@dataclass
class OrderRun:
    """One order on its way."""

    case: OrderCase
    handle: PlanHandle
    submitted_at: float
    """Seconds since the epoch, as all times here."""
    asked: int = 0
    """How often the manager was asked."""
    ended_at: float = 0.0
    result: Any = None
    error: str = ""
    responses: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From submission to the end."""
        return self.ended_at - self.submitted_at

    @property
    def account(self) -> Account:
        """Its decisions, and what they took."""
        return Account.of(self.history)

    @property
    def outcome(self) -> str:
        """How it ended, in the word of its result."""
        if not self.ended_at:
            return "asked" if self.asked else "under way"
        return str(self.result.get("outcome", "?")) if isinstance(self.result, dict) else "plan failed"

    @property
    def faults(self) -> list[str]:
        """In what the order did not go as the rules say; empty when all is well."""
        if not self.ended_at:
            return [f"did not end within {PLAN_SECONDS:g} s"]
        if self.error:
            return [f"failed: {self.error}"]
        faults = [*_faults_of(self.case, self.account)]
        if self.outcome != self.case.outcome:
            faults.insert(0, f"ended as {self.outcome}, not {self.case.outcome}: {self.result!r:.300}")
        if self.responses != 1:
            faults.append(f"gave {self.responses} final responses, not one")
        return faults


def _faults_of(case: OrderCase, account: Account) -> list[str]:
    """Rules that the decisions broke, whatever they led to."""
    kinds = [kind for step in account.steps for kind in step.objects]
    before = kinds[: kinds.index(PAYMENT)] if PAYMENT in kinds else kinds
    due = 1 if case.outcome == "shipped" else 0
    faults = [
        f"asked for {task} {kinds.count(task)} times, not {due}"
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


class OrderDrive:
    """Runs all orders at once.

    Args:
        client: Connected to the deployment.
        cases: One order each.
        audience: Is told what happens.
    """

    def __init__(self, client: Client, cases: Sequence[OrderCase], audience: Audience) -> None:
        self.runs: list[OrderRun] = []
        self.planned = len(cases)
        self._client = client
        self._cases = cases
        self._audience = audience
        self._responses: Counter[str] = Counter()
        self._by_plan: dict[str, OrderRun] = {}
        self._deciding: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Submit every order, decide on those that wait for a manager, and wait for all."""
        subjects = self._client.bus.subjects
        counting = await self._listen(f"{subjects.prefix}.{EventTopic.ACTION_RESULTS}.*.{RESPONSE}", self._count)
        managing = await self._listen(f"{subjects.prefix}.{EventTopic.SYSTEM_EVENTS}.*.{WAITING_EVENT}", self._decide)
        following = []
        for case in self._cases:
            following.append(asyncio.create_task(self._follow(await self._submit(case))))
            await asyncio.sleep(PACE)
        await asyncio.gather(*following)
        await asyncio.gather(*self._deciding)
        await asyncio.sleep(LATE_SECONDS)
        await asyncio.gather(counting.close(), managing.close())
        for run in self.runs:
            run.responses = self._responses[run.handle.plan_id]

    async def _listen(self, subject: str, heard: Any) -> Subscription:
        subjects = self._client.bus.subjects

        async def notice(said: str, payload: bytes, content_type: str | None) -> None:
            heard(subjects.parse_event(said).correlation_id)

        return await self._client.bus.subscribe(subject, notice)

    def _count(self, plan_id: str) -> None:
        self._responses[plan_id] += 1

    def _decide(self, plan_id: str) -> None:
        """A plan says that it waits: the manager looks at the order, and decides after a while."""
        task = asyncio.create_task(self._manage(plan_id))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)

    async def _manage(self, plan_id: str) -> None:
        await asyncio.sleep(MANAGER_SECONDS)
        run = self._by_plan.get(plan_id)
        if run is None:
            return
        run.asked += 1
        case = run.case
        self._audience.note(f"{case.order_id}, ${case.amount:,.2f} for {case.item}: the manager {_told(case)}")
        if case.manager != "is silent":
            try:
                await run.handle.signal(DECIDED, {"approved": case.manager != "rejects", "by": "the manager"})
            except PlanFinished:
                return  # too late

    async def _submit(self, case: OrderCase) -> OrderRun:
        submitted_at = time.time()
        handle = await self._client.submit(GOAL, case.goal, response_event=RESPONSE)
        run = OrderRun(case, handle, submitted_at)
        self.runs.append(run)
        self._by_plan[handle.plan_id] = run
        return run

    async def _follow(self, run: OrderRun) -> None:
        try:
            run.result = await run.handle.result(timeout=PLAN_SECONDS)
            run.ended_at = time.time()
        except TimeoutError as error:
            run.error = str(error)
        except PlanFailed as error:
            run.error, run.ended_at = error.error or str(error), time.time()
        except PlanCancelled as error:
            run.error, run.ended_at = str(error), time.time()
        run.history = await run.handle.history()
        self._audience.plan_ended()


def _told(case: OrderCase) -> str:
    return case.manager or "approves, though nobody had to be asked"
