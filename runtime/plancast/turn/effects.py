"""Effects in a turn: records the outcomes that answers name, and sends what people decide about unknown ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.effects.wire import RESOLUTION, EffectNote, read_note
from plancast.plan.context import PlanContext
from plancast.plan.effects.entries import (
    DECISIONS,
    DONE,
    EFFECT_UNKNOWN,
    FAILED,
    GIVE_UP,
    HELD,
    OUTCOMES,
    UNDONE,
    UNKNOWN,
    WITHDRAWN,
    EffectEntry,
    effect_now,
    is_outdated,
    is_unknown,
)
from plancast.plan.effects.undo_list import LEFT
from plancast.plan.event_fields import answered_request, error_text
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import is_request_of
from plancast.plan.status import PAUSED
from plancast.planner_turn.trajectory import add_event
from plancast.state_machine.machine import base_of
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventTopic

RESULTS = EventTopic.ACTION_RESULTS
MAX_SETTLED: Final = 256
"""Newest effects of a plan that are listed although nothing is left to tell of them or to undo."""
UNDO: Final = ".undo"
"""End of the types of tasks that undo the effects of others."""


def record_effect(turn: TurnRecord, plan: PlanContext) -> bool:
    """Record the outcome that the event of a turn names; False when it names none, or nothing new.

    The answer of an earlier attempt is readdressed to the request that is open for the same effect.
    """
    event = turn.event
    note, request_id = read_note(event.metadata), answered_request(event)
    if request_id is None or event.topic != RESULTS or turn.is_timer or turn.foreign(event):
        return False
    request = plan.requests.get(request_id)
    if request is None and not is_request_of(plan.plan_id, request_id):
        return False
    if note is not None and note.outcome == WITHDRAWN:
        return _close_unanswered(plan, request_id)
    if note is None or note.outcome not in OUTCOMES:
        return _is_decision_refused(turn, plan, request_id)
    if request is not None and request.child:
        return False
    event_type = request.event_type if request is not None else _task_of(turn, note, event.type)
    entry, answered = plan.effects.get(request_id), request_id
    if entry is None:
        request_id, entry = _same_effect(plan, event_type.removesuffix(UNDO), event.type, note.address, request_id)
        if request_id != answered and request is None and request_id in plan.requests:
            turn.event = event = event.model_copy(update={"parent_event_id": request_id})
    was_unknown = entry is not None and entry.outcome == UNKNOWN
    if entry is not None and not (_is_unknown_again(entry, note) or entry.may_become(note.outcome)):
        said_more = entry.outcome == FAILED and note.outcome == UNKNOWN
        return not (said_more or event_type.endswith(UNDO)) and _close_unanswered(plan, answered)
    if event_type.endswith(UNDO) and (entry is None or note.outcome != UNDONE):
        return False  # a failed undo says nothing of the effect
    if entry is None:
        response = request.response_event if request is not None else f"{base_of(event.type)}.completed"
        entry = plan.effects[request_id] = EffectEntry(
            event_type, note.key, note.address, note.outcome, response_event=response
        )
    _fill(entry, note, event.data, turn.revision)
    turn.notes.append(f"the effect {entry.event_type} ({entry.key}) is {entry.outcome}")
    if entry.outcome == UNKNOWN and not note.waits_for:  # what it waits for was announced
        _announce(turn, request_id, entry)
    elif request is None and was_unknown and plan.decider and not plan.status.finished:
        _tell_planner(turn, plan)
    _drop_outdated(plan, request_id)
    for each in (request_id, answered):
        plan.unanswered.pop(each, None)  # it is answered after all, and known by its effect
    if len(plan.effects) > MAX_SETTLED and not plan.rollback:
        _drop_oldest(plan)
    return True


def _is_unknown_again(entry: EffectEntry, note: EffectNote) -> bool:
    """True if a decision about an unknown outcome has not settled it, or the end of a later attempt is not known."""
    if note.outcome != UNKNOWN or entry.outcome not in (FAILED, UNKNOWN):
        return False
    if entry.outcome == FAILED and note.waits_for:
        return False
    return (entry.outcome == UNKNOWN and bool(entry.decision)) or note.attempt > entry.attempt


def _close_unanswered(plan: PlanContext, request_id: str) -> bool:
    """Forget that a closed request may have been done: it has no effect, or one that the plan lists already."""
    was_unanswered = plan.unanswered.pop(request_id, None) is not None
    return was_unanswered or request_id in plan.rollback.get(LEFT, {})


def _tell_planner(turn: TurnRecord, plan: PlanContext) -> None:
    """Let a planner that was told that an outcome is not known see what has become known of it.

    One that waits for the event decides in this turn, like one that waits for a person; another one sees it at its next
    decision.
    """
    event = turn.event
    plan.results[event.type] = event.data
    if plan.status is PAUSED and event.type == plan.results.get(WAITING_FOR):
        turn.packed_event = turn.packed_event or pack(event.to_wire())
        turn.event = event.model_copy(update={"parent_event_id": None})  # its request is closed: it would come too late
    elif HELD not in plan.control:
        add_event(plan, turn.revision, turn.now, event.to_wire())


def _is_decision_refused(turn: TurnRecord, plan: PlanContext, request_id: str) -> bool:
    """Forget a person's decision that the worker has answered without an outcome; False when it was none."""
    for entry in plan.effects.values():
        if entry.decided == request_id:
            error = turn.event.data.get("error") if isinstance(turn.event.data, dict) else None
            why = error_text(error) if error else turn.event.type
            turn.notes.append(f"warning: the decision {entry.decision!r} was not carried out: {why}")
            entry.decision = entry.decided = ""
            return True
    return False


def resolve_effect(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    """Send the worker what a person has decided about an unknown effect; its answer moves the plan."""
    data = turn.event.data if isinstance(turn.event.data, dict) else {}
    task, outcome = data.get("task"), data.get("outcome")
    if not isinstance(task, str) or outcome not in DECISIONS:
        return turn.refused(f"the data of a resolution is {{'task': id, 'outcome': one of {', '.join(DECISIONS)}}}")
    entry = plan.effects.get(effect_now(plan, task))
    if entry is None:
        return turn.unwanted(plan, f"the plan has no effect of the task {task!r:.200}")
    if entry.owner:
        return turn.unwanted(plan, f"the effect of {task} is one of plan {entry.owner}: resolve it there")
    if entry.outcome != UNKNOWN:
        return turn.unwanted(plan, f"the effect of {task} is {entry.outcome} already")
    if entry.decision:
        return turn.unwanted(plan, f"the effect of {task} was decided already ({entry.decision})")
    if is_outdated(data, entry.attempt):
        return turn.unwanted(plan, f"the decision about {task} is outdated: another attempt was begun since")
    if not entry.event_type:
        return turn.refused(f"the task type of {task} is not known: record the outcome by its worker")
    by = turn.event.user_id or data.get("by")
    decision: dict[str, Any] = {"address": entry.address, "outcome": outcome, "by": by if isinstance(by, str) else ""}
    if entry.attempt:
        decision["attempt"] = entry.attempt
    try:
        entry.decided = turn.outbox.send(
            {
                "type": entry.event_type,
                "topic": EventTopic.ACTION_REQUESTS,
                "response_event": entry.response_event,
                "data": {"result": data.get("result")} if outcome == DONE else {},
                "metadata": {RESOLUTION: decision},
            }
        )
    except PayloadTooLarge as error:
        return turn.refused(str(error))
    entry.decision = outcome
    turn.notes.append(f"the effect {entry.event_type} ({entry.key}) was decided: {outcome}")
    return TurnOutcome.COMMIT


def _same_effect(
    plan: PlanContext, event_type: str, answer: str, address: str, request_id: str
) -> tuple[str, EffectEntry | None]:
    """The entry of an effect under another request, and that request; an earlier attempt at it is forgotten."""
    for other, entry in plan.effects.items():
        if entry.address != address or not _is_of_task(entry, event_type, answer):
            continue
        if entry.outcome in (FAILED, UNKNOWN) and other not in plan.requests and request_id in plan.requests:
            del plan.effects[other]
            return request_id, None
        return other, entry
    return request_id, None


def _is_of_task(entry: EffectEntry, event_type: str, answer: str) -> bool:
    """True if an entry is of this task; where one of the types is not known, by the event of the answer."""
    if entry.event_type and event_type:
        return entry.event_type == event_type
    return base_of(entry.response_event) == base_of(answer)


def _fill(entry: EffectEntry, note: EffectNote, data: Any, revision: int) -> None:
    values = data if isinstance(data, dict) else {}
    entry.outcome, entry.undo = note.outcome, note.undo
    entry.attempt = max(entry.attempt, note.attempt)
    entry.answered = revision if note.outcome != UNDONE else entry.answered
    entry.given_up = entry.decision == GIVE_UP and note.outcome == FAILED
    entry.decision = entry.decided = ""
    entry.waits_for, entry.owner = note.waits_for if note.outcome == UNKNOWN else "", note.owner
    entry.result = data if note.outcome == DONE else entry.result
    said = values.get("reason") or values.get("error")
    entry.reason = error_text(said) if note.outcome in (FAILED, UNKNOWN) and said else ""


def _announce(turn: TurnRecord, request_id: str, entry: EffectEntry) -> None:
    """Send the system event of an unknown outcome."""
    plan = turn.plan
    assert plan is not None
    data = {
        "plan_id": plan.plan_id,
        "task": request_id,
        "event_type": entry.event_type,
        "key": entry.key,
        "reason": entry.reason,
    }
    turn.outbox.send({"type": EFFECT_UNKNOWN, "topic": EventTopic.SYSTEM_EVENTS, "data": data})


def _drop_oldest(plan: PlanContext) -> None:
    """Drop the oldest effects that nobody has to do anything about, beyond a number of them.

    Done ones without an undo are counted: a rollback has to name them.
    """
    settled = [
        key
        for key, each in plan.effects.items()
        if each.outcome != UNKNOWN and not (each.undo and each.outcome == DONE) and not each.given_up
    ]
    for key in settled[:-MAX_SETTLED]:
        entry = plan.effects.pop(key)
        if entry.outcome == DONE:
            plan.unlisted[entry.event_type] = plan.unlisted.get(entry.event_type, 0) + 1


def _drop_outdated(plan: PlanContext, request_id: str) -> None:
    """Drop an early answer that says that the outcome is not known, once it is."""
    if plan.kept and not is_unknown(plan, request_id):
        plan.kept = [
            each for each in plan.kept if answered_request(each) != request_id or not is_answer_of_unknown(each)
        ]


def is_answer_of_unknown(event: Mapping[str, Any]) -> bool:
    """True if a kept event says that the outcome of an effect is not known."""
    note = read_note(event.get("metadata"))
    return note is not None and note.outcome == UNKNOWN


def _task_of(turn: TurnRecord, note: EffectNote, answer: str) -> str:
    """The type of the task that is answered with this event; empty when it is not known."""
    if (base := base_of(answer)).endswith(UNDO):
        return base
    if note.event_type:
        return note.event_type
    for worker in turn.environment.app.workers:
        for task in worker.tasks.values():
            if task.response_event is not None and base_of(task.response_event) == base:
                return task.event_type
    return ""
