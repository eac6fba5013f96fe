"""Drives an autonomous planner within a turn: shows it the run, validates its decision and carries it out.

The runtime knows planners by :class:`~plancast.planners.contract.AutonomousPlanner` alone: decisions of a model and
of a decision tree go through the same executor and are committed by the same turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from plancast.decisions.actions import AwaitAction, CompleteAction, DelegateAction, WaitAction
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.decisions.executor import execute_decision, send_pending
from plancast.errors import BudgetExhausted, InvalidDecision, RetryableError, TaskError, TerminalError
from plancast.models.decorators import Metered
from plancast.models.port import CURRENT_REASONER
from plancast.plan import early_events
from plancast.plan.context import PlanContext
from plancast.plan.control_events import RESUME
from plancast.plan.record import WAITING_FOR, tasks_of
from plancast.plan.requests import WAIT, Request
from plancast.plan.state_moves import end_wait
from plancast.plan.status import PlanStatus
from plancast.planners.contract import AutonomousPlanner, RunContext, WakeMode, resolve_wake_mode
from plancast.turn.run_context import budget_of, remember_decision, remember_event, run_view
from plancast.turn.task_responses import awaited_is_resolved, drop_unwanted, take_answer
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject, PayloadTooLarge

if TYPE_CHECKING:
    from plancast.turn.turn import Turn

MAX_STEPS: Final = 64
"""Decisions of one turn that wait for nothing, before the planner is taken to run in a circle."""
MAX_REFUSED: Final = 3
"""Decisions in a row that cannot be carried out, before the plan fails with the last refusal."""
_REFUSALS: Final = (InvalidDecision, TaskError, PayloadTooLarge, InvalidEnvelope, InvalidSubject)


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
            if event.type != plan.results.get(WAITING_FOR):
                return False
            if request is not None:
                take_answer(plan, _fields(event))
            await self._end_wait(event)
            await self._go_on(event)
            return True
        if request is None:
            return False
        if self._take_answer(event):
            await self._go_on(event)
        else:
            remember_event(self._turn, plan, _fields(event))
        return True

    async def on_timer(self, event: Any, request_id: str, request: Request) -> None:
        """A wait has lasted too long: the planner is asked again, with that as its trigger."""
        plan = self._plan
        plan.requests.pop(request_id, None)
        if request.event_type == WAIT:
            end_wait(plan)
            self._take_kept()
        await self._go_on(event)

    async def on_resume(self, waited: bool, said: Any) -> None:
        """Somebody has resumed the plan: what was kept meanwhile counts now, and the planner is asked.

        It is not asked when there is nothing new to it: requests are open as they were before a mere pause.

        Args:
            waited: The pause was a WAIT.
            said: What the plan was resumed with.
        """
        plan = self._plan
        unseen = plan.control.pop("unseen", None)
        if self._take_kept() or waited or unseen or said is not None or not plan.requests:
            await self._go_on(self._turn.event)

    def _take_kept(self) -> bool:
        """Note the answers that came while the plan was paused; True when there were any."""
        answers = early_events.take_answers(self._plan)
        for fields in answers:
            remember_event(self._turn, self._plan, fields)
            take_answer(self._plan, fields)
        return bool(answers)

    def _take_answer(self, event: Any) -> bool:
        """Note an answer; True when the planner is to be asked now."""
        plan = self._plan
        resolved = take_answer(plan, _fields(event))
        if resolve_wake_mode(self._decider) is not WakeMode.PUSH:
            return True
        return awaited_is_resolved(plan) if plan.awaiting else resolved

    async def _end_wait(self, event: Any) -> None:
        fields = _fields(event)
        await self._plan.resume(fields.get("data"))
        self._take_kept()
        if fields["type"] != RESUME:
            self._plan.results[fields["type"]] = fields.get("data")

    # Decisions.

    async def _go_on(self, trigger: Any) -> None:
        """Ask for decisions and carry them out, until the plan waits for something or is finished."""
        plan, turn = self._plan, self._turn
        fields = _fields(trigger)
        remember_event(turn, plan, fields)
        if await self._held():
            return
        refused = 0
        for _ in range(MAX_STEPS):
            run = await run_view(turn, plan, self._decider, fields)
            plan.awaiting = ""
            decision = await self._ask(run)
            refusal = await self._carry_out(decision, run)
            plan.control.clear()
            remember_decision(turn, plan, decision, "" if refusal is None else f"refused: {refusal}")
            if refusal is not None:
                turn.notes.append(f"a decision was refused: {refusal}")
                refused += 1
                if refused == MAX_REFUSED:
                    raise refusal
                continue
            refused = 0
            if not isinstance(decision.next_action, CompleteAction):
                plan.spent["actions"] = plan.spent.get("actions", 0) + 1
            if plan.status is PlanStatus.PAUSED and (early := early_events.take_awaited(plan)) is not None:
                await self._end_wait(early)
                fields = early
                remember_event(turn, plan, fields)
            elif plan.status is not PlanStatus.RUNNING or self._waits(decision):
                drop_unwanted(plan)
                return
        raise TerminalError(f"planner {self._decider.name!r} took {MAX_STEPS} steps in one turn without waiting")

    async def _held(self) -> bool:
        """Whether the plan stops here: somebody has asked for a pause while it waited."""
        reason = self._plan.control.pop("pause", None)
        if reason is not None:
            await self._plan.pause(reason)
            self._plan.control["unseen"] = True
        return reason is not None

    async def _ask(self, run: RunContext) -> PlannerDecision:
        turn = self._turn
        metered = Metered(turn.environment.reasoner, self._plan.spent)
        token = CURRENT_REASONER.set(metered)
        begun = time.perf_counter()
        try:
            decision = check_decision(await self._decider.next(run))
            exhausted = budget_of(self._decider, self._plan).exhausted_reason(run.now)
            if exhausted is not None and not isinstance(decision.next_action, CompleteAction):
                raise BudgetExhausted(exhausted)
        except Exception as error:
            if isinstance(error.__cause__, (RetryableError, BusUnavailable)):
                raise error.__cause__ from None  # a step has said: try again
            raise
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

    async def _carry_out(self, decision: PlannerDecision, run: RunContext) -> Exception | None:
        """Carry a decision out; a refusal leaves no trace, and the planner hears of it."""
        plan, outbox = self._plan, self._turn.outbox
        mark, requests, tasks = outbox.mark(), dict(plan.requests), tasks_of(plan).to_state()
        try:
            await execute_decision(decision, self._turn.context, plan=plan, definitions=run.events)
            await send_pending(self._turn.context, plan, run.events)
        except _REFUSALS as error:
            if isinstance(decision.next_action, (CompleteAction, WaitAction)):
                raise
            outbox.rewind(mark)
            plan.requests = requests
            plan.tasks = type(tasks_of(plan)).from_state(tasks)
            return error
        return None

    def _waits(self, decision: PlannerDecision) -> bool:
        """Whether the plan waits after a decision, or its planner is asked for the next one at once."""
        action = decision.next_action
        if isinstance(action, AwaitAction):
            return not awaited_is_resolved(self._plan)
        if isinstance(action, DelegateAction) and action.group_id and not self._plan.awaiting:
            return False  # it goes on in the background
        return bool(self._plan.requests)


def _fields(event: Any) -> dict[str, Any]:
    fields: dict[str, Any] = event if isinstance(event, dict) else event.to_wire()
    return fields
