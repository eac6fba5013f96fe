"""Control events, by which somebody outside steers a plan: they are read between turns."""

from __future__ import annotations

from typing import Any

from plancast_bus.envelope import EventEnvelope

CANCEL, PAUSE, RESUME = "plan.cancel", "plan.pause", "plan.resume"
REJECT, REDIRECT, INJECT = "plan.reject", "plan.redirect", "plan.inject"
WAKE = "plan.wake"
"""Control events, on the topic ``plan-events``.

Their data: ``{"reason"}`` for cancel, pause and reject, ``{"input"}`` for resume, ``{"goal_data"}`` (an object) for
redirect, ``{"context"}`` (any JSON) for inject, nothing for wake, which has a plan that stands still go on.
"""
FORK = "plan.fork"
"""Begins a plan where another one stood, see :mod:`plancast.forking`. It comes as a timer, which no client may set."""


def cancel_reason(event: EventEnvelope) -> str:
    """Why a cancellation cancels."""
    return given_reason(event, "cancelled")


def given_reason(event: Any, otherwise: str) -> str:
    """The reason that a control event gives, if any."""
    reason = event.data.get("reason") if isinstance(event.data, dict) else None
    return str(reason or otherwise)
