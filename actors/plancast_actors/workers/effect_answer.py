"""Answers to requests whose effects are recorded, made from the record alone."""

from __future__ import annotations

from typing import Any

from plancast.effects.effect import idempotency_key
from plancast.effects.record import EffectRecord, EffectState
from plancast.effects.wire import EffectNote
from plancast.state_machine.machine import failed_event, unknown_event
from plancast.worker import TaskDefinition
from plancast_actors.workers.responses import Response, make_response, response_event_of
from plancast_bus.events.envelope import EventEnvelope

_OUTCOMES = {EffectState.UNDOING: "done"}
"""Words in answers for states that are no outcome."""


def answer_of(
    record: EffectRecord, address: str, request: EventEnvelope, definition: TaskDefinition, suffix: str = ""
) -> Response | None:
    """Make the answer to a request from the record of its effect; None when none is expected.

    Args:
        record: The record, in a state with an outcome.
        address: Its key in the ledger.
        request: That of the effect's owner, or of another task of its key.
        definition: The task.
        suffix: End of the answer's id.
    """
    expected = response_event_of(request, definition)
    own = record.request_id == request.id
    event_type, data = record.answer or ("", {})
    of_plan = own or is_of_plan(record, request)
    waits_for, owner, reason = "", "" if of_plan else _plan_of(record.envelope), record.reason
    if record.attempt > 1:
        suffix = f":{record.attempt}{suffix}"  # not that of the answer about an earlier attempt
    if record.state is EffectState.UNKNOWN:
        event_type = unknown_event(expected) if expected else ""
        if record.task != idempotency_key(request):
            waits_for = record.request_id
            reason = f"waits for {waits_for}{owner and f' of plan {owner}'}, whose outcome is not known: {reason}"
        data = {"success": False, "outcome": "unknown", "key": record.key, "reason": reason}
        suffix = (
            f":unknown:{record.attempt}"  # neither that of a later outcome, nor of an unknown end of a later attempt
        )
    elif record.state is EffectState.UNDONE and not own:
        event_type, data = failure_of(request, definition, "its effect was undone")
        data["reason"] = "undone"
    elif not own:
        event_type = _own_event(record, event_type, expected, definition)
    if not event_type:
        return None
    outcome = _OUTCOMES.get(record.state, record.state.value)
    # An effect of another plan is undone by that one.
    undo = definition.has_undo and of_plan
    note = EffectNote(address, record.key, outcome, undo, definition.event_type, waits_for, owner, record.attempt)
    return make_response(request, definition, event_type, data, note.metadata(), suffix)


def failure_of(request: EventEnvelope, definition: TaskDefinition, error: str) -> tuple[str, dict[str, Any]]:
    """Event type and data of the answer of a failed task; the type is empty when no answer is expected."""
    expected = response_event_of(request, definition)
    return failed_event(expected) if expected else "", {"success": False, "error": error}


def is_of_plan(record: EffectRecord, request: EventEnvelope) -> bool:
    """True if an effect belongs to the plan of a request, and to its tenant."""
    own = record.envelope
    return (own.tenant_id or "") == (request.tenant_id or "") and _plan_of(own) == _plan_of(request)


def _plan_of(request: EventEnvelope) -> str:
    return request.plan_id or request.correlation_id


def _own_event(record: EffectRecord, event_type: str, expected: str | None, definition: TaskDefinition) -> str:
    """The event type for a task in place of the one that the owner was answered with."""
    usual = response_event_of(record.envelope, definition)
    if expected is None:
        return ""
    if event_type in ("", usual):
        return expected
    return failed_event(expected) if usual and event_type == failed_event(usual) else event_type
