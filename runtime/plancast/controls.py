"""Control events, by which somebody outside cancels, pauses or resumes a plan."""

from __future__ import annotations

from typing import Any

from plancast_bus.envelope import EventEnvelope

CANCEL, PAUSE, RESUME = "plan.cancel", "plan.pause", "plan.resume"
"""Control events, on the topic ``plan-events``."""


def cancel_reason(event: EventEnvelope) -> str:
    """Why a cancellation cancels."""
    return given_reason(event, "cancelled")


def given_reason(event: Any, otherwise: str) -> str:
    """The reason that a control event gives, if any."""
    reason = event.data.get("reason") if isinstance(event.data, dict) else None
    return str(reason or otherwise)
