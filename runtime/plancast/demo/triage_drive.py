"""Drives the tickets of the demo: submits them, decides on the critical ones, and judges how they ended."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from plancast.client.handle import PlanHandle
from plancast.demo.driver import HUMAN_SECONDS, Journey, PlanDrive
from plancast.demo.driver_account import Account
from plancast.demo.triage_cases import APPROVER, TicketCase
from plancast.errors import PlanFinished
from plancast.plan.status import PlanStatus
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Subscription

APPROVED, ROUTE = "triage.approved", "ticket.route.requested"
UNDER_WAY, ASKED, ROUTED, REJECTED, FAILED = "under way", "asked", "routed", "rejected", "failed"
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
