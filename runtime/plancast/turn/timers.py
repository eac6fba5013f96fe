"""After a turn: sets timers for open requests, cancels timers and withdraws requests that are no longer open."""

from __future__ import annotations

from datetime import UTC, datetime

from plancast.json_values.limits import MAX_SECONDS
from plancast.plan.context import PlanContext
from plancast.plan.control_events import CANCEL, DEADLINE
from plancast.plan.effects.entries import hold
from plancast.plan.event_fields import answered_request
from plancast.plan.record import is_held
from plancast.plan.requests import DELAY, TIME_REACHED, Request
from plancast.plan.status import RUNNING
from plancast.state_machine.machine import timeout_event
from plancast.turn.dependencies import tell_followers
from plancast.turn.retries import ends_request, explain, says_unknown
from plancast.turn_record.account import carry, settle
from plancast.turn_record.outbox import Outbox
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.envelope import EventEnvelope, EventTopic, utc_text
from plancast_bus.ports.effects import CancelTimer, DropAlias, SetTimer, Withdraw

_DEADLINE_TIMER = "deadline"
MAX_UNANSWERED = 1_000
"""Newest requests without an answer that a plan remembers."""
MAX_ALIASES = 64
"""Newest correlation ids that a plan keeps although no open request was sent under them."""


async def fail_on_early_answers(plan: PlanContext) -> None:
    """After a pause: fail or hold the plan if an early answer would have done so when it arrived."""
    for fields in list(plan.kept):
        request_id = answered_request(fields)
        request = plan.requests.get(request_id) if request_id else None
        if plan.status is not RUNNING or request is None or fields not in plan.kept:
            continue
        event = EventEnvelope.model_validate(fields)
        if says_unknown(plan, request, event):
            plan.kept.remove(fields)
            hold(plan, str(request_id), request)
        elif ends_request(plan, request, event):
            await plan.fail(explain(request, event, plan.current_state))


def reconcile_requests(turn: TurnRecord, plan: PlanContext) -> None:
    """Stage the timers and withdrawals that follow from the requests before and after the turn, and lend shares."""
    note_requests(turn, plan, ended=plan.status.finished)
    if plan.status.finished:
        plan.requests.clear()
        plan.branches = None
        if plan.dependencies:
            tell_followers(turn, plan)
    resumed = turn.was_paused and (plan.status is RUNNING or (turn.was_held and not is_held(plan)))
    for request_id, request in plan.requests.items():
        if request.due is None and request.timeout is not None:
            request.due = turn.now + min(request.timeout, MAX_SECONDS)
        if request.due is None and request.state is not None:
            action = plan.state_machine[request.state].action
            if action is not None and action.timeout_seconds is not None:
                request.due = turn.now + min(action.timeout_seconds, MAX_SECONDS)
        if request.due is None:
            continue
        due_before = turn.requests_before.get(request_id, (None,))[0]
        missed = resumed and request.due <= turn.now
        if request.due != due_before or missed:
            _set_timer(turn, plan, request_id, request)
    for request_id, (due, child, sequence, task) in turn.requests_before.items():
        if request_id in plan.requests:
            continue
        if due is not None and not (turn.is_timer and turn.event.parent_event_id == request_id):
            turn.effects.append(CancelTimer(plan.correlation_id, _timer_of(request_id)))
        if request_id != turn.event.parent_event_id or turn.is_timer:
            _withdraw(
                turn.outbox, plan, request_id, child, Withdraw(sequence, task, settles=_may_be_recorded(turn, task))
            )
    if turn.unsettled:
        turn.carried = carry(plan, turn.unsettled, turn.used or ())
    if turn.outbox.goals or plan.allowance:
        settle(turn.environment, turn.outbox, plan, turn.planner)
    if plan.deadline is not None:
        _reconcile_deadline(turn, plan)
    _drop_aliases(turn, plan)


def note_requests(turn: TurnRecord, plan: PlanContext, *, ended: bool = False) -> None:
    """Remember what a rollback has to know: child plans, and requests that were closed without an answer.

    Args:
        turn: The turn.
        plan: The plan after it.
        ended: All requests that are open are closed, since the plan has ended.
    """
    for request_id, request in plan.requests.items():
        if request.child and request_id not in plan.children:
            plan.children[request_id] = 0
    closed = turn.open_before | plan.requests if ended else turn.open_before
    for request_id, request in closed.items():
        if request_id in plan.requests and not ended:
            continue
        if request.child:
            plan.children[request_id] = plan.children.get(request_id) or turn.revision
        elif request.is_sent and not _is_answered(turn, plan, request_id, request):
            plan.unanswered[request_id] = [request.event_type, request.response_event]
            while len(plan.unanswered) > MAX_UNANSWERED:
                event_type, response_event = plan.unanswered.pop(next(iter(plan.unanswered)))
                if response_event not in turn.environment.expected:
                    plan.unlisted[event_type] = plan.unlisted.get(event_type, 0) + 1


def _is_answered(turn: TurnRecord, plan: PlanContext, request_id: str, request: Request) -> bool:
    """True if a closed request was answered, or was replaced by another attempt at it."""
    event = turn.event
    if request_id in (event.id, None if turn.is_timer else event.parent_event_id):
        return True
    if request_id in plan.effects or request_id in turn.answered_before:
        return True
    attempt, first = request.attempt + 1, request.first or request_id
    return request.state is not None and any(
        each.first == first and each.attempt == attempt for each in plan.requests.values()
    )


def deadline_error(deadline: float) -> str:
    """The error of a plan that has reached its deadline."""
    return f"deadline_exceeded: the plan had not ended by {utc_text(deadline)}, its deadline"


def _reconcile_deadline(turn: TurnRecord, plan: PlanContext) -> None:
    """Set the timer of a new or changed deadline; cancel it when the plan ends before."""
    assert plan.deadline is not None
    if plan.status.finished:
        if turn.deadline_before is not None and not (turn.is_timer and turn.event.type == DEADLINE):
            turn.effects.append(CancelTimer(plan.correlation_id, _DEADLINE_TIMER))
    elif turn.deadline_before != plan.deadline:
        event = EventEnvelope(
            id=f"{turn.next_id()}:deadline",
            source="plancast",
            type=DEADLINE,
            topic=EventTopic.PLAN_EVENTS,
            time=datetime.fromtimestamp(plan.deadline, UTC),
            correlation_id=plan.correlation_id,
            plan_id=plan.plan_id,
            tenant_id=plan.tenant_id or None,
        )
        payload, content_type = turn.environment.encode(event)
        timer = SetTimer(plan.correlation_id, _DEADLINE_TIMER, plan.deadline, payload, content_type, turn.outbox.trace)
        turn.effects.append(timer)


def _drop_aliases(turn: TurnRecord, plan: PlanContext) -> None:
    """Drop old correlation ids that no open request needs; later events under them belong to no plan."""
    if len(plan.aliases) <= MAX_ALIASES:
        return
    needed = {plan.plan_id} | {request.alias for request in plan.requests.values()}
    unneeded = [alias for alias in plan.aliases if alias not in needed]
    dropped = dict.fromkeys(unneeded[:-MAX_ALIASES])
    plan.aliases = [alias for alias in plan.aliases if alias not in dropped]
    turn.effects.extend(DropAlias(alias, plan.correlation_id, turn.now) for alias in dropped)


def _withdraw(outbox: Outbox, plan: PlanContext, request_id: str, child: bool, withdrawal: Withdraw) -> None:
    if child:
        outbox.send(
            {
                "type": CANCEL,
                "topic": EventTopic.PLAN_EVENTS,
                "correlation_id": request_id,
                "data": {"reason": f"plan {plan.plan_id} no longer waits for it"},
            }
        )
    elif withdrawal.sequence:
        outbox.effects.append(withdrawal)


def _may_be_recorded(turn: TurnRecord, task: str) -> bool:
    """True if the ledger may have a record of a task of this type: also if its worker is of another app."""
    known = turn.environment.app.tasks.get(task)
    return known is None or known[1].is_recorded


def _set_timer(turn: TurnRecord, plan: PlanContext, request_id: str, request: Request) -> None:
    assert request.due is not None
    name, said = _timer_of(request_id), {"error": f"{request.event_type} was not answered in time"}
    timed_out = request.event_type != DELAY and request.response_event != TIME_REACHED
    event = EventEnvelope(
        id=f"{request_id}:{timer_name(request)}",
        source="plancast",
        type=timeout_event(request.response_event) if timed_out else request.response_event,
        topic=EventTopic.PLAN_EVENTS,
        time=datetime.fromtimestamp(request.due, UTC),
        data=(said if timed_out else {}) | {"request": request.event_type},
        correlation_id=plan.correlation_id,
        parent_event_id=request_id,
        plan_id=plan.plan_id,
        tenant_id=plan.tenant_id or None,
    )
    payload, content_type = turn.environment.encode(event)
    turn.effects.append(SetTimer(plan.correlation_id, name, request.due, payload, content_type, turn.outbox.trace))


def timer_name(request: Request) -> str:
    """Suffix of the timer event's id: the attempt, and whether it is due for a retry or for its timeout."""
    return f"due:{request.attempt}:{'again' if request.asking_again else 'timeout'}"


def _timer_of(request_id: str) -> str:
    return request_id.rpartition(":")[2]
