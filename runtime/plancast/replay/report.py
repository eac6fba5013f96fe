"""What a replay finds: values, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from plancast.json_values.diff import Difference

Which = Literal["then", "now"]
"""Which state machine a history is re-run with."""


class Outcome(StrEnum):
    """What a replay finds of a turn, or of a plan."""

    SAME = "same"
    """The code of today does what was done then."""
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """The history does not tell."""


@dataclass(frozen=True)
class ReplayedTurn:
    """A turn that was run again."""

    revision: int
    time: float
    """When it was, seconds since the epoch, UTC."""
    event_type: str
    outcome: Outcome
    why: str = ""
    """Why it is unknown, or what else is to be said."""
    differences: tuple[Difference, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        told = {
            "revision": self.revision,
            "time": self.time,
            "event": self.event_type,
            "outcome": str(self.outcome),
            "why": self.why,
            "differences": [each.to_dict() for each in self.differences],
        }
        return {name: value for name, value in told.items() if value not in ("", [])}


@dataclass(frozen=True)
class Replay:
    """What the code of today makes of a plan's history."""

    plan_id: str
    machine: Which
    turns: tuple[ReplayedTurn, ...]

    @property
    def outcome(self) -> Outcome:
        """Differs when a turn does; else unknown when one is; else the same."""
        found = {turn.outcome for turn in self.turns}
        return next((each for each in (Outcome.DIFFERS, Outcome.UNKNOWN) if each in found), Outcome.SAME)

    @property
    def first(self) -> ReplayedTurn | None:
        """The first turn that is not the same."""
        return next((turn for turn in self.turns if turn.outcome is not Outcome.SAME), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "plan_id": self.plan_id,
            "outcome": str(self.outcome),
            "machine": self.machine,
            "turns": [turn.to_dict() for turn in self.turns],
        }


@dataclass(frozen=True)
class PlanAt:
    """A plan as it was after a turn."""

    revision: int
    time: float
    """When the turn was, seconds since the epoch, UTC."""
    event_type: str
    status: str
    current_state: str
    path: tuple[str, ...]
    """States entered in the turn."""
    known: bool
    """Whether the rest is known; else it is None, and ``why`` says why."""
    why: str = ""
    results: dict[str, Any] | None = None
    goal_data: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    """All fields, as ``plancast.plan.serialization.to_state`` writes them."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "event_type"}
        return told | {"event": self.event_type, "path": list(self.path)}
