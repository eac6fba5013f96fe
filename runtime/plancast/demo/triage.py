"""The triage demo: tickets decided by a decision tree, a model or a state machine; a plan host is killed halfway."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal

from rich.text import Text

from plancast.client.changes import PlanChange
from plancast.demo import PlannerKind, stub_model
from plancast.demo.driver import ASKED, SUBMITTED, UNDER_WAY, Journey, PlanDrive, choose, mixed
from plancast.demo.runner import deployed, deployed_with_model
from plancast.demo.session import STAND_IN, Session, play, seed_of
from plancast.errors import PlanFinished
from plancast.terminal.output import cell, duration
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

ROUTED, REJECTED, FAILED = "routed", "rejected", "failed"
WORDS: Final = {"tree": "a decision tree", "machine": "a state machine"}


async def triage_tickets(
    plans: int, seed: int | None, *, planner: PlannerKind, model: str | None, kill: bool, json_output: bool
) -> int:
    """Run the tickets, kill a plan host halfway, and show how they ended; 0 when all ended as expected."""
    seed = seed_of(plans, seed, TriageDrive.noun)
    asked = (model or stub_model.MODEL) if planner == "llm" else None

    def summary(session: Session[TicketRun]) -> str:
        routed = sum(len(run.committed) == 1 for run in session.runs)
        ended = f"{session.ended()} in {duration(session.seconds)}"
        return f"{ended}, {routed} routed once each; {WORDS.get(planner) or asked} decided"

    return await play(
        TriageDrive,
        choose_tickets(plans, seed),
        deployed_with_model("triage", model, app="llm_app") if asked else deployed(f"{APPS}:{planner}_app"),
        seed=seed,
        starting=f"nats-server and Ray; {WORDS.get(planner) or model or STAND_IN} decides",
        about={"planner": planner, "model": asked, "stand_in": asked is not None and model is None},
        summary=summary,
        kill=kill,
        json_output=json_output,
    )


APPS = "plancast.demo.apps.triage"
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


ROUTE = "ticket.route.requested"

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

    def cells(self) -> Sequence[str | Text]:
        case, result = self.case, self.result if isinstance(self.result, dict) else {}
        found = (str(result.get(name, "–")) for name in ("category", "severity"))
        end = cell(result.get("queue") or self.state, TriageDrive.styles.get(self.state, ""))
        person = case.person if self.asked_at else ""
        return (case.ticket_id, case.subject, *found, person, end, str(len(self.history)))

    def document(self) -> dict[str, Any]:
        return {
            **self.case.goal,
            "plan_id": self.handle.plan_id,
            "decisions": [step.document for step in self.account.steps],
            "path": self.path_at(self.ended_at),
            "result": self.result,
            **self.ending(),
            "responses": self.responses,
            "routed": self.committed,
            "faults": self.faults(),
        }

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
    journey = TicketRun
    noun = "ticket"
    states = (SUBMITTED, UNDER_WAY, ASKED, ROUTED, REJECTED)
    styles: ClassVar = {ROUTED: "green", REJECTED: "magenta", FAILED: "bold red"}
    columns = ("ticket", "subject", "category", "severity", "person", "end", "turns")
    numbers = ("turns",)
    goal, response = "ticket.received", "ticket.triaged"

    async def _listen(self) -> list[Subscription]:
        """Subscribe to the routing requests as well."""
        subjects = self._client.bus.subjects
        self._routes: defaultdict[str, set[str]] = defaultdict(set)

        async def note(subject: str, payload: bytes, content_type: str | None) -> None:
            self._routes[subjects.parse_event(subject).correlation_id].add(decode(payload, content_type).id)

        every = f"{subjects.prefix}.{EventTopic.ACTION_REQUESTS}.*.{ROUTE}"
        return [*await super()._listen(), await self._client.bus.subscribe(every, note)]

    def _asks(self, change: PlanChange) -> bool:
        return super()._asks(change) or change.current_state in APPROVALS

    async def _decide(self, run: TicketRun) -> None:
        case = run.case
        rejects = case.person == "rejects"
        self._audience.note(f"{case.ticket_id}, {case.subject!r}: {APPROVER} {'rejects' if rejects else 'approves'} it")
        run.answered_at = time.time()
        try:
            await (run.handle.reject(NOT_OURS) if rejects else run.handle.approve(user_id=APPROVER))
        except PlanFinished:
            return  # nothing was to be approved, which the result shows

    def _ended(self, run: TicketRun) -> None:
        run.routes = self._routes[run.handle.plan_id]
        if run.error:
            run.state = REJECTED if run.case.result is None else FAILED
        else:
            run.state = ROUTED
