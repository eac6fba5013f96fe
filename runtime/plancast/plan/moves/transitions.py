"""The transition that an event takes from a plan's state; changes nothing."""

from __future__ import annotations

from typing import Any

from plancast.plan.event_fields import answered_request, event_type_of, event_view
from plancast.plan.record import PlanRecord, position
from plancast.plan.requests import is_request_of, is_wait_of, wait_id
from plancast.plan.status import PENDING
from plancast.state_machine.machine import START


def next_state(plan: PlanRecord, event: Any) -> str | None:
    """The state that an event leads to from the current one, or None; late or repeated answers lead nowhere.

    Raises:
        ConditionFailed: a transition's condition cannot be evaluated.
    """
    parent = answered_request(event)
    return None if parent is not None and is_stale(plan, parent) else target_of(plan, plan.current_state, event)


def target_of(plan: PlanRecord, state: str, event: Any) -> str | None:
    """The target of the first transition of a state that takes the event, or None."""
    return plan.machine.next_state(
        state,
        event_type_of(event),
        event=lambda: event_view(event),
        goal_data=plan.goal_data,
        results=plan.results,
        plan=lambda: _view(plan),
    )


def is_stale(plan: PlanRecord, request_id: str) -> bool:
    """True if this request or wait of the plan is over, so that an answer to it is late or repeated."""
    if request_id in plan.requests:
        return False
    if is_wait_of(plan.plan_id, request_id):
        at = position(plan.decider, plan._entered, plan.trajectory, plan.earlier, plan.revisits)
        return request_id != wait_id(plan.plan_id, at)
    return is_request_of(plan.plan_id, request_id)


def target_without_event(plan: PlanRecord) -> str | None:
    """The state that a plan moves to when no event triggers the move, or None."""
    state = plan.state_machine.get(plan.current_state)
    if state is None:
        return None
    begins = plan.status is PENDING and plan.current_state == START
    if begins and (state.action or state.transitions or state.is_terminal):
        return plan.current_state
    return state.default_next


def _view(plan: PlanRecord) -> dict[str, Any]:
    """The plan in a transition's condition."""
    return {
        "plan_id": plan.plan_id,
        "status": str(plan.status),
        "current_state": plan.current_state,
        "session_id": plan.session_id or "",
        "user_id": plan.user_id,
        "tenant_id": plan.tenant_id,
    }
