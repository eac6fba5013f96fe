"""Turns of plans that a planner decides: requests its decisions and executes them.

The runtime knows planners by :class:`~plancast.planners.contract.AutonomousPlanner` alone: decisions of a model and
of a decision tree go through the same executor and are committed by the same turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from plancast.decisions.actions import AwaitAction, CompleteAction, DelegateAction, WaitAction
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.decisions.executor import execute_decision, send_pending
from plancast.errors import BudgetExhausted, InvalidDecision, RetryableError, TaskError, TerminalError
from plancast.models.decorators import MeteredReasoner
from plancast.models.port import CURRENT_REASONER
from plancast.plan import early_events
from plancast.plan.context import PlanContext
from plancast.plan.control_events import RESUME
from plancast.plan.record import WAITING_FOR, tasks_of
from plancast.plan.requests import WAIT, Request
from plancast.plan.state_moves import end_wait
from plancast.plan.status import PAUSED, RUNNING
from plancast.planners.contract import AutonomousPlanner, RunBudget, RunContext, RunControl, WakeMode, resolve_wake_mode
from plancast.planners.run_context import budget_of, build_run
from plancast.turn.record import TurnRecord
from plancast.turn.task_responses import awaited_is_resolved, drop_unwanted, take_answer
from plancast.turn.trajectory import add_decision, add_event, read_entry, trigger_entry
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject, PayloadTooLarge

MAX_STEPS: Final = 64
"""Decisions of one turn that wait for nothing, before this counts as an endless loop of the planner."""
MAX_REFUSED: Final = 3
"""Refused decisions in a row, before the plan fails with the last refusal."""
DEFAULT_IDENTITY: Final = "default"
"""Tenant and user in the run of a plan that has none."""
_REFUSALS: Final = (InvalidDecision, TaskError, PayloadTooLarge, InvalidEnvelope, InvalidSubject)


def autonomous_turn(record: TurnRecord, plan: PlanContext) -> AutonomousTurn | None:
    """The turn of a plan that a planner decides; None for other plans."""
    decider = record.environment.decider_of(plan)
    return AutonomousTurn(record, plan, decider) if decider is not None else None


class AutonomousTurn:
    """One turn of a plan that a planner decides."""

    def __init__(self, record: TurnRecord, plan: PlanContext, decider: AutonomousPlanner) -> None:
        self._record = record
        self._plan = plan
        self._decider = decider

    async def on_goal(self) -> None:
        """Take the first turn."""
        self._plan.status = RUNNING
        await self._decide(self._record.event)

    async def on_event(self, event: Any, request: Request | None) -> bool:
        """Take an event; False when nothing waits for it yet, so that it is to be kept."""
        plan = self._plan
        if plan.status is PAUSED:
            if event.type != plan.results.get(WAITING_FOR):
                return False
            if request is not None:
                take_answer(plan, _fields(event))
            await self._end_wait(event)
            await self._decide(event)
            return True
        if request is None:
            return False
        if self._take_answer(event):
            await self._decide(event)
        else:
            self._remember(_fields(event))
        return True

    async def on_timer(self, event: Any, request_id: str, request: Request) -> None:
        """Take a timeout: the planner decides with the timer event as its trigger."""
        plan = self._plan
        plan.requests.pop(request_id, None)
        if request.event_type == WAIT:
            end_wait(plan)
            self._take_early()
        await self._decide(event)

    async def on_resume(self, waited: bool, data: Any) -> None:
        """Take the early answers after a pause, and let the planner decide if it has anything new to see.

        Args:
            waited: The pause was a WAIT.
            data: The input of the resume.
        """
        plan = self._plan
        unseen = plan.control.pop("unseen", None)
        if self._take_early() or waited or unseen or data is not None or not plan.requests:
            await self._decide(self._record.event)

    def _take_early(self) -> bool:
        """Take the answers that arrived during the pause; True when there were any."""
        answers = early_events.take_answers(self._plan)
        for fields in answers:
            self._remember(fields)
            take_answer(self._plan, fields)
        return bool(answers)

    def _take_answer(self, event: Any) -> bool:
        """Take an answer; True when the planner's wake mode requires a decision now."""
        plan = self._plan
        resolved = take_answer(plan, _fields(event))
        if resolve_wake_mode(self._decider) is not WakeMode.PUSH:
            return True
        return awaited_is_resolved(plan) if plan.awaiting else resolved

    async def _end_wait(self, event: Any) -> None:
        fields = _fields(event)
        await self._plan.resume(fields.get("data"))
        self._take_early()
        if fields["type"] != RESUME:
            self._plan.results[fields["type"]] = fields.get("data")

    def _remember(self, fields: Mapping[str, Any]) -> None:
        add_event(self._plan, self._record.revision, self._record.now, fields)

    async def _decide(self, trigger: Any) -> None:
        """Request decisions and execute them, until the plan waits for something or is finished."""
        plan, record = self._plan, self._record
        fields = _fields(trigger)
        self._remember(fields)
        if await self._is_held():
            return
        refused = 0
        for _ in range(MAX_STEPS):
            run = await self._run(fields)
            plan.awaiting = ""
            decision = await self._ask(run)
            refusal = await self._execute(decision, run)
            plan.control.clear()
            why = "" if refusal is None else f"refused: {refusal}"
            add_decision(plan, record.revision, record.now, decision, why)
            if refusal is not None:
                record.notes.append(f"a decision was {why}")
                refused += 1
                if refused == MAX_REFUSED:
                    raise refusal
                continue
            refused = 0
            if not isinstance(decision.next_action, CompleteAction):
                plan.spent["actions"] = plan.spent.get("actions", 0) + 1
            if plan.status is PAUSED and (early := early_events.take_awaited(plan)) is not None:
                await self._end_wait(early)
                fields = early
                self._remember(fields)
            elif plan.status is not RUNNING or self._waits(decision):
                drop_unwanted(plan)
                return
        raise TerminalError(f"planner {self._decider.name!r} took {MAX_STEPS} steps in one turn without waiting")

    async def _is_held(self) -> bool:
        """Pause the plan if a pause was requested while it waited; True when it was."""
        reason = self._plan.control.pop("pause", None)
        if reason is not None:
            await self._plan.pause(reason)
            self._plan.control["unseen"] = True
        return reason is not None

    async def _run(self, trigger: Mapping[str, Any]) -> RunContext:
        """The run that the planner decides by; built anew for each decision."""
        plan, record = self._plan, self._record
        tasks, control = tasks_of(plan), plan.control
        completions = [tasks.watch_group(group) for group in tasks.groups]
        groups = {each.group_id: [m.to_dict() for m in each.members] for each in completions if each is not None}
        expected = dict(record.environment.expected)
        for request in plan.requests.values():
            expected.setdefault(request.response_event, f"the answer to {request.event_type}")
        return await build_run(
            record.context,
            plan,
            tenant_id=plan.tenant_id or DEFAULT_IDENTITY,
            user_id=plan.user_id or DEFAULT_IDENTITY,
            session_id=plan.session_id or plan.plan_id,
            trigger=trigger_entry(trigger, record.revision, record.now),
            results=plan.results | groups,
            trajectory=[read_entry(step) for step in plan.trajectory],
            expected=expected,
            tasks=tasks,
            budget=self._budget(),
            control=RunControl(injected=control.get("injected", ()), redirect_goal=control.get("redirect_goal")),
            now=record.now,
        )

    def _budget(self) -> RunBudget:
        decider = self._decider
        return budget_of(
            self._plan,
            max_actions=getattr(decider, "max_actions", None),
            max_tokens=getattr(decider, "token_budget", None),
            max_cost=getattr(decider, "cost_budget", None),
        )

    async def _ask(self, run: RunContext) -> PlannerDecision:
        """Ask the planner for the next decision, and record what it took."""
        metered = MeteredReasoner(self._record.environment.reasoner, self._plan.spent)
        token = CURRENT_REASONER.set(metered)
        begun = time.perf_counter()
        try:
            decision = check_decision(await self._decider.next(run))
            exhausted = self._budget().exhausted_reason(run.now)
            if exhausted is not None and not isinstance(decision.next_action, CompleteAction):
                raise BudgetExhausted(exhausted)
        except Exception as error:
            if isinstance(error.__cause__, (RetryableError, BusUnavailable)):
                raise error.__cause__ from None  # a step asks for a retry
            raise
        finally:
            CURRENT_REASONER.reset(token)
        self._record.decisions.append(
            {
                "planner": self._decider.name,
                "decision": decision.model_dump(mode="json"),
                "calls": metered.calls,
                "repairs": max(0, len(metered.calls) - 1),
                "seconds": round(time.perf_counter() - begun, 3),
            }
        )
        return decision

    async def _execute(self, decision: PlannerDecision, run: RunContext) -> Exception | None:
        """Execute a decision; a refused one is rolled back and its error returned, for the planner to see."""
        plan, record = self._plan, self._record
        mark, requests, tasks = record.outbox.mark(), dict(plan.requests), tasks_of(plan).to_state()
        try:
            await execute_decision(decision, record.context, plan=plan, definitions=run.events)
            await send_pending(record.context, plan, run.events)
        except _REFUSALS as error:
            if isinstance(decision.next_action, (CompleteAction, WaitAction)):
                raise
            record.outbox.rewind(mark)
            plan.requests = requests
            plan.tasks = type(tasks_of(plan)).from_state(tasks)
            return error
        return None

    def _waits(self, decision: PlannerDecision) -> bool:
        """True if the plan waits after a decision; False: the planner makes the next one at once."""
        action = decision.next_action
        if isinstance(action, AwaitAction):
            return not awaited_is_resolved(self._plan)
        if isinstance(action, DelegateAction) and action.group_id and not self._plan.awaiting:
            return False  # the task runs in the background
        return bool(self._plan.requests)


def _fields(event: Any) -> dict[str, Any]:
    fields: dict[str, Any] = event if isinstance(event, dict) else event.to_wire()
    return fields
