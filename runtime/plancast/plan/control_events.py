"""Control events, by which somebody outside steers a plan: they are read between turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plancast_bus.events.envelope import EventEnvelope, EventTopic

CANCEL, PAUSE, RESUME = "plan.cancel", "plan.pause", "plan.resume"
REJECT, REDIRECT, INJECT = "plan.reject", "plan.redirect", "plan.inject"
WAKE = "plan.wake"
"""Control events, on the topic ``plan-events``.

Their data: ``{"reason"}`` for cancel, pause and reject, ``{"input"}`` for resume, ``{"goal_data"}`` (an object) for
redirect, ``{"context"}`` (any JSON) for inject, nothing for wake, which has a plan that stands still go on.
"""
FORK = "plan.fork"
"""Begins a fork of a plan (:mod:`plancast.turn.fork`). It comes as a timer, which no client may set."""

BY = "by"
"""Where a goal's metadata says who submitted it."""


def who(event: Mapping[str, Any]) -> str | None:
    """Who is behind an event of a timeline; None where nobody says so."""
    said = event.get("user_id")
    if event.get("topic") != EventTopic.PLAN_EVENTS:
        said = (event.get("metadata") or {}).get(BY)
    return said if isinstance(said, str) else None


def cancel_reason(event: EventEnvelope) -> str:
    """Why a cancellation cancels."""
    return given_reason(event, "cancelled")


def given_reason(event: Any, otherwise: str) -> str:
    """The reason that a control event gives, if any."""
    reason = event.data.get("reason") if isinstance(event.data, dict) else None
    return str(reason or otherwise)
