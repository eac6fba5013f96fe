"""Stalled plans: detects plans that nothing will move, and wakes them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from plancast.plan.context import PlanContext
from plancast.plan.effects.undo_list import UNDOS
from plancast.plan.moves.state_moves import enter_assigned
from plancast.plan.record import GOAL, is_held
from plancast.plan.requests import WAIT
from plancast.plan.status import PlanStatus
from plancast.planner_turn.autonomous import autonomous_turn
from plancast.turn_record.record import TurnRecord


class StallKind(StrEnum):
    """Why a plan is stalled; few values, since a metric is labelled with them."""

    TIMER = "timer"
    """A request or a WAIT is long overdue."""
    PENDING = "pending"
    """It never began."""
    UNDECIDED = "undecided"
    """It has no open request, and its planner made no decision."""
    UNENTERED = "unentered"
    """Its state was never entered properly: no request sent, not left, not finished."""
    NO_WAY_OUT = "no-way-out"
    """No event leads out of its state."""
    UNREADABLE = "unreadable"
    """Its checkpoint cannot be read."""
    ROLLBACK = "rollback"
    """It is rolled back, and no undo is under way."""
    LOST = "lost"
    """It waits for the answer to a request that is in no stream."""
    BY_HAND = "by-hand"
    """Its handlers have left it without an open request; only a listener could move it."""


class Stall(NamedTuple):
    """A plan that nothing will move, and why."""

    kind: StallKind
    reason: str


def find_stall(plan: PlanContext, now: float, patience: float, since: float = 0.0) -> Stall | None:
    """Why nothing will move the plan; None when it is finished, or waits for a known event.

    Args:
        plan: As committed.
        now: Seconds since the epoch.
        patience: Seconds for which a timer may be overdue.
        since: When timers began to be served; earlier due times count as this time.
    """
    if plan.status.finished:
        return None
    paused = plan.status is PlanStatus.PAUSED  # then timers of requests are held back
    for request in plan.requests.values():
        held = paused and (request.event_type != WAIT or is_held(plan))
        if request.due is not None and not held and now - max(request.due, since) > patience:
            return Stall(StallKind.TIMER, f"the timer of {request.event_type} was due {now - request.due:.0f} s ago")
    if paused or plan.requests or GOAL in plan.dependencies:
        return None
    if plan.rollback:
        return None if plan.rollback.get(UNDOS) else Stall(StallKind.ROLLBACK, "its rollback stands still")
    if plan.status is PlanStatus.PENDING:
        return Stall(StallKind.PENDING, "it never began")
    if plan.decider:
        return Stall(StallKind.UNDECIDED, f"nothing is under way, and planner {plan.decider!r} was not asked")
    if not plan.state_machine:
        return Stall(StallKind.BY_HAND, "its handlers have left it running with nothing under way")
    state = plan.state_machine.get(plan.current_state)
    if state is None:
        return Stall(StallKind.NO_WAY_OUT, f"its machine has no state {plan.current_state!r}")
    if state.action is not None and plan.unmoved == plan.current_state:
        reason = f"its transition handler made no move on the answer that state {plan.current_state!r} waited for"
        return Stall(StallKind.BY_HAND, reason)
    if state.action is not None:
        return Stall(StallKind.UNENTERED, f"state {plan.current_state!r} has not asked for {state.action.event_type}")
    if state.is_terminal or (state.default_next is not None and not state.transitions):
        return Stall(StallKind.UNENTERED, f"state {plan.current_state!r} waits for nothing, and was not left")
    if not state.transitions:
        return Stall(StallKind.NO_WAY_OUT, f"nothing leads out of state {plan.current_state!r}")
    return None


async def wake(turn: TurnRecord, plan: PlanContext) -> bool:
    """Move a stalled plan on; False when it is not stalled, or only code of the app could move it."""
    found = find_stall(plan, turn.now, 0.0)
    if found is None:
        return False
    if not plan.rollback and (missing := turn.environment.missing_code(plan)) is not None:
        await plan.fail(missing)
        return True
    turn.notes.append(f"the plan stood still: {found.reason}")
    if found.kind is StallKind.TIMER:
        for request in plan.requests.values():
            if request.due is not None and request.due < turn.now:
                request.due = turn.now  # another time than before: the timer is set again
        return True
    if found.kind is StallKind.ROLLBACK:
        return True  # the end of the turn goes on with it
    if plan.decider:
        autonomous = autonomous_turn(turn, plan)
        if autonomous is not None:
            plan.status = PlanStatus.RUNNING
            await autonomous.on_resume(waited=False, data=None)
        return autonomous is not None
    if found.kind is StallKind.UNENTERED:
        await enter_assigned(plan)
        return True
    if found.kind is StallKind.PENDING and plan.state_machine:
        await plan.execute_next()
        return True
    movable = bool(turn.environment.listeners) or turn.environment.transition_handler(plan) is not None
    if found.kind is StallKind.NO_WAY_OUT and not movable:
        await plan.fail(f"nothing can move the plan: {found.reason}")
        return True
    return False
