"""The demo of the tickets: the same ones, decided by a tree, a model or a state machine; a plan host is killed."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.demo import PlannerKind, display, orders_display, stub_model
from plancast.demo.driver import HUMAN_SECONDS, SUBMITTED, Account, Cost, Journey, PlanDrive, Spent, most_telling
from plancast.demo.research import Executioner
from plancast.demo.runner import deployed, deployed_with_model
from plancast.errors import PlanFinished
from plancast.plan.status import PlanStatus
from plancast.terminal.output import cell, duration, out, plural, print_json, public_url, table
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

UNDER_WAY, ASKED, ROUTED, REJECTED, FAILED = "under way", "asked", "routed", "rejected", "failed"
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


Person = Literal["", "approves", "rejects"]

APPROVER = "Grace"
"""Who lets critical tickets pass."""


@dataclass(frozen=True)
class TicketCase:
    """A ticket, what the person makes of it who is asked, and how it has to be routed."""

    subject: str
    body: str
    category: str
    queue: str
    severity: str = "normal"
    customer: str = "Ada"
    person: Person = ""
    """Empty where nobody may be asked."""
    reproduced: bool | None = None
    """None where it is no bug."""
    ticket_id: str = ""

    @property
    def goal(self) -> dict[str, Any]:
        """What the goal says."""
        return {name: getattr(self, name) for name in ("ticket_id", "subject", "body", "customer")}

    @property
    def result(self) -> dict[str, Any] | None:
        """What the plan has to answer; None when it is to be rejected."""
        if self.person == "rejects":
            return None
        routed = {name: getattr(self, name) for name in ("ticket_id", "category", "severity", "queue", "reproduced")}
        return {**routed, "approved_by": APPROVER if self.person == "approves" else None}


BUGS = (
    TicketCase("Export crashes", "Each time, since Monday.", "bug", "engineering", reproduced=True),
    TicketCase("Error 500 on login", "Only sometimes.", "bug", "engineering", reproduced=False),
    TicketCase("Charts are broken", "All of them.", "bug", "engineering-premium", "normal", "Hooli", reproduced=True),
    TicketCase("Broken link", "A typo, I think.", "bug", "engineering", "low", reproduced=True),
)

BILLING = (
    TicketCase("Charged twice", "For June.", "billing", "accounts"),
    TicketCase("Refund", "We have too many seats.", "billing", "accounts-premium", customer="Initech"),
    TicketCase("Invoice", "A nice to have: our VAT number on it.", "billing", "accounts", "low"),
)

QUESTIONS = (
    TicketCase("How do I change my password?", "I cannot find it.", "question", "self-service"),
    TicketCase("Do you have an API?", "For our warehouse.", "question", "support"),
    TicketCase("Roadmap", "What comes next?", "question", "support-premium", customer="Hooli"),
)

APPROVED_CASES = (
    TicketCase("The site is down", "For everybody.", "bug", "on-call", "critical", "Ada", "approves", True),
    TicketCase("Invoices of others", "I see them: a breach?", "billing", "on-call", "critical", "Ben", "approves"),
    TicketCase("Search is down", "Sometimes.", "bug", "on-call", "critical", "Initech", "approves", False),
)

REJECTED_CASES = (
    TicketCase("Is there data loss?", "I only wonder.", "question", "", "critical", "Emeka", "rejects"),
    TicketCase("My own server is down", "Can you help?", "bug", "", "critical", "Farah", "rejects"),
)

KINDS = (BUGS, APPROVED_CASES, QUESTIONS, REJECTED_CASES, BILLING)

TICKETS = tuple(case for row in itertools.zip_longest(*KINDS) for case in row if case is not None)
"""Every ticket, in an order in which the first few are of every kind."""


def choose_tickets(plans: int, seed: int) -> Sequence[TicketCase]:
    """So many tickets, numbered, in an order that follows from the seed; beyond those there are they come again."""
    chosen = list(itertools.islice(itertools.cycle(TICKETS), plans))
    random.Random(seed).shuffle(chosen)
    return [replace(case, ticket_id=f"T-{number:03}") for number, case in enumerate(chosen, 1)]


APPROVED, ROUTE = "triage.approved", "ticket.route.requested"

NOT_OURS = "this is not ours"

APPROVALS = ("approval", "bug_approval")
"""States of the machine that wait for a person; planners pause their plans."""


@dataclass
class TicketRun(Journey[TicketCase]):
    """One ticket on its way."""

    routes: set[str] = field(default_factory=set)
    """Ids of the requests to route it that were heard on NATS."""

    @property
    def title(self) -> str:
        """Number and subject of the ticket."""
        return f"{self.case.ticket_id}, {self.case.subject}"

    @property
    def account(self) -> Account:
        """Its decisions, if a planner took any, and what they took."""
        return Account.of(self.history)

    @property
    def committed(self) -> list[str]:
        """Ids of the requests to route it that its turns have committed."""
        return [request for entry in self.history for event, request in entry["sent"] if event == ROUTE]

    def faults(self) -> list[str]:
        """In what the ticket did not go as it should; empty when all is well."""
        if not self.ended_at:
            return [f"did not end within {TriageDrive.plan_seconds:g} s, and is {self.state}"]
        faults = []
        wanted = self.case.result
        if wanted is None and self.error != f"constraints_conflict: {NOT_OURS}":
            faults.append(f"was not rejected: {self.error or self.result!r:.300}")
        if wanted is not None and self.result != wanted:
            faults.append(f"ended with {self.error or self.result!r:.300}, not {wanted}")
        due = 0 if wanted is None else 1
        if len(self.committed) != due or self.routes != set(self.committed):
            heard = ", ".join(sorted(self.routes)) or "none"
            faults.append(f"was routed {len(self.committed)} times, not {due}; requests heard: {heard}")
        return faults + self.committed_faults()


class TriageDrive(PlanDrive[TicketCase, TicketRun]):
    """Runs all tickets at once, whoever decides them."""

    goal, response = "ticket.received", "ticket.triaged"
    plan_seconds = 180.0  # a model may take seconds for each decision

    def _data(self, case: TicketCase) -> dict[str, Any]:
        return case.goal

    def _begin(self, case: TicketCase, handle: PlanHandle, submitted_at: float) -> TicketRun:
        return TicketRun(case, handle, submitted_at, routes=self._routes[handle.plan_id])

    async def _listen(self) -> list[Subscription]:
        """Hear the requests to route tickets, too, as any observer on NATS does."""
        subjects = self._client.bus.subjects
        self._routes: defaultdict[str, set[str]] = defaultdict(set)

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            self._routes[subjects.parse_event(subject).correlation_id].add(decode(payload, content_type).id)

        every = f"{subjects.prefix}.{EventTopic.ACTION_REQUESTS}.*.{ROUTE}"
        return [*await super()._listen(), await self._client.bus.subscribe(every, note)]

    async def _accompany(self, run: TicketRun) -> None:
        """Watch a plan to its end, and decide as the person does who is asked."""
        async for change in run.handle.watch():
            asked = change.status is PlanStatus.PAUSED or change.current_state in APPROVALS
            if not asked or change.status.finished:
                self._moving(run, UNDER_WAY)
            elif not run.asked_at:
                self._moving(run, ASKED)
                run.asked_at = time.time()
                await asyncio.sleep(HUMAN_SECONDS)
                await self._decide(run)

    async def _decide(self, run: TicketRun) -> None:
        case = run.case
        rejects = case.person == "rejects"
        self._audience.note(f"{case.ticket_id}, {case.subject!r}: {APPROVER} {'rejects' if rejects else 'approves'} it")
        run.answered_at = time.time()
        try:
            await (run.handle.reject(NOT_OURS) if rejects else run.handle.signal(APPROVED, {"by": APPROVER}))
        except PlanFinished:
            return  # nobody had to be asked; its result tells

    def _ended(self, run: TicketRun) -> None:
        if run.error:
            run.state = REJECTED if run.case.result is None else FAILED
        else:
            run.state = ROUTED
