"""What follows from how a turn has left its plan: timers for requests that wait, an end to those that no longer do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from plancast.plan.context import PlanContext
from plancast.plan.control_events import CANCEL
from plancast.plan.event_fields import answered_request
from plancast.plan.requests import Request
from plancast.plan.status import RUNNING
from plancast.state_machine.machine import timeout_event
from plancast.turn.outbox import Outbox
from plancast.turn.retries import ends_request, explain
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import CancelTimer, DropAlias, SetTimer, Withdraw

if TYPE_CHECKING:
    from plancast.turn.turn import Turn

MAX_ALIASES = 64
"""Further correlation ids of a plan that are kept although no open request was sent under them, the newest ones."""


async def settle_kept(plan: PlanContext) -> None:
    """After a pause: kept answers that no transition takes count as they would have when they came."""
    for fields in list(plan.kept):
        request_id = answered_request(fields)
        request = plan.requests.get(request_id) if request_id else None
        if plan.status is not RUNNING or request is None or fields not in plan.kept:
            continue
        event = EventEnvelope.model_validate(fields)
        if ends_request(plan, request, event):
            await plan.fail(explain(request, event, plan.current_state))


def settle_requests(turn: Turn, plan: PlanContext) -> None:
    """Timers for the requests that wait, and an end to those that no longer do."""
    if plan.status.finished:
        plan.requests.clear()
    resumed = turn.was_paused and plan.status is RUNNING
    for request_id, request in plan.requests.items():
        if request.due is None and request.timeout is not None:
            request.due = turn.now + request.timeout
        if request.due is None and request.state is not None:
            action = plan.state_machine[request.state].action
            if action is not None and action.timeout_seconds is not None:
                request.due = turn.now + action.timeout_seconds
        if request.due is None:
            continue
        due_before = turn.asked_before.get(request_id, (None,))[0]
        missed = resumed and request.due <= turn.now
        if request.due != due_before or missed:
            _set_timer(turn, plan, request_id, request)
    for request_id, (due, child, sequence) in turn.asked_before.items():
        if request_id in plan.requests:
            continue
        if due is not None and not (turn.is_timer and turn.event.parent_event_id == request_id):
            turn.effects.append(CancelTimer(plan.correlation_id, _timer_name(request_id)))
        if request_id != turn.event.parent_event_id or turn.is_timer:
            _take_back(turn.outbox, plan, request_id, child, sequence)
    _drop_aliases(turn, plan)


def _drop_aliases(turn: Turn, plan: PlanContext) -> None:
    """Let go of correlation ids that no request needs; what still comes under them is of no plan."""
    if len(plan.aliases) <= MAX_ALIASES:
        return
    needed = {plan.plan_id} | {request.alias for request in plan.requests.values()}
    unneeded = [alias for alias in plan.aliases if alias not in needed]
    dropped = dict.fromkeys(unneeded[:-MAX_ALIASES])
    plan.aliases = [alias for alias in plan.aliases if alias not in dropped]
    turn.effects.extend(DropAlias(alias, plan.correlation_id, turn.now) for alias in dropped)


def _take_back(outbox: Outbox, plan: PlanContext, request_id: str, child: bool, sequence: int) -> None:
    if child:
        outbox.send(
            {
                "type": CANCEL,
                "topic": EventTopic.PLAN_EVENTS,
                "correlation_id": request_id,
                "data": {"reason": f"plan {plan.plan_id} no longer waits for it"},
            }
        )
    elif sequence:
        outbox.effects.append(Withdraw(sequence))


def _set_timer(turn: Turn, plan: PlanContext, request_id: str, request: Request) -> None:
    assert request.due is not None
    name = _timer_name(request_id)
    event = EventEnvelope(
        id=f"{request_id}:{due_name(request)}",
        source="plancast",
        type=timeout_event(request.response_event),
        topic=EventTopic.PLAN_EVENTS,
        time=datetime.fromtimestamp(request.due, UTC),
        data={"error": f"{request.event_type} was not answered in time", "request": request.event_type},
        correlation_id=plan.correlation_id,
        parent_event_id=request_id,
        plan_id=plan.plan_id,
        tenant_id=plan.tenant_id or None,
    )
    payload, content_type = turn.environment.encode(event)
    turn.effects.append(SetTimer(plan.correlation_id, name, request.due, payload, content_type, turn.outbox.trace))


def due_name(request: Request) -> str:
    """How the id of the event ends that comes when a request is due: to be asked again, or given up, this time."""
    return f"due:{request.attempt}:{'again' if request.asking_again else 'timeout'}"


def _timer_name(request_id: str) -> str:
    return request_id.rpartition(":")[2]
