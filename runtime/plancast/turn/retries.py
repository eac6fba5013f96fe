"""Failed requests: which answers are failures, when a retry is scheduled, and the error of the plan."""

from __future__ import annotations

from typing import Any

from plancast.effects.wire import read_note
from plancast.plan.effects.entries import is_unknown
from plancast.plan.event_fields import answered_request
from plancast.plan.record import PlanRecord
from plancast.plan.requests import Request
from plancast.state_machine.machine import base_of, failed_event, timeout_event, unknown_event
from plancast.state_machine.states import RetryPolicy


def is_failure(request: Request, event: Any) -> bool:
    """True if an answer is the failure or the timeout of its request."""
    expected = request.response_event
    return event.type != expected and event.type in (failed_event(expected), timeout_event(expected))


def says_unknown(plan: PlanRecord, request: Request | None, event: Any) -> bool:
    """True if an answer says that the outcome of its request's effect is not known, and it is not known since."""
    if request is None or not plan.effects or event.type != unknown_event(request.response_event):
        return False
    return is_unknown(plan, answered_request(event))


def waits_for_other(event: Any) -> bool:
    """True if an answer is none yet: its task waits for another one, whose outcome is not known."""
    note = read_note(event.metadata) if event.metadata else None
    return note is not None and bool(note.waits_for)


def as_failure_of_child(plan: PlanRecord, request: Request | None, event: Any) -> Any:
    """The answer of a child plan that did not complete, retyped as a failure; any other event as it is.

    A child always answers on its response event. Transitions with a condition read the child's status themselves, so
    that the event is left as it is for them.
    """
    if request is None or not request.child or not isinstance(event.data, dict):
        return event
    if event.type != request.response_event or event.data.get("status") in (None, "completed"):
        return event
    waiting = plan.machine.transition(plan.current_state, event.type)
    if any(transition.condition is not None for transition in waiting):
        return event
    return event.model_copy(update={"type": failed_event(request.response_event)})


def can_retry(plan: PlanRecord, request: Request) -> bool:
    """True if the action of a failed request allows another attempt."""
    retry = _policy(plan, request) if request.is_sent else None
    return retry is not None and request.attempt < retry.attempts


def schedule_retry(plan: PlanRecord, request: Request, event: Any, now: float, notes: list[str]) -> None:
    """Schedule a failed request's next attempt after its backoff, unless it is scheduled already."""
    retry = _policy(plan, request)
    if retry is None or request.asking_again:
        return
    delay = retry.delay(request.attempt)
    request.asking_again, request.due = True, now + delay
    notes.append(
        f"{event.type}: {request.event_type} is asked again in {delay:g} s "
        f"(attempt {request.attempt + 1} of {retry.attempts})"
    )


def _policy(plan: PlanRecord, request: Request) -> RetryPolicy | None:
    state = plan.state_machine.get(request.state) if request.state is not None else None
    return state.action.retry if state is not None and state.action is not None else None


def ends_request(plan: PlanRecord, request: Request, event: Any) -> bool:
    """True if an answer that no transition takes is the final one to its request."""
    if is_failure(request, event) or plan.machine.transition(plan.current_state, event.type):
        return True
    return request.state == plan.current_state and base_of(event.type) == base_of(request.response_event)


def explain(request: Request, event: Any, state: str) -> str:
    """The error of a plan that fails because no transition of its state takes an answer."""
    error = event.data.get("error") if isinstance(event.data, dict) else None
    if event.type not in (failed_event(request.response_event), timeout_event(request.response_event)):
        return f"{event.type} came, but no transition of state {state!r} takes it"
    return f"{event.type}: {error}" if error else f"{event.type} (asked with {request.event_type} in state {state!r})"
