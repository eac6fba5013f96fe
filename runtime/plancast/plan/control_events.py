"""Control events: cancel, pause, resume and redirect a plan from outside, each in a turn of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast_bus.events.envelope import EventEnvelope, EventTopic

CANCEL, PAUSE, RESUME = "plan.cancel", "plan.pause", "plan.resume"
REJECT, REDIRECT, INJECT = "plan.reject", "plan.redirect", "plan.inject"
WAKE, RESOLVE_EFFECT = "plan.wake", "plan.resolve_effect"
"""Control events, on the topic ``plan-events``.

Their data: ``{"reason"}`` for cancel, pause and reject, ``{"input"}`` for resume, with the pause reason that it answers
as ``asked`` or without one, ``{"goal_data"}`` (an object) for redirect, ``{"context"}`` (any JSON) for inject, nothing
for wake, which moves a stalled plan on, and ``{"task", "outcome", "result", "by"}`` for a person's decision about an
unknown effect (:mod:`plancast.turn.effects`). Only earlier versions send a reject, which ends the plan; a "no" is an
answer (:mod:`plancast.plan_store.approvals`).
"""
FOLLOW, ENDED = "plan.follow", "plan.ended"
"""Sent between plans: one waits for the other's end (``{"plan", "after"}``), and is told (``{"plan", "status"}``)."""
ROLLBACK, ROLLED_BACK = "plan.rollback", "plan.rolled_back"
"""A rollback, from people (``{"reason"}``) or from the parent (``{"reason", "plan"}``), which is told of its end
(``{"plan", "request", "left"}``, with the id of its event as ``request``)."""
TURNS_LOST = "plan.turns_lost"
"""Tells a plan that the server has lost turns of it, or what its tasks have recorded: ``{"revision", "stored"}``, the
newest revision that was committed, and the one that is kept."""
FORK = "plan.fork"
"""Starts a fork of a plan (:mod:`plancast.turn.fork`). Published as a timer, which clients may not set."""

DEADLINE = "plan.deadline"
"""Type of the timer that ends a plan at its deadline."""

BEGIN_AFTER = "begin_after"
"""Key of a goal's metadata that holds the ids of the plans that have to end before its own begins."""
MAX_AFTER = 100
"""Plans that one plan may wait for."""
BY = "by"
"""Key of a goal's metadata that holds the submitting user."""
NOT_GIVEN: Final = object()
"""Default of the result in a decision about an effect; None is a result."""


def user_of(event: Mapping[str, Any]) -> str | None:
    """The user behind an event of a timeline; None when it names none."""
    user = event.get("user_id")
    if event.get("topic") != EventTopic.PLAN_EVENTS:
        user = (event.get("metadata") or {}).get(BY)
    return user if isinstance(user, str) else None


def cancel_reason(event: EventEnvelope) -> str:
    """The reason of a cancellation."""
    return given_reason(event, "cancelled")


def given_reason(event: Any, otherwise: str) -> str:
    """The reason of a control event, or a default."""
    reason = event.data.get("reason") if isinstance(event.data, dict) else None
    return str(reason or otherwise)
