"""A turn as an entry of its plan's timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from plancast.plan.context import PlanContext
from plancast_bus.events.codec import load, pack
from plancast_bus.events.packed_maps import as_map, pack_fields
from plancast_bus.ports.effects import Effect, Publish, Respond, effect_kind

if TYPE_CHECKING:
    from plancast.turn.turn import Turn

_EVENTS = (Publish, Respond)
"""Effects that are told as what was sent."""
_EVENT = pack("event")


def timeline_entry(turn: Turn, plan: PlanContext) -> dict[str, Any]:
    """What is kept of a turn; fields that say nothing are left out."""
    event = turn.event.to_wire()
    if turn.too_large:
        event = {name: value for name, value in event.items() if name not in ("data", "metadata")}
    return {"event": event, **_turn(turn, plan)}


def packed_entry(turn: Turn, plan: PlanContext) -> bytes:
    """The entry in msgpack. An event that came in msgpack is not packed again."""
    if not turn.packed_event or turn.too_large:
        return pack(timeline_entry(turn, plan))
    entry = _turn(turn, plan)
    return as_map(1 + len(entry), _EVENT, turn.packed_event, pack_fields(entry))


def _turn(turn: Turn, plan: PlanContext) -> dict[str, Any]:
    """The entry without its event."""
    entry: dict[str, Any] = {
        "revision": turn.revision,
        "time": turn.now,
        "from": turn.state_before,
        "path": list(plan.moves),
        "state": plan.current_state,
        "status": str(plan.status),
        "sent": turn.outbox.sent,
    }
    if turn.environment.in_full:
        entry["said"] = [load(each.payload, each.content_type).get("data") for each in turn.effects if _is_event(each)]
        if turn.answers:
            entry["answers"] = turn.answers
    others = [effect_kind(each) for each in turn.effects if type(each) not in _EVENTS]
    if others:
        entry["effects"] = others
    if turn.decisions:
        entry["decisions"] = turn.decisions
    if turn.exchange:
        entry["exchange"] = turn.exchange
    if turn.is_timer:
        entry["timer"] = True
    if turn.notes:
        entry["notes"] = turn.notes
    if plan.error is not None:
        entry["error"] = plan.error
    if plan.pause_reason is not None:
        entry["pause_reason"] = plan.pause_reason
    return entry


def _is_event(effect: Effect) -> TypeGuard[Publish | Respond]:
    return type(effect) in _EVENTS
