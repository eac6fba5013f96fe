"""Turns of plans that a planner decides: requests its decisions and executes them.

The runtime knows planners by :class:`~plancast.planners.contract.AutonomousPlanner` alone: decisions of a model and
of a decision tree go through the same executor and are committed by the same turn.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision
from plancast.errors import InvalidDecision, TaskError, TerminalError
from plancast.models.port import CURRENT_REASONER, ReasonerPort
from plancast.plan.context import PlanContext
from plancast.plan.control_events import RESUME
from plancast.plan.effects.entries import pause_for, repeated
from plancast.plan.effects.undo_list import is_rolling_back
from plancast.plan.moves import early_events
from plancast.plan.moves.state_moves import end_wait
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import WAIT, Request
from plancast.plan.status import PAUSED, RUNNING
from plancast.plan.task_responses import awaited_is_resolved, drop_unwanted, take_answer
from plancast.planner_turn.deliberation import Deliberation
from plancast.planner_turn.trajectory import trigger_entry
from plancast.planners.contract import AutonomousPlanner, RunContext, WakeMode, resolve_wake_mode
from plancast.turn_record.record import TurnRecord
from plancast_bus.errors import InvalidEnvelope, InvalidSubject, PayloadTooLarge

MAX_STEPS: Final = 64
"""Decisions of one turn that wait for nothing, before this counts as an endless loop of the planner. Decision trees are
bounded for the whole plan instead, by ``plans.max_tree_steps``."""
MAX_REFUSED: Final = 3
"""Refused decisions in a row, before the plan fails with the last refusal."""
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
        self._deliberation = Deliberation(record, plan, decider)

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
            self._deliberation.remember(_fields(event))
        return True

    async def on_timer(self, event: Any, request_id: str, request: Request) -> None:
        """Take the end of a WAIT, or of the time for an answer: that of a request fails its task."""
        plan = self._plan
        if request.event_type == WAIT:
            plan.requests.pop(request_id, None)
            end_wait(plan)
            self._take_early()
            await self._decide(event)
        elif self._take_answer(event):
            await self._decide(event)
        else:
            self._deliberation.remember(_fields(event))

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
            self._deliberation.remember(fields)
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

    async def _decide(self, trigger: Any) -> None:
        """Request decisions and execute them, until the plan waits for something or is finished."""
        plan, record = self._plan, self._record
        fields = _fields(trigger)
        self._deliberation.remember(fields)
        if await self._is_held():
            return
        refused = 0
        bounded_by_plan = getattr(self._decider, "counts_steps", False)
        for taken in count():
            if taken == MAX_STEPS and not bounded_by_plan:
                break
            awaited = plan.awaiting
            run = await self._deliberation.run(trigger_entry(fields, record.revision, record.now))
            plan.awaiting = ""
            decision = await self._ask(run)
            if (unknown := repeated(plan, _tasks_of(decision))) is not None:
                self._leave_to_a_person(decision, unknown)
                return
            refusal = await self._execute(decision, run)
            plan.control.clear()
            why = "" if refusal is None else f"refused: {refusal}"
            self._deliberation.executed(decision, why)
            if refusal is not None:
                record.notes.append(f"a decision was {why}")
                refused += 1
                if refused == MAX_REFUSED:
                    raise refusal
                continue
            refused = 0
            if bounded_by_plan:
                self._count_step(decision, awaited)
            if plan.status is PAUSED and (early := early_events.take_awaited(plan)) is not None:
                await self._end_wait(early)
                fields = early
                self._deliberation.remember(fields)
            elif plan.status is not RUNNING or self._waits(decision):
                drop_unwanted(plan)
                return
        raise TerminalError(f"planner {self._decider.name!r} took {MAX_STEPS} steps in one turn without waiting")

    def _leave_to_a_person(self, decision: PlannerDecision, request_id: str) -> None:
        """Pause the plan instead of repeating what may have been done; the planner decides again once it is known.

        Raises:
            TerminalError: a person has given it up.
        """
        plan, entry = self._plan, self._plan.effects[request_id]
        if entry.given_up:
            raise TerminalError(f"{entry.event_type} is not repeated: it was given up, and may have been done")
        why = f"refused: it is not known if {entry.event_type} has been done already"
        plan.control.clear()
        self._deliberation.executed(decision, why)
        self._record.notes.append(f"a decision was {why}")
        pause_for(plan, request_id)

    def _count_step(self, decision: PlannerDecision, awaited: str) -> None:
        """Count a step of a decision tree. The final one does not count, nor does going on with the same AWAIT.

        Raises:
            TerminalError: the plan has taken as many steps as it may.
        """
        plan, action = self._plan, decision.next_action
        if isinstance(action, CompleteAction):
            return
        if isinstance(action, AwaitAction) and plan.awaiting == awaited and not awaited_is_resolved(plan):
            return  # a tree is asked at each answer of the group
        most = self._record.environment.settings.max_tree_steps
        if plan.spent.get("steps", 0) >= most:
            raise TerminalError(
                f"planner {self._decider.name!r} took {most} steps without completing the plan; that is the limit of a "
                "decision tree: plans.max_tree_steps (PLANCAST_PLANS__MAX_TREE_STEPS)"
            )
        plan.spent["steps"] = plan.spent.get("steps", 0) + 1

    async def _is_held(self) -> bool:
        """Pause the plan if a pause was requested while it waited; True when it was."""
        reason = self._plan.control.pop("pause", None)
        if reason is not None:
            await self._plan.pause(reason)
            self._plan.control["unseen"] = True
        return reason is not None

    async def _ask(self, run: RunContext) -> PlannerDecision:
        async def ask(port: ReasonerPort) -> PlannerDecision:
            token = CURRENT_REASONER.set(port)
            try:
                return await self._decider.next(run)
            finally:
                CURRENT_REASONER.reset(token)

        return await self._deliberation.ask(run, ask, self._record.environment.reasoner)

    async def _execute(self, decision: PlannerDecision, run: RunContext) -> Exception | None:
        """Execute a decision; a refused one is rolled back and its error returned, for the planner to see."""
        try:
            await self._deliberation.carry_out(decision, run, pending=True)
        except _REFUSALS as error:
            if isinstance(decision.next_action, (CompleteAction, WaitAction)):
                raise
            return error
        return None

    def _waits(self, decision: PlannerDecision) -> bool:
        """True if the plan waits after a decision; False: the planner makes the next one at once."""
        action = decision.next_action
        if is_rolling_back(self._plan):
            return True
        if isinstance(action, AwaitAction):
            return not awaited_is_resolved(self._plan)
        if isinstance(action, DelegateAction) and action.group_id and not self._plan.awaiting:
            return False  # the task runs in the background
        return bool(self._plan.requests)


def _tasks_of(decision: PlannerDecision) -> set[str]:
    """The types of the tasks that a decision begins."""
    action = decision.next_action
    actions = action.branches if isinstance(action, ParallelAction) else [action]
    published = {each.event_type for each in actions if isinstance(each, PublishAction)}
    return published | ({action.goal_event} if isinstance(action, DelegateAction) else set())


def _fields(event: Any) -> dict[str, Any]:
    fields: dict[str, Any] = event if isinstance(event, dict) else event.to_wire()
    return fields
