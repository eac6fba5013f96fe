"""Lifecycle of plans for observers: system events of a turn, and the log record of its move."""

from __future__ import annotations

import logging
from typing import Any

from plancast.plan.context import PlanContext
from plancast.plan.effects.entries import waits_for_effects
from plancast.plan.record import WAIT_TIMEOUT, WAITING_FOR
from plancast.plan.status import PAUSED, PENDING, RUNNING
from plancast.state_machine.machine import START
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.envelope import EventTopic, WireEvent, utc_text
from plancast_bus.ports.effects import Publish
from plancast_bus.subjects import encode_token, message_id_of

STARTED, STATE_CHANGED, WAITING = "plan.started", "plan.state_changed", "plan.waiting_for_input"
"""System events; a plan that ends sends ``plan.completed``, ``plan.failed`` or ``plan.cancelled``."""

logger = logging.getLogger(__name__)


def lifecycle_effects(turn: TurnRecord, plan: PlanContext) -> list[Publish]:
    """The system events of a turn, whose ids follow from plan, type and revision."""
    events: list[tuple[str, dict[str, Any]]] = []
    if _has_started(turn, plan):
        events.append((STARTED, {"goal_event": plan.goal_event}))
    if plan.moves:
        events.append((STATE_CHANGED, move_of(turn, plan)))
    if plan.status.finished:
        if turn.has_ended_before:
            return []
        events.append((f"plan.{plan.status}", {} if plan.error is None else {"error": plan.error}))
    elif (awaited := _awaited_input(turn, plan)) is not None:
        events.append((WAITING, awaited))
    return [_effect(turn, plan, event_type, data) for event_type, data in events]


def move_of(turn: TurnRecord, plan: PlanContext) -> dict[str, Any]:
    """Fields of the move that a plan has made in a turn, beside its ``plan_id``."""
    return {
        "from_state": turn.state_before or START,
        "to_state": plan.current_state,
        "event_type": turn.event.type,
    }


def log_move(turn: TurnRecord) -> None:
    """Log the move of a committed turn, if it made one. Call it only if the logger is enabled for INFO."""
    plan = turn.plan
    if plan is not None and plan.moves:
        move = move_of(turn, plan)
        logger.info(
            "plan moved from %s to %s on %s",
            *move.values(),
            extra={"plan_id": plan.plan_id, "correlation_id": plan.correlation_id, "status": str(plan.status)} | move,
        )


def _has_started(turn: TurnRecord, plan: PlanContext) -> bool:
    if turn.status_before is PENDING:  # it has waited for other plans
        return turn.goal is not None
    return turn.revision == 1 and plan.status is not PENDING


def _awaited_input(turn: TurnRecord, plan: PlanContext) -> dict[str, Any] | None:
    """Describe the outside events that a plan began to wait for in this turn; None if none, or if a WAIT did so."""
    paused = plan.status is PAUSED
    if not (plan.moves or (paused and not turn.was_paused)) or waits_for_effects(plan):
        return None
    if any(event_type == WAITING for event_type, _ in turn.outbox.sent):
        return None
    state = plan.state_machine.get(plan.current_state)
    expected = [] if state is None else list(dict.fromkeys(each.on_event for each in state.transitions))
    if paused:
        expected = [plan.results[WAITING_FOR]] if WAITING_FOR in plan.results else expected
    elif plan.status is not RUNNING or state is None or not expected:
        return None
    elif state.action is not None:
        people = turn.environment.expected
        if state.action.response_event not in people:
            return None
    seconds = plan.results.get(WAIT_TIMEOUT)
    return {
        "correlation_id": plan.correlation_id,
        "reason": plan.pause_reason if paused else (state.description if state is not None else ""),
        "expected_event": expected[0] if expected else None,
        "expected_events": expected,
        "timeout_seconds": seconds if paused and not isinstance(seconds, str) else None,
    }


def _effect(turn: TurnRecord, plan: PlanContext, event_type: str, data: dict[str, Any]) -> Publish:
    environment = turn.environment
    event_id = f"{encode_token(plan.correlation_id)}:{event_type}:{turn.revision}"
    payload, content_type = environment.encode(
        WireEvent(
            {
                "id": event_id,
                "source": plan.planner or environment.app.name,
                "type": event_type,
                "topic": EventTopic.SYSTEM_EVENTS,
                "time": utc_text(turn.now),
                "data": {"plan_id": plan.plan_id, **data},
                "correlation_id": plan.correlation_id,
                "plan_id": plan.plan_id,
                "goal_id": plan.goal_id,
                "session_id": plan.session_id,
                "tenant_id": plan.tenant_id or None,
                "user_id": plan.user_id or None,
                "trace_id": turn.outbox.trace_id or plan.trace_id,
                "parent_event_id": turn.event.id,
            }
        )
    )
    subject = environment.subjects.event(EventTopic.SYSTEM_EVENTS, plan.correlation_id, event_type)
    return Publish(subject, payload, message_id_of(event_id), content_type, "", turn.outbox.trace)
