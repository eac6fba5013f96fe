"""When a request has failed: by which answers, whether it is asked again, and how its plan explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plancast.plan.context import PlanContext
from plancast.plan.requests import Request
from plancast.state_machine.machine import base_of, failed_event, timeout_event

if TYPE_CHECKING:
    from plancast.turn.turn import Turn


def is_failure(request: Request, event: Any) -> bool:
    """Whether an event tells that a request has failed or was not answered in time."""
    expected = request.response_event
    return event.type != expected and event.type in (failed_event(expected), timeout_event(expected))


def as_failure_of_child(plan: PlanContext, request: Request | None, event: Any) -> Any:
    """The event, as a failure when it is the answer of a child plan that did not complete.

    Such a child answers on the same event type; a machine that tells by a condition is left to it.
    """
    if request is None or not request.child or not isinstance(event.data, dict):
        return event
    if event.type != request.response_event or event.data.get("status") in (None, "completed"):
        return event
    waiting = plan.machine.transition(plan.current_state, event.type)
    if any(transition.condition is not None for transition in waiting):
        return event
    return event.model_copy(update={"type": failed_event(request.response_event)})


def ask_later(turn: Turn, plan: PlanContext, request: Request, event: Any) -> bool:
    """Have a failed request asked again after its backoff, if its action allows one more attempt."""
    state = plan.state_machine.get(request.state) if request.state is not None else None
    retry = state.action.retry if state is not None and state.action is not None else None
    if retry is None or request.attempt >= retry.attempts:
        return False
    if request.asking_again:
        return True
    delay = retry.delay(request.attempt)
    request.asking_again, request.due = True, turn.now + delay
    turn.notes.append(
        f"{event.type}: {request.event_type} is asked again in {delay:g} s "
        f"(attempt {request.attempt + 1} of {retry.attempts})"
    )
    return True


def ends_request(plan: PlanContext, request: Request, event: Any) -> bool:
    """Whether an answer that no transition takes is the last that will be heard of its request."""
    if is_failure(request, event) or plan.machine.transition(plan.current_state, event.type):
        return True
    return request.state == plan.current_state and base_of(event.type) == base_of(request.response_event)


def explain(request: Request, event: Any, state: str) -> str:
    """Why a plan fails for an answer that no transition of its state takes."""
    error = event.data.get("error") if isinstance(event.data, dict) else None
    if event.type not in (failed_event(request.response_event), timeout_event(request.response_event)):
        return f"{event.type} came, but no transition of state {state!r} takes it"
    return f"{event.type}: {error}" if error else f"{event.type} (asked with {request.event_type} in state {state!r})"
