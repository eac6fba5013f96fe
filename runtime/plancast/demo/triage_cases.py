"""The tickets of the demo, and how each has to end, whoever decides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
APPROVED = (
    TicketCase("The site is down", "For everybody.", "bug", "on-call", "critical", "Ada", "approves", True),
    TicketCase("Invoices of others", "I see them: a breach?", "billing", "on-call", "critical", "Ben", "approves"),
    TicketCase("Search is down", "Sometimes.", "bug", "on-call", "critical", "Initech", "approves", False),
)
REJECTED = (
    TicketCase("Is there data loss?", "I only wonder.", "question", "", "critical", "Emeka", "rejects"),
    TicketCase("My own server is down", "Can you help?", "bug", "", "critical", "Farah", "rejects"),
)

KINDS = (BUGS, APPROVED, QUESTIONS, REJECTED, BILLING)
TICKETS = tuple(case for row in itertools.zip_longest(*KINDS) for case in row if case is not None)
"""Every ticket, in an order in which the first few are of every kind."""


def choose_tickets(plans: int, seed: int) -> Sequence[TicketCase]:
    """So many tickets, numbered, in an order that follows from the seed; beyond those there are they come again."""
    chosen = list(itertools.islice(itertools.cycle(TICKETS), plans))
    random.Random(seed).shuffle(chosen)
    return [replace(case, ticket_id=f"T-{number:03}") for number, case in enumerate(chosen, 1)]
