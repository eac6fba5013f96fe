"""Rollback of a plan: undoes what its tasks have done, and has its child plans undo what theirs have.

A plan that is rolled back calls no code of the app. Each of its turns takes one event, and sends all undos that are
ready (:mod:`plancast.plan.effects.undo_order`). Requests that are open when it begins are awaited: what they have done
is undone too. A child plan is undone by itself, and reports. The plan waits for a person where an undo has failed.
"""

from __future__ import annotations

from typing import Any, Final

from plancast.effects.wire import UNDO
from plancast.plan.context import PlanContext
from plancast.plan.control_events import (
    FOLLOW,
    PAUSE,
    RESOLVE_EFFECT,
    RESUME,
    ROLLBACK,
    ROLLED_BACK,
    WAKE,
    given_reason,
)
from plancast.plan.effects.entries import DONE, UNDONE, UNKNOWN, is_outdated
from plancast.plan.effects.undo_list import (
    ASKED,
    BLOCKED,
    ENDED,
    GIVEN_UP,
    LEFT,
    REASON,
    REPORTS,
    UNANSWERED,
    UNDOS,
    UNLISTED,
    amend_child_report,
    begin_rollback,
    blocked_steps,
    is_left_done,
    is_rolling_back,
    leave,
    leave_entries,
    left_of,
    name_without_undo,
    read_left,
    rollback_error,
    take_child_report,
    undone_of,
    unsettled_steps,
    wait_reason,
)
from plancast.plan.effects.undo_order import ready_steps, sent_revision
from plancast.plan.event_fields import answered_request, error_text, event_data
from plancast.plan.record import HOLD
from plancast.plan.status import PAUSED, RUNNING
from plancast.turn.dependencies import add_follower
from plancast.turn.effects import resolve_effect
from plancast.turn.stall import find_stall, wake
from plancast.turn.timers import timer_name
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.subjects import encode_token, undo_type

MAX_ASKERS: Final = 100
"""Plans that one rollback reports to; a parent asks again when a child has left something."""
_UNKNOWN: Final = "unknown"
"""Key of a report: the plan is not there."""
_HOLDS: Final = "the plan is being rolled back, which only a pause holds up"


def is_rollback(event: EventEnvelope) -> bool:
    """True if the event asks for the rollback of its plan."""
    return event.type == ROLLBACK and event.topic == EventTopic.PLAN_EVENTS


async def start_rollback(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    """Take the event that asks for a rollback, for a plan in any status."""
    asker = _asker_of(turn.event)
    if is_rolling_back(plan):
        if asker is None or asker in plan.rollback[ASKED]:
            return turn.ignored("the plan is being rolled back already")
        if len(plan.rollback[ASKED]) >= MAX_ASKERS:
            return turn.refused(f"{MAX_ASKERS} plans have asked for the rollback already")
        plan.rollback[ASKED].append(asker)
        return TurnOutcome.COMMIT
    if ENDED in plan.rollback and not plan.rollback.get(LEFT):
        if asker is None:
            return turn.ignored("the plan was rolled back, and nothing is left")
        _report(turn, asker, {"plan": plan.correlation_id, LEFT: []})
    else:
        begin_rollback(plan, given_reason(turn.event, "rolled back"))
    if asker is not None:  # it is told of what becomes known later, too
        others = [each for each in plan.rollback.get(ASKED, ()) if each[0] != asker[0]]
        plan.rollback[ASKED] = [*others[1 - MAX_ASKERS :], asker]
    return TurnOutcome.COMMIT


def answer_unknown(turn: TurnRecord) -> TurnOutcome:
    """Answer the parent that asks for the rollback of a plan that is not there."""
    asker = _asker_of(turn.event)
    if asker is None:
        return turn.refused("no plan has this id")
    turn.outbox.leave()
    _report(turn, asker, {"plan": turn.correlation_id, _UNKNOWN: True})
    return TurnOutcome.EMIT


def undo_late(turn: TurnRecord, plan: PlanContext) -> bool:
    """Go on with a rollback that has ended, if a late answer has told the plan of more to undo."""
    said: dict[str, Any] = {name: plan.rollback[name] for name in (LEFT, REPORTS) if name in plan.rollback}
    is_less = _take_late(turn, plan)
    if not is_left_done(plan):
        if is_less:
            _amend(turn, plan)
        return False
    begin_rollback(plan, plan.rollback[REASON])
    plan.rollback |= said
    return True


def take_report(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    """Take the report of a child plan that was asked to roll back; a later one amends what it has left."""
    data = turn.event.data if isinstance(turn.event.data, dict) else {}
    child, asked = (each if isinstance(each, str) else "" for each in (data.get("plan"), data.get("request")))
    number = given if type(given := data.get("revision")) is int else 0
    undos, report = plan.rollback.get(UNDOS, {}), plan.rollback.get(REPORTS, {}).get(child, ("", 0))
    if child in plan.children and undos.get(asked) == child:
        del undos[asked]
        plan.rollback.setdefault(REPORTS, {})[child] = [asked, number]
        if data.get(_UNKNOWN):
            values = {"plan": child, "task": "", "event_type": "", "key": ""}
            why = "its plan is unknown, or was forgotten after its retention"
            leave_entries(plan, child, [values | {"reason": why}])
        else:
            take_child_report(plan, child, read_left(data.get("left")))
        return TurnOutcome.COMMIT
    is_later = report[0] == asked and number > report[1] and child in plan.children and child not in undos.values()
    if not is_later or data.get(_UNKNOWN) or not amend_child_report(plan, child, read_left(data.get("left"))):
        return turn.ignored(f"the plan does not wait for the rollback of {child!r:.80}")
    report[1] = number
    if ENDED in plan.rollback:
        _amend(turn, plan)
    return TurnOutcome.COMMIT


async def take_in_rollback(turn: TurnRecord, plan: PlanContext) -> TurnOutcome | None:
    """Take an event of a plan that is rolled back; None for one that concerns the plan no more than a finished one."""
    event = turn.event
    if turn.is_timer:
        return _take_timer(turn, plan)
    if event.topic == EventTopic.PLAN_EVENTS and (outcome := await _take_control(turn, plan)) is not None:
        return outcome
    if turn.is_goal and event.id in plan.requests:
        del plan.requests[event.id]  # a planner has taken the place of its worker: it has not begun
        _forget_request(turn, event.id)
        return TurnOutcome.COMMIT
    if event.topic == EventTopic.ACTION_REQUESTS:
        return None  # it answers nothing, whatever it names as its parent
    request_id = answered_request(event)
    if request_id is not None and request_id in plan.requests:
        if request_id in plan.rollback.get(UNDOS, {}) and event.topic != EventTopic.ACTION_RESULTS:
            return turn.ignored("only its worker answers an undo")
        _take_answer(turn, plan, request_id, event)
        return TurnOutcome.COMMIT
    return TurnOutcome.COMMIT if _take_late(turn, plan) else None


def fail_in_rollback(turn: TurnRecord, plan: PlanContext, error: str) -> None:
    """Leave it to a person if the turn on the answer to an undo has failed."""
    request_id = None if turn.is_timer else answered_request(turn.event)
    step = plan.rollback.get(UNDOS, {}).pop(request_id, None)
    plan.requests.pop(request_id or "", None)
    if step is not None:
        plan.rollback.setdefault(BLOCKED, {})[step] = error_text(error)


async def go_on(turn: TurnRecord, plan: PlanContext) -> None:
    """At the end of each turn of a plan that is rolled back: send the undos that are ready, or end."""
    _drop_requests(turn, plan)
    if HOLD in plan.control:
        plan.status, plan.pause_reason = PAUSED, plan.control[HOLD]
        return
    _name_what_stays(turn, plan)
    steps = list(unsettled_steps(plan))
    if not steps:
        await _end(turn, plan)
        return
    undos: dict[str, str] = plan.rollback.setdefault(UNDOS, {})
    under_way, blocked = set(undos.values()), blocked_steps(plan)
    for step in ready_steps(steps):
        if step.id in under_way or step.id in blocked or step.id in plan.requests:
            continue
        undos[_send_undo(turn, plan, step.id)] = step.id
    plan.status, plan.pause_reason = RUNNING, None
    if blocked:
        plan.status, plan.pause_reason = PAUSED, wait_reason(plan, blocked)


# Events.


async def _take_control(turn: TurnRecord, plan: PlanContext) -> TurnOutcome | None:
    event_type = turn.event.type
    if event_type == ROLLBACK:
        return await start_rollback(turn, plan)
    if event_type == ROLLED_BACK:
        return take_report(turn, plan)
    if event_type == RESOLVE_EFFECT:
        return _take_decision(turn, plan)
    if event_type == FOLLOW:
        return await add_follower(turn, plan)
    if event_type == PAUSE:
        if HOLD in plan.control:
            return turn.ignored("the plan is paused already")
        plan.control[HOLD] = given_reason(turn.event, "paused")
        return TurnOutcome.COMMIT
    if event_type == RESUME and plan.control.pop(HOLD, None) is not None:
        return TurnOutcome.COMMIT
    if event_type == WAKE and find_stall(plan, turn.now, 0.0) is not None and await wake(turn, plan):
        return TurnOutcome.COMMIT
    return turn.ignored(_HOLDS) if answered_request(turn.event) not in plan.requests else None


def _take_decision(turn: TurnRecord, plan: PlanContext) -> TurnOutcome | None:
    """Take a person's decision about a failed undo, or about a request that is not answered."""
    data = turn.event.data if isinstance(turn.event.data, dict) else {}
    task, outcome = data.get("task"), data.get("outcome")
    blocked: dict[str, str] = plan.rollback.get(BLOCKED, {})
    task = task if isinstance(task, str) else ""
    is_open = task in plan.requests and task not in plan.rollback.get(UNDOS, {})
    if task not in blocked and not is_open:
        entry = plan.effects.get(task)
        is_undecided = entry is not None and entry.outcome == UNKNOWN and not entry.decision
        decided = resolve_effect(turn, plan)
        if decided is TurnOutcome.COMMIT and outcome == "give_up" and is_undecided:
            leave(plan, task, GIVEN_UP)
        return decided
    if task in blocked and is_outdated(data, None):
        return turn.unwanted(plan, f"the decision about {task} is outdated: its outcome is known, its undo has failed")
    if outcome == "give_up":
        given_up = plan.requests.pop(task, None)
        leave(plan, task, blocked.get(task, "given up"), given_up.event_type if given_up is not None else "")
    elif is_open or outcome not in ("done", "not_done"):
        return turn.ignored(f"{task} has no answer: only 'give_up' settles it, got {outcome!r:.40}")
    else:
        del blocked[task]
        if outcome == "done":
            plan.effects[task].outcome = UNDONE
    return TurnOutcome.COMMIT


def _take_timer(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    event = turn.event
    request = plan.requests.get(event.parent_event_id)
    if request is None or request.due is None or not event.id.endswith(f":{timer_name(request)}"):
        return turn.ignored("the plan is being rolled back, which no deadline ends")
    del plan.requests[event.parent_event_id]
    leave(plan, event.parent_event_id, UNANSWERED, request.event_type)
    return TurnOutcome.COMMIT


def _take_answer(turn: TurnRecord, plan: PlanContext, request_id: str, event: Any) -> None:
    """Take the answer to an undo, or to a request that was open: the effect that it names is recorded already."""
    request = plan.requests.pop(request_id)
    _forget_request(turn, request_id)
    step = plan.rollback.get(UNDOS, {}).pop(request_id, None)
    entry = plan.effects.get(step) if step is not None else None
    if step is None or entry is None or entry.outcome == UNDONE:  # old ones that are settled are forgotten
        return
    if event.type == request.response_event:
        entry.outcome = UNDONE
        return
    data = event_data(event)
    error = (data.get("error") or data.get("reason")) if isinstance(data, dict) else None
    plan.rollback.setdefault(BLOCKED, {})[step] = error_text(f"its undo failed: {error or event.type}")


def _take_late(turn: TurnRecord, plan: PlanContext) -> bool:
    """Name a request as left no more that was answered after all; what was given up stays, unless it is done."""
    request_id, left = answered_request(turn.event), plan.rollback.get(LEFT, {})
    if request_id is None or request_id not in left or request_id in plan.children:
        return False  # a child plan that is rolled back answers its goal again; only its report says what is left
    plan.unanswered.pop(request_id, None)
    entry = plan.effects.get(request_id)
    if entry is not None and entry.outcome != DONE and left[request_id][0]["key"]:
        return False
    del left[request_id]
    return True


# What is sent.


def _forget_request(turn: TurnRecord, request_id: str) -> None:
    """Let the timer of a request end, without withdrawing the request or cancelling its plan."""
    if request_id in turn.requests_before:
        due, _, _, task = turn.requests_before[request_id]
        turn.requests_before[request_id] = (due, False, 0, task)


def _drop_requests(turn: TurnRecord, plan: PlanContext) -> None:
    """Drop the requests that a rollback does not wait for: answered early or known, of people, and of children."""
    undos = plan.rollback.get(UNDOS, {})
    answered = {answered_request(each) for each in plan.kept}
    plan.kept.clear()
    plan.branches = None  # those that were not sent are not sent any more
    for key, request in list(plan.requests.items()):
        if key in undos:
            continue
        settled = request.asking_again or key in answered or key in plan.effects
        if request.child:
            plan.children.setdefault(key, 0)
            _forget_request(turn, key)  # it is rolled back instead of cancelled
        elif request.is_sent and not (settled or request.response_event in turn.environment.expected):
            continue
        del plan.requests[key]


def _name_what_stays(turn: TurnRecord, plan: PlanContext) -> None:
    """Name as left what cannot be undone: effects without an undo, and requests that were not answered.

    People have no effects to undo, nor has a task of the app that declares none.
    """
    name_without_undo(plan)
    unnamed = plan.unanswered.keys() - plan.effects.keys() - plan.rollback.get(LEFT, {}).keys()
    tasks = turn.environment.app.tasks if unnamed or plan.unlisted else {}
    for key in sorted(unnamed, key=lambda key: (sent_revision(key), key)):
        event_type, response_event = plan.unanswered[key]
        known = tasks.get(event_type)
        if response_event not in turn.environment.expected and (known is None or known[1].effect is not None):
            leave(plan, key, UNANSWERED, event_type)
    for event_type, number in plan.unlisted.items():
        known = tasks.get(event_type)
        if known is None or known[1].effect is not None:
            values = {"plan": plan.plan_id, "task": "", "event_type": event_type, "key": f"{number} earlier ones"}
            leave_entries(plan, f"earlier {event_type}", [values | {"reason": UNLISTED}])


def _send_undo(turn: TurnRecord, plan: PlanContext, step: str) -> str:
    """Send the undo of an effect, or the event that rolls a child plan back; returns its id."""
    if step in plan.children:
        data = {REASON: plan.rollback[REASON], "plan": plan.correlation_id}
        return turn.outbox.send(_control(ROLLBACK, step, data))
    entry = plan.effects[step]
    assert entry.outcome == DONE, "an effect that is not known to be done is not undone"
    undo = undo_type(entry.event_type)
    return turn.outbox.request(
        {
            "type": undo,
            "topic": EventTopic.ACTION_REQUESTS,
            "correlation_id": plan.correlation_id,
            "data": {},
            "response_event": f"{undo}.completed",
            "metadata": {UNDO: {"address": entry.address}},
        }
    )


async def _end(turn: TurnRecord, plan: PlanContext) -> None:
    """End a rollback: the plan has failed, and says what is left."""
    left = left_of(plan)
    plan.result = {"undone": undone_of(plan), LEFT: left}
    state, askers = plan.rollback, plan.rollback[ASKED]
    plan.rollback = {name: state[name] for name in (REASON, LEFT, ASKED, REPORTS) if state.get(name)} | {ENDED: True}
    await plan.fail(rollback_error(plan))
    for asker in askers:
        _report(turn, asker, {"plan": plan.correlation_id, LEFT: left})


def _amend(turn: TurnRecord, plan: PlanContext) -> None:
    """Say what a rollback that has ended has left by now, also to the plans that have asked for it."""
    plan.result = {"undone": undone_of(plan), LEFT: left_of(plan)}
    plan.error = rollback_error(plan)
    for asker in plan.rollback.get(ASKED, ()):
        _report(turn, asker, {"plan": plan.correlation_id, LEFT: left_of(plan)})


def _report(turn: TurnRecord, asker: list[str], data: dict[str, Any]) -> None:
    plan, request = asker
    turn.outbox.send(_control(ROLLED_BACK, plan, data | {"request": request, "revision": turn.revision}))


def _control(event_type: str, plan: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": event_type, "topic": EventTopic.PLAN_EVENTS, "correlation_id": plan, "data": data}


def _asker_of(event: EventEnvelope) -> list[str] | None:
    """The plan that asks for a rollback, and the id of its event; None for a person."""
    plan = event.data.get("plan") if isinstance(event.data, dict) else None
    try:
        return [plan, event.id] if isinstance(plan, str) and encode_token(plan) else None
    except ValueError:
        return None
