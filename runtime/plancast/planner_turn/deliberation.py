"""Deliberation: a planner's decisions in one turn of a plan, metered and recorded.

A planner that decides whole plans and one that handlers call go through it alike, so that budgets, the plan's
trajectory and its timeline are the same for both.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from plancast.decisions.actions import CompleteAction
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.decisions.executor import execute_decision, send_pending
from plancast.errors import BudgetExhausted, RetryableError
from plancast.models.decorators import MeteredReasoner
from plancast.models.port import ReasonerPort, ReasonRequest
from plancast.models.reservation import Reservation, estimate, reserve
from plancast.plan.context import PlanContext
from plancast.plan.effects.undo_list import is_rolling_back
from plancast.plan.moves.atomic_move import AtomicMove
from plancast.plan.record import tasks_of
from plancast.planner_turn.trajectory import add_decision, add_event, read_entry
from plancast.planners.contract import RunBudget, RunContext, RunControl, TrajectoryEntry
from plancast.planners.run_context import build_run, trigger_of
from plancast.turn_record.account import bind, call_rate, limits_of, read_share, spent_by, sum_of
from plancast.turn_record.record import TurnRecord
from plancast_bus.errors import BusUnavailable

DEFAULT_IDENTITY: Final = "default"
"""Tenant and user in the run of a plan that has none."""


class Deliberation:
    """The decisions of a planner in one turn.

    Args:
        record: The turn.
        plan: The turn's plan, or the draft of the plan that a goal's turn has not created yet.
        planner: Its `max_actions`, `token_budget` and `cost_budget` are the limits.
    """

    def __init__(self, record: TurnRecord, plan: PlanContext, planner: Any) -> None:
        self._record = record
        self._plan = plan
        self._planner = record.planner = planner

    async def decide(
        self,
        trigger: Any,
        custom_context: Mapping[str, Any],
        ask: Callable[[RunContext, ReasonerPort], Awaitable[PlannerDecision]],
    ) -> PlannerDecision:
        """Let a planner decide for a handler.

        Args:
            trigger: A text, or an event.
            custom_context: For this decision only.
            ask: Decides by a run, with a reasoner.
        """
        record = self._record
        if not record.is_remembered:
            self.remember(record.event.to_wire())
        entry = replace(trigger_of(trigger), revision=record.revision, time=record.now)  # type: ignore[arg-type]
        run = await self.run(entry, custom_context=custom_context)
        return await self.ask(run, lambda port: ask(run, port), record.context.reasoner)

    async def execute(self, decision: PlannerDecision, run: RunContext) -> None:
        """Execute a decision for a handler.

        Raises:
            BudgetExhausted: the plan's budget is exhausted, and the decision does not complete it.
            InvalidDecision, TaskError: it cannot be executed; nothing was done.
        """
        self._require_budget(decision, run)
        self._record.adopt(self._plan)
        if not any(each is decision for each in self._record.decided):
            self._note(decision, [], 0.0)
        await self.carry_out(decision, run)
        self.executed(decision)

    async def carry_out(self, decision: PlannerDecision, run: RunContext, *, pending: bool = False) -> None:
        """Do what a decision says, as a whole or not at all.

        Args:
            decision: It is validated.
            run: Its events are known.
            pending: Send the tasks, too, that the planner has registered by itself.
        """
        record, plan = self._record, self._plan
        with AtomicMove(plan, record):
            await execute_decision(decision, record.context, plan=plan, definitions=run.events)
            if pending and not is_rolling_back(plan):
                await send_pending(record.context, plan, run.events)

    def remember(self, fields: Mapping[str, Any]) -> None:
        """Append an event to the plan's trajectory."""
        self._record.is_remembered = True
        add_event(self._plan, self._record.revision, self._record.now, fields)

    def executed(self, decision: PlannerDecision, refusal: str = "") -> None:
        """Append a decision to the plan's trajectory, and count it unless it was refused or completes the plan."""
        plan, record = self._plan, self._record
        add_decision(plan, record.revision, record.now, decision, refusal)
        if not refusal and not isinstance(decision.next_action, CompleteAction):
            plan.spent["actions"] = plan.spent.get("actions", 0) + 1

    async def run(self, trigger: TrajectoryEntry, **fields: Any) -> RunContext:
        """The run that the planner decides by; built anew for each decision."""
        plan, record = self._plan, self._record
        tasks, control = tasks_of(plan), plan.control
        completions = [tasks.watch_group(group) for group in tasks.groups]
        groups = {each.group_id: [m.to_dict() for m in each.members] for each in completions if each is not None}
        expected = {**record.environment.expected, **getattr(self._planner, "expected", {})}
        for request in plan.requests.values():
            expected.setdefault(request.response_event, f"the answer to {request.event_type}")
        return await build_run(
            record.context,
            plan,
            tenant_id=plan.tenant_id or DEFAULT_IDENTITY,
            user_id=plan.user_id or DEFAULT_IDENTITY,
            session_id=plan.session_id or plan.plan_id,
            trigger=trigger,
            results=plan.results | groups,
            trajectory=[read_entry(step) for step in plan.trajectory],
            expected=expected,
            tasks=tasks,
            budget=self.budget(),
            control=RunControl(injected=control.get("injected", ()), redirect_goal=control.get("redirect_goal")),
            now=record.now,
            **fields,
        )

    def budget(self, *, reserved: bool = False) -> RunBudget:
        """The limits of the planner and of the plan's share, and what the plan has spent or lent to its children.

        What turns without a trace have used, such as earlier attempts at this one, counts too.

        Args:
            reserved: Count the calls that are under way.
        """
        plan, limits, record = self._plan, limits_of(self._plan, self._planner), self._record
        abandoned = sum_of(record.unsettled, record.used or ())
        actions, tokens = limits.get("actions"), limits.get("tokens")
        under_way = (record.reserved or ()) if reserved else ()
        return RunBudget(
            deadline=plan.deadline,  # type: ignore[arg-type]
            max_actions=None if actions is None else int(actions),
            actions=int(spent_by(plan, "actions")),
            max_tokens=None if tokens is None else int(tokens),
            tokens=int(spent_by(plan, "tokens") + abandoned.get("tokens", 0) + sum(each.tokens for each in under_way)),
            max_cost=limits.get("cost"),
            cost=float(spent_by(plan, "cost") + abandoned.get("cost", 0) + sum(each.cost for each in under_way)),
        )

    async def ask(
        self,
        run: RunContext,
        ask: Callable[[ReasonerPort], Awaitable[PlannerDecision]],
        reasoner: ReasonerPort | None,
    ) -> PlannerDecision:
        """Ask for the next decision, and record what it took.

        Args:
            run: What the decision is made by.
            ask: Decides, and calls models through the port that it is given.
            reasoner: Calls models; None calls them in this process.

        Raises:
            BudgetExhausted: the plan's budget is exhausted, and the decision does not complete it.
        """
        metered = self.metered(reasoner)
        begun = time.perf_counter()
        try:
            decision = check_decision(await ask(metered))
            self._require_budget(decision, run)
        except Exception as error:
            if isinstance(error.__cause__, (RetryableError, BusUnavailable)):
                raise error.__cause__ from None  # a step asks for a retry
            raise
        self._note(decision, metered.calls, time.perf_counter() - begun)
        return decision

    def metered(self, reasoner: ReasonerPort | None) -> MeteredReasoner:
        """A reasoner whose calls count against the plan's limits.

        Args:
            reasoner: Calls models; None calls them in this process.
        """
        record, plan = self._record, self._plan
        record.used = record.used if record.used is not None else {}
        record.reserved = record.reserved if record.reserved is not None else []
        exhausted = lambda: self.budget(reserved=True).no_call_reason(record.now)  # noqa: E731

        def learn(rate: float) -> None:
            plan.call_rate = max(plan.call_rate, rate)

        bound, reserved, rate = self._bound, record.reserved, call_rate(plan)
        return MeteredReasoner(reasoner, plan.spent, exhausted, record.used, bound, reserved, rate, learn)

    def _bound(self, request: ReasonRequest, rate: float) -> Reservation:
        """Bound a call by what is left of the plan's share, so that siblings do not each pass their parent's limit.

        Limits that are the plan's own are passed by one call at most.

        Raises:
            BudgetExhausted: too little is left of the share for the call.
        """
        share, budget, record = self._plan.allowance, self.budget(reserved=True), self._record
        if budget.max_tokens is None and budget.max_cost is None:
            return Reservation(request)
        key, before = request.idempotency_key, dict[str, float]()
        if key not in (record.used or ()):
            before |= record.unsettled.get(key, {})  # the same call, in an earlier attempt: its reply is kept
        tokens = cost = None
        if "tokens" in share and budget.max_tokens is not None:
            tokens = budget.max_tokens - budget.tokens + before.get("tokens", 0)
        if "cost" in share and budget.max_cost is not None:
            cost = budget.max_cost - budget.cost + before.get("cost", 0)
        return estimate(request, rate) if tokens is None and cost is None else reserve(request, tokens, cost, rate)

    def _require_budget(self, decision: PlannerDecision, run: RunContext) -> None:
        exhausted = self.budget().exhausted_reason(run.now)
        if exhausted is not None and not isinstance(decision.next_action, CompleteAction):
            raise BudgetExhausted(exhausted)

    def _note(self, decision: PlannerDecision, calls: list[dict[str, Any]], seconds: float) -> None:
        record = self._record
        record.decided = (*record.decided, decision)
        record.decisions.append(
            {
                "planner": self._planner.name,
                "decision": decision.model_dump(mode="json"),
                "confidence": decision.confidence if "confidence" in decision.model_fields_set else None,
                "calls": calls,
                "repairs": max(0, len(calls) - 1),
                "seconds": round(seconds, 3),
            }
        )


async def deliberation_of_handler(
    record: TurnRecord, planner: Any, plan: Any, kind: Callable[..., Deliberation] = Deliberation
) -> Deliberation | None:
    """The deliberation of a planner that a handler calls; None for another plan than the turn's, and without one.

    A goal's turn without a plan gets a draft of it, whose spend and trajectory the plan takes over when it is created.
    """
    if record.plan is None and record.goal is not None and isinstance(plan, PlanContext):
        record.adopt(plan)
    own = record.plan
    if own is None and plan is None and record.goal is not None:
        if record.draft is None:
            machine = record.environment.goals[record.goal.event_type].machine(record.goal.event_type)
            record.draft = await PlanContext.create_from_goal(replace(record.goal, _context=None), machine or {})
            record.draft.deadline = record.deadline
            record.draft.allowance = read_share(record.event.metadata)
        own = record.draft
    if own is None or (plan is not None and plan is not own):
        return None
    bind(own, planner)
    return kind(record, own, planner)
