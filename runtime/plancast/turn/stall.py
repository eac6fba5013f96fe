"""Plans that stand still: how one is told from a plan that waits for something, and what gets it going again."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from plancast.plan.context import PlanContext
from plancast.plan.requests import WAIT
from plancast.plan.state_moves import enter_assigned
from plancast.plan.status import PlanStatus

if TYPE_CHECKING:
    from plancast.turn.turn import Turn


class Kind(StrEnum):
    """In what a plan stands still; few, since metrics are counted by it."""

    TIMER = "timer"
    """A request or a wait was to time out long ago."""
    PENDING = "pending"
    """It never began."""
    UNDECIDED = "undecided"
    """It has nothing under way, and its planner was not asked."""
    UNENTERED = "unentered"
    """Its state was never carried out: not asked for, not left, not ended."""
    NO_WAY_OUT = "no-way-out"
    """No event leads out of its state."""
    UNREADABLE = "unreadable"
    """Its checkpoint cannot be read."""
    BY_HAND = "by-hand"
    """Its handlers have left it with nothing under way; only a listener could move it."""


class Standstill(NamedTuple):
    """Why nothing will move a plan."""

    kind: Kind
    reason: str


def standstill(plan: PlanContext, now: float, patience: float, since: float = 0.0) -> Standstill | None:
    """Why nothing will move the plan; None when it is finished, or waits for something that has a name.

    Args:
        plan: As committed.
        now: Seconds since the epoch.
        patience: Seconds for which a timer may be overdue.
        since: When somebody was there to see to timers; what is due before counts from then.
    """
    if plan.status.finished:
        return None
    paused = plan.status is PlanStatus.PAUSED  # then timers of requests are held back
    for request in plan.requests.values():
        held = paused and request.event_type != WAIT
        if request.due is not None and not held and now - max(request.due, since) > patience:
            return Standstill(Kind.TIMER, f"the timer of {request.event_type} was due {now - request.due:.0f} s ago")
    if paused or plan.requests:
        return None
    if plan.status is PlanStatus.PENDING:
        return Standstill(Kind.PENDING, "it never began")
    if plan.decider:
        return Standstill(Kind.UNDECIDED, f"nothing is under way, and planner {plan.decider!r} was not asked")
    if not plan.state_machine:
        return Standstill(Kind.BY_HAND, "its handlers have left it running with nothing under way")
    state = plan.state_machine.get(plan.current_state)
    if state is None:
        return Standstill(Kind.NO_WAY_OUT, f"its machine has no state {plan.current_state!r}")
    if state.action is not None and plan.unmoved == plan.current_state:
        reason = f"its transition handler made no move on the answer that state {plan.current_state!r} waited for"
        return Standstill(Kind.BY_HAND, reason)
    if state.action is not None:
        return Standstill(Kind.UNENTERED, f"state {plan.current_state!r} has not asked for {state.action.event_type}")
    if state.is_terminal or (state.default_next is not None and not state.transitions):
        return Standstill(Kind.UNENTERED, f"state {plan.current_state!r} waits for nothing, and was not left")
    if not state.transitions:
        return Standstill(Kind.NO_WAY_OUT, f"nothing leads out of state {plan.current_state!r}")
    return None


async def wake(turn: Turn, plan: PlanContext) -> bool:
    """Do what a plan that stands still is missing; False when it does not, or when only its own code could move it."""
    found = standstill(plan, turn.now, 0.0)
    if found is None:
        return False
    if (missing := turn.environment.missing_code(plan)) is not None:
        await plan.fail(missing)
        return True
    turn.notes.append(f"the plan stood still: {found.reason}")
    if found.kind is Kind.TIMER:
        for request in plan.requests.values():
            if request.due is not None and request.due < turn.now:
                request.due = turn.now  # another time than before: the timer is set again
        return True
    if plan.decider:
        return await turn.decide_anew(plan)
    if found.kind is Kind.UNENTERED:
        await enter_assigned(plan)
        return True
    if found.kind is Kind.PENDING and plan.state_machine:
        await plan.execute_next()
        return True
    if found.kind is Kind.NO_WAY_OUT and not turn.may_be_moved_by_code(plan):
        await plan.fail(f"nothing can move the plan: {found.reason}")
        return True
    return False
