"""Firings: the times at which a schedule starts a plan, and what has become of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

FiringKind = Literal["time", "trigger", "backfill"]
FiringState = Literal["due", "queued", "started", "ended", "skipped", "missed"]
"""``due``: the decision to start the plan is durable, and its goal is being sent. ``queued``: waits for the runs before
it. ``started``: its goal is sent. ``ended``: its plan has been seen to be over. ``skipped``: another run was not over,
the queue was full, or the schedule was paused. ``missed``: it was too late."""


class Firing(BaseModel):
    """A firing of a schedule."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    id: str
    """Unique in the schedule: its time, or the id of a trigger."""
    time: float
    kind: FiringKind = "time"
    state: FiringState = "due"

    def in_state(self, state: FiringState) -> Firing:
        return self.model_copy(update={"state": state})


def trigger_firing(trigger_id: str, now: float) -> Firing:
    """Make the firing of a trigger."""
    return Firing(id=f"t-{trigger_id}", time=now, kind="trigger")


def firing_at(moment: float, kind: FiringKind = "time") -> Firing:
    """Make the firing of a time. A backfill has the ids of the times that it covers, so that none starts twice."""
    written = datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%SZ")
    milliseconds = round(moment * 1000) % 1000
    return Firing(id=f"{written}{milliseconds:03d}" if milliseconds else written, time=moment, kind=kind)
