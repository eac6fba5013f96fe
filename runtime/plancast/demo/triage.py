"""The triage demo: tickets decided by a decision tree, a model or a state machine; a plan host is killed halfway."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console

from plancast.client.handle import PlanHandle
from plancast.demo import PlannerKind, display, stub_model
from plancast.demo.decision_log import Spent
from plancast.demo.driver import HUMAN_SECONDS, SUBMITTED, Journey, PlanDrive, choose, mixed
from plancast.demo.host_kill import most_telling
from plancast.demo.runner import deployed, deployed_with_model
from plancast.demo.session import STAND_IN, Session, run_session, seed_of
from plancast.errors import PlanFinished
from plancast.plan.status import PlanStatus
from plancast.terminal.output import cell, duration, out, plural, print_json, table
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

UNDER_WAY, ASKED, ROUTED, REJECTED, FAILED = "under way", "asked", "routed", "rejected", "failed"
WORDS: Final = {"tree": "a decision tree", "machine": "a state machine"}
STYLES: Final = {ROUTED: "green", REJECTED: "magenta", FAILED: "bold red"}


async def triage_tickets(
    plans: int, seed: int | None, *, planner: PlannerKind, model: str | None, kill: bool, json_output: bool
) -> int:
    """Run the tickets, kill a plan host halfway, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, "ticket")
    console = out()
    states = (SUBMITTED, UNDER_WAY, ASKED, ROUTED, REJECTED)
    with display.Board(console, "ticket", states, STYLES, quiet=json_output) as board:
        decider = WORDS.get(planner) or model or STAND_IN
        board.note(f"starting nats-server and Ray; {decider} decides (seed {seed})")
        cases = choose_tickets(plans, seed)
        session = await run_session(
            board, _deployed(planner, model), lambda client: TriageDrive(client, cases, board), kill=kill
        )
    stand_in = planner == "llm" and model is None
    model = (model or stub_model.MODEL) if planner == "llm" else None
    if json_output:
        head = {"good": session.good, "seed": seed, "planner": planner, "model": model, "stand_in": stand_in}
        print_json({**head, "seconds": round(session.seconds, 3), **_report(session)})
    else:
        _show(console, session)
        if model is not None:
            console.print()
            display.print_spent(console, model, _spent(session.runs), stand_in=stand_in)
        console.print()
        display.print_faults(console, session.runs)
        _print_summary(console, session, decider if planner in WORDS else model or "", seed)
    return 0 if session.good else 1


def _deployed(planner: PlannerKind, model: str | None) -> AbstractAsyncContextManager[LocalRuntime]:
    if planner == "llm":
        return deployed_with_model("triage", model, app="llm_app")
    return deployed(f"plancast.demo.apps.triage:{planner}_app")


def _show(console: Console, session: Session[TicketRun]) -> None:
    console.print()
    _print_tickets(console, session.runs)
    console.print()
    display.print_timeline(console, most_telling(session.runs, session.killed_at), session.killed_at)
    if session.cost is not None:
        console.print()
        display.print_cost(console, session.cost)


def _print_tickets(console: Console, runs: Sequence[TicketRun]) -> None:
    """Print findings, approval, queue and duration of each ticket."""
    right = ("turns", "time")
    shown = table("ticket", "subject", "category", "severity", "person", "end", "turns", "time", "", right=right)
    for run in sorted(runs, key=lambda run: run.case.ticket_id):
        result = run.result if isinstance(run.result, dict) else {}
        shown.add_row(
            cell(run.case.ticket_id),
            cell(run.case.subject),
            cell(str(result.get("category", "–"))),
            cell(str(result.get("severity", "–"))),
            cell(run.case.person if run.asked_at else ""),
            cell(str(result.get("queue") or run.state), STYLES.get(run.state, "")),
            cell(str(len(run.history))),
            *display.verdict_cells(run),
        )
    console.print(shown)


def _print_summary(console: Console, session: Session[TicketRun], decider: str, seed: int) -> None:
    runs = session.runs
    good = sum(not run.faults() for run in runs)
    routed = sum(len(run.committed) == 1 for run in runs)
    ended = f"{plural(len(runs), 'ticket')} ended as expected in {duration(session.seconds)}"
    text = f"{ended}, {routed} routed once each; {decider} decided (seed {seed})"
    display.print_verdict(console, good, len(runs), text)


def _spent(runs: Sequence[TicketRun]) -> Spent:
    return Spent.total(run.account.spent for run in runs)


def _report(session: Session[TicketRun]) -> dict[str, Any]:
    return {
        "spent": asdict(_spent(session.runs)),
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
            for run in session.runs
        ],
        "kill": asdict(session.cost) if session.cost is not None else None,
    }


Person = Literal["", "approves", "rejects"]

APPROVER = "Grace"
"""Approves critical tickets."""


@dataclass(frozen=True)
class TicketCase:
    """A ticket, the decision of the person who is asked, and its expected routing."""

    subject: str
    body: str
    category: str
    queue: str
    severity: str = "normal"
    customer: str = "Ada"
    person: Person = ""
    """Empty where no person may be asked."""
    reproduced: bool | None = None
    """None where it is no bug."""
    ticket_id: str = ""

    @property
    def goal(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("ticket_id", "subject", "body", "customer")}

    @property
    def result(self) -> dict[str, Any] | None:
        """The expected result; None for a ticket to be rejected."""
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

TICKETS = mixed(*KINDS)


def choose_tickets(plans: int, seed: int) -> Sequence[TicketCase]:
    """Tickets in the order of the seed, numbered."""
    return [replace(case, ticket_id=f"T-{number:03}") for number, case in enumerate(choose(TICKETS, plans, seed), 1)]


APPROVED, ROUTE = "triage.approved", "ticket.route.requested"

NOT_OURS = "this is not ours"

APPROVALS = ("approval", "bug_approval")
"""States of the machine that wait for a person; planners pause the plan instead."""


@dataclass
class TicketRun(Journey[TicketCase]):
    routes: set[str] = field(default_factory=set)
    """Ids of the routing requests observed on NATS."""

    @property
    def title(self) -> str:
        return f"{self.case.ticket_id}, {self.case.subject}"

    @property
    def committed(self) -> list[str]:
        """Ids of the routing requests that its turns have committed."""
        return [request for entry in self.history for event, request in entry["sent"] if event == ROUTE]

    def faults(self) -> list[str]:
        """Deviations from the expected end; empty when all is well."""
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
            faults.append(f"was routed {len(self.committed)} times, not {due}; requests observed: {heard}")
        return faults + self.committed_faults()


class TriageDrive(PlanDrive[TicketCase, TicketRun]):
    """Runs all tickets concurrently, with any planner."""

    goal, response = "ticket.received", "ticket.triaged"
    plan_seconds = 180.0  # a model may take seconds for each decision

    def _data(self, case: TicketCase) -> dict[str, Any]:
        return case.goal

    def _begin(self, case: TicketCase, handle: PlanHandle, submitted_at: float) -> TicketRun:
        return TicketRun(case, handle, submitted_at, routes=self._routes[handle.plan_id])

    async def _listen(self) -> list[Subscription]:
        """Subscribe to the routing requests as well."""
        subjects = self._client.bus.subjects
        self._routes: defaultdict[str, set[str]] = defaultdict(set)

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            self._routes[subjects.parse_event(subject).correlation_id].add(decode(payload, content_type).id)

        every = f"{subjects.prefix}.{EventTopic.ACTION_REQUESTS}.*.{ROUTE}"
        return [*await super()._listen(), await self._client.bus.subscribe(every, note)]

    async def _accompany(self, run: TicketRun) -> None:
        """Watch a plan to its end, and approve or reject when a person is asked."""
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
            return  # nothing was to be approved, which the result shows

    def _ended(self, run: TicketRun) -> None:
        if run.error:
            run.state = REJECTED if run.case.result is None else FAILED
        else:
            run.state = ROUTED
