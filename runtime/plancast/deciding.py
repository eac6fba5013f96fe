"""How a plan without a state machine goes on: its planner is shown the run and asked for the next step.

The runtime knows planners by :class:`plancast.run.AutonomousPlanner` alone: what comes from a model and what from
a decision tree is carried out by the same executor, committed by the same turn.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from plancast.actions import CompleteAction
from plancast.asking import in_process_reasoner
from plancast.decisions import PlannerDecision, check_decision
from plancast.definitions import AgentDefinition, EventDefinition
from plancast.errors import BudgetExhausted, TerminalError
from plancast.executor import execute_decision
from plancast.groups import OpenTasks
from plancast.plan import WAITING_FOR, PlanContext
from plancast.reasoning import CURRENT_REASONER, ReasonerPort, ReasonReply, ReasonRequest
from plancast.requests import WAIT, Request
from plancast.run import AutonomousPlanner, RunBudget, RunContext, TrajectoryEntry, WakeMode, resolve_wake_mode
from plancast.status import PlanStatus
from plancast_bus.envelope import EventTopic

if TYPE_CHECKING:
    from plancast.turn import Turn

MAX_STEPS = 64
"""Decisions of one turn that wait for nothing, before the planner is taken to run in a circle."""
KEPT_STEPS = 40
"""Newest events and decisions that a plan carries; older ones are only counted."""
_FAILURES = (".failed", ".timeout")


class Deciding:
    """One turn of a plan that a planner decides."""

    def __init__(self, turn: Turn, plan: PlanContext, decider: AutonomousPlanner) -> None:
        self._turn = turn
        self._plan = plan
        self._decider = decider

    async def on_goal(self) -> None:
        """The first turn."""
        self._plan.status = PlanStatus.RUNNING
        await self._go_on(self._turn.event)

    async def on_event(self, event: Any, request: Request | None) -> bool:
        """Take an event; False when nothing waits for it yet, so that it is to be kept."""
        plan = self._plan
        if plan.status is PlanStatus.PAUSED:
            if request is not None or event.type != plan.results.get(WAITING_FOR):
                return False
            await self._end_wait(event)
            await self._go_on(event)
            return True
        if request is None:
            return False
        if self._take_answer(event):
            await self._go_on(event)
        return True

    async def on_timer(self, event: Any, request_id: str, request: Request) -> None:
        """A wait has lasted too long: the planner is asked again, with that as its trigger."""
        plan = self._plan
        plan.requests.pop(request_id, None)
        if request.event_type == WAIT:
            plan.end_wait()
        await self._go_on(event)

    async def on_resume(self) -> None:
        """Somebody has resumed the plan: what was kept meanwhile counts now, and the planner is asked."""
        for fields in self._plan.take_kept_answers():
            self._take_answer(fields)
        await self._go_on(self._turn.event)

    # Answers.

    def _take_answer(self, event: Any) -> bool:
        """Note an answer; True when the planner is to be asked now."""
        plan = self._plan
        fields = event if isinstance(event, dict) else event.to_wire()
        request_id = fields["parent_event_id"]
        request = plan.requests.pop(request_id)
        plan.results[fields["type"]] = fields.get("data")
        group = plan.groups.get(request.group) if request.group else None
        if group is None:
            return True
        if group.answer(request_id, fields["type"], _succeeded(fields), fields.get("data")):
            plan.results[request.group] = group.outcome()
            for member in group.members:
                plan.requests.pop(member, None)
            return True
        if resolve_wake_mode(self._decider) is WakeMode.PUSH:
            self._note("event", fields["type"], fields)
            return False
        return True

    async def _end_wait(self, event: Any) -> None:
        await self._plan.resume(event.data if not isinstance(event, dict) else event.get("data"))

    # Decisions.

    async def _go_on(self, trigger: Any) -> None:
        """Ask for decisions and carry them out, until the plan waits for something or is finished."""
        plan, turn = self._plan, self._turn
        for _ in range(MAX_STEPS):
            fields = trigger if isinstance(trigger, dict) else trigger.to_wire()
            self._note("event", fields["type"], fields)
            run = await self._view(fields)
            decision = await self._ask(run)
            await execute_decision(decision, turn.context, plan=plan, definitions=run.events)
            self._note("decision", str(decision.next_action.action), decision.model_dump(mode="json"))
            if not isinstance(decision.next_action, CompleteAction):
                plan.spent["actions"] = plan.spent.get("actions", 0) + 1
            if plan.status.finished:
                return
            if plan.status is PlanStatus.PAUSED:
                early = plan.take_kept(str(plan.results.get(WAITING_FOR)))
                if early is None:
                    return
                await self._end_wait(early)
                trigger = early
            elif plan.requests:
                return
        raise TerminalError(f"planner {self._decider.name!r} took {MAX_STEPS} steps in one turn without waiting")

    async def _ask(self, run: RunContext) -> PlannerDecision:
        turn = self._turn
        metered = Metered(turn.environment.reasoner, self._plan.spent)
        token = CURRENT_REASONER.set(metered)
        begun = time.perf_counter()
        try:
            decision = check_decision(await self._decider.next(run))
            exhausted = self._budget().exhausted_reason(run.now)
            if exhausted is not None and not isinstance(decision.next_action, CompleteAction):
                raise BudgetExhausted(exhausted)
        finally:
            CURRENT_REASONER.reset(token)
            turn.calls.extend(metered.calls)
        turn.decisions.append(
            {
                "planner": self._decider.name,
                "decision": decision.model_dump(mode="json"),
                "calls": metered.calls,
                "repairs": max(0, len(metered.calls) - 1),
                "seconds": round(time.perf_counter() - begun, 3),
            }
        )
        return decision

    # What the planner is shown.

    async def _view(self, trigger: dict[str, Any]) -> RunContext:
        plan, turn = self._plan, self._turn
        events, agents = await _known(turn.environment.toolkit, turn.environment.registry)
        return RunContext(
            tenant_id=plan.tenant_id,
            user_id=plan.user_id,
            session_id=plan.session_id or "",
            run_id=plan.plan_id,
            goal=plan.goal_data,
            goal_event=plan.goal_event,
            current_state=plan.current_state,
            trigger=self._entry(trigger, turn.revision),
            results=plan.results,
            trajectory=[self._step(step) for step in plan.trajectory],
            events=events,
            agents=agents,
            expected=self._expected(),
            tasks=OpenTasks(
                tuple(key for key, request in plan.requests.items() if request.event_type != WAIT),
                tuple(key for key, group in plan.groups.items() if not group.resolved),
            ),
            budget=self._budget(),
            now=turn.now,  # type: ignore[arg-type]
        )

    def _expected(self) -> dict[str, str]:
        expected: dict[str, str] = {}
        for planner in self._turn.environment.planners.values():
            expected |= planner.expected
        for request in self._plan.requests.values():
            expected.setdefault(request.response_event, f"the answer to {request.event_type}")
        return expected

    def _budget(self) -> RunBudget:
        decider, spent = self._decider, self._plan.spent
        return RunBudget(
            max_actions=getattr(decider, "max_actions", None),
            actions=int(spent.get("actions", 0)),
            max_tokens=getattr(decider, "token_budget", None),
            tokens=int(spent.get("tokens", 0)),
            max_cost=getattr(decider, "cost_budget", None),
            cost=spent.get("cost", 0.0),
        )

    def _entry(self, fields: dict[str, Any], revision: int) -> TrajectoryEntry:
        return TrajectoryEntry(
            revision=revision,
            time=self._turn.now,  # type: ignore[arg-type]
            type=fields["type"],
            data=fields.get("data"),
            topic=str(fields.get("topic", "")),
            event_id=str(fields.get("id", "")),
            parent_event_id=str(fields.get("parent_event_id") or ""),
        )

    def _step(self, step: dict[str, Any]) -> TrajectoryEntry:
        decision = step.get("decision")
        return TrajectoryEntry(
            revision=step["revision"],
            time=step["time"],
            kind="decision" if decision else "event",
            type=step["type"],
            data=step.get("data"),
            decision=PlannerDecision.model_validate(decision) if decision else None,
            note=step.get("note", ""),
        )

    def _note(self, kind: str, name: str, fields: dict[str, Any]) -> None:
        """Add to what has happened; what the plan no longer carries is counted, never just gone."""
        plan, turn = self._plan, self._turn
        step: dict[str, Any] = {"revision": turn.revision, "time": turn.now, "type": name}
        step["decision" if kind == "decision" else "data"] = fields if kind == "decision" else fields.get("data")
        plan.trajectory.append(step)
        while len(plan.trajectory) > KEPT_STEPS:
            oldest = plan.trajectory.pop(0)
            plan.earlier[oldest["type"]] = plan.earlier.get(oldest["type"], 0) + 1
        if plan.earlier:
            counted = Counter(plan.earlier)
            plan.trajectory[0]["note"] = "before this: " + ", ".join(
                f"{n}x {each}" for each, n in sorted(counted.items())
            )


class Metered:
    """A reasoner that keeps account of what a plan's questions take."""

    def __init__(self, reasoner: ReasonerPort | None, spent: dict[str, float]) -> None:
        self._reasoner = reasoner or in_process_reasoner()
        self._spent = spent
        self.calls: list[dict[str, Any]] = []

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """See :class:`plancast.reasoning.ReasonerPort`."""
        reply = await self._reasoner.complete(request)
        self._spent["calls"] = self._spent.get("calls", 0) + 1
        self._spent["tokens"] = self._spent.get("tokens", 0) + reply.usage.total_tokens
        self._spent["cost"] = self._spent.get("cost", 0.0) + (reply.usage.cost or 0.0)
        self.calls.append(
            {
                "model": reply.model,
                "prompt_tokens": reply.usage.prompt_tokens,
                "completion_tokens": reply.usage.completion_tokens,
                "cost": reply.usage.cost,
                "seconds": round(reply.latency_seconds, 3),
                "attempts": reply.attempts,
                "kept": reply.cached,
            }
        )
        return reply


async def _known(toolkit: Any, registry: Any) -> tuple[list[EventDefinition], list[AgentDefinition]]:
    if toolkit is None or registry is None:
        return [], []
    events = await toolkit.discover_actionable_events(topic=str(EventTopic.ACTION_REQUESTS))
    return list(events), list(await registry.agents())


def _succeeded(fields: dict[str, Any]) -> bool:
    """Whether an answer tells of success: no failure by its type, its ``success`` or a child's ``status``."""
    data = fields.get("data")
    if fields["type"].endswith(_FAILURES):
        return False
    return not isinstance(data, dict) or (
        data.get("success") is not False and data.get("status") not in ("failed", "cancelled")
    )
