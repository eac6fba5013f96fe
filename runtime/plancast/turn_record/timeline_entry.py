"""Entries of a plan's timeline, one for each turn."""

from __future__ import annotations

from typing import Any

from plancast.plan.record import PlanRecord
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.codec import unpack
from plancast_bus.ports.effects import Publish, Respond, effect_kind

_EVENTS = (Publish, Respond)
"""Effects that the entry lists under ``sent``."""


def timeline_entry(turn: TurnRecord, plan: PlanRecord) -> dict[str, Any]:
    """The entry of a turn; empty fields are left out."""
    event = unpack(turn.packed_event) if turn.packed_event else turn.event.to_wire()
    entry: dict[str, Any] = {
        "event": event,
        "revision": turn.revision,
        "time": turn.now,
        "from": turn.state_before,
        "path": list(plan.moves),
        "state": plan.current_state,
        "status": str(plan.status),
        "sent": turn.outbox.sent,
    }
    if turn.environment.in_full:
        entry["said"] = turn.outbox.data()
        if turn.answers:
            entry["answers"] = turn.answers
    others = [effect_kind(each) for each in turn.effects if type(each) not in _EVENTS]
    if others:
        entry["effects"] = others
    if turn.decisions:
        entry["decisions"] = turn.decisions
    if turn.exchange:
        entry["exchange"] = turn.exchange
    if turn.outbox.lent:
        entry["lent"] = turn.outbox.lent
    if turn.sessions:
        entry["sessions"] = turn.sessions
    if turn.carried:
        entry["carried"] = turn.carried
    if turn.is_forged:
        entry["forged"] = True
    if turn.is_timer:
        entry["timer"] = True
    if turn.is_unwanted:
        entry["ignored"] = turn.reason
    elif turn.is_kept and any(each.get("id") == event.get("id") for each in plan.kept):
        entry["kept"] = True
    if turn.notes:
        entry["notes"] = turn.notes
    if plan.error is not None:
        entry["error"] = plan.error
    if plan.pause_reason is not None:
        entry["pause_reason"] = plan.pause_reason
    return entry
