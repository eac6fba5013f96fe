"""The transition that an event takes from a plan's state; changes nothing."""

from __future__ import annotations

from typing import Any

from plancast.plan.event_fields import answered_request, event_data, event_type_of, event_view
from plancast.plan.record import PlanRecord, position
from plancast.plan.requests import DELAY, is_request_of, is_wait_of, wait_id
from plancast.plan.status import PENDING
from plancast.state_machine.machine import START, failed_event, timeout_event, unknown_event


def next_state(plan: PlanRecord, event: Any) -> str | None:
    """The state that an event leads to from the current one, or None; late or repeated answers lead nowhere.

    Raises:
        ConditionFailed: a transition's condition cannot be evaluated.
    """
    parent = answered_request(event)
    return None if parent is not None and is_stale(plan, parent) else target_of(plan, plan.current_state, event)


def target_of(plan: PlanRecord, state: str, event: Any) -> str | None:
    """The target of the first transition of a state that takes the event, or None.

    The transitions of a state with branches see the last answer alone, with the list of all answers as its data.
    """
    if not _may_leave(plan, state, event):
        return None
    return plan.machine.next_state(
        state,
        event_type_of(event),
        event=lambda: event_view(event) | {"data": data_of(plan, event)},
        goal_data=plan.goal_data,
        results=plan.results,
        plan=lambda: _view(plan),
    )


def data_of(plan: PlanRecord, event: Any) -> Any:
    """The data of an event; that of the last answer of a state's branches is the list of all."""
    data, branches = event_data(event), plan.branches
    if branches is None or branches.is_joined(data):
        return data
    request = plan.requests.get(answered_request(event) or "")
    if request is None or request.branch is None or event_type_of(event) != request.response_event:
        return data
    return branches.joined(request.branch, data)


def answers_branch(plan: PlanRecord, event: Any) -> bool:
    """True if an event is the answer of a branch, and those of others are missing."""
    if plan.branches is None or plan.branches.awaits_one:
        return False
    request = plan.requests.get(answered_request(event) or "")
    return request is not None and request.branch is not None and event_type_of(event) == request.response_event


def is_delayed(plan: PlanRecord) -> bool:
    """True if the delay of the current state is not over."""
    state = plan.state_machine.get(plan.current_state)
    delay = state.delay_seconds if state is not None else None
    return bool(delay) and any(request.event_type == DELAY for request in plan.requests.values())


def _may_leave(plan: PlanRecord, state: str, event: Any) -> bool:
    """True if a state's transitions see an event: there is no delay, and if it is about a branch, it ends them all."""
    if is_delayed(plan):
        return False
    branches = plan.branches
    if branches is None or branches.state != state or branches.is_joined(event_data(event)):
        return True
    if plan.requests.get(answered_request(event) or "") is not None:
        return not answers_branch(plan, event)
    action = plan.state_machine[state].action
    assert action is not None
    answer, event_type = action.response_event, event_type_of(event)
    return event_type not in (answer, failed_event(answer), timeout_event(answer), unknown_event(answer))


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
    if begins and (state.action or state.transitions or state.is_terminal or state.delay_seconds):
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
