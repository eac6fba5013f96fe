"""Buffer of events that arrive before a state of the plan waits for them."""

from __future__ import annotations

from typing import Any

from plancast.plan.event_fields import answered_request
from plancast.plan.moves.transitions import next_state
from plancast.plan.record import WAITING_FOR, PlanRecord, is_held
from plancast.plan.status import PAUSED


def keep(plan: PlanRecord, event: dict[str, Any], limit: int) -> str | None:
    """Append an event; returns the type of the event that was dropped to stay within the limit, if any.

    Answers to open requests are dropped last: they are not sent again.
    """
    plan.kept.append(event)
    if len(plan.kept) <= limit:
        return None
    unasked = (at for at, each in enumerate(plan.kept) if answered_request(each) not in plan.requests)
    return str(plan.kept.pop(next(unasked, 0)).get("type"))


def awaited(plan: PlanRecord) -> list[int]:
    """Indexes of the events that the plan may wait for now: by their type, or as answers to open requests."""
    if is_held(plan):
        return []
    types = plan.machine.awaited(plan.current_state) | {plan.results.get(WAITING_FOR)}
    return [
        at
        for at, event in enumerate(plan.kept)
        if event.get("type") in types or answered_request(event) in plan.requests
    ]


def take_awaited(plan: PlanRecord) -> dict[str, Any] | None:
    """Remove and return the oldest event that a WAIT waits for."""
    for index, event in enumerate(plan.kept):
        if event.get("type") == plan.results.get(WAITING_FOR):
            return plan.kept.pop(index)
    return None


def take_answers(plan: PlanRecord) -> list[dict[str, Any]]:
    """Remove and return the answers to open requests, oldest first."""
    answers = [event for event in plan.kept if answered_request(event) in plan.requests]
    plan.kept = [event for event in plan.kept if event not in answers]
    return answers


def take_for_state(plan: PlanRecord) -> tuple[dict[str, Any], str] | None:
    """Remove and return the oldest event that the current state waits for, with the state that it leads to."""
    if plan.status is PAUSED or (found := find_for_state(plan)) is None:
        return None
    index, target = found
    return plan.kept.pop(index), target


def find_for_state(plan: PlanRecord) -> tuple[int, str] | None:
    """Index of the oldest event that the current state waits for, with the state that it leads to."""
    for index, event in enumerate(plan.kept):
        target = next_state(plan, event)
        if target is not None:
            return index, target
    return None
