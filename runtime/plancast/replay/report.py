"""Results of a replay: outcome and differences of each turn, and a plan at a revision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from plancast.json_values.diff import Difference

Which = Literal["then", "now"]
"""State machine of a replay: the plan's own, or the one that its goal has now."""


class Outcome(StrEnum):
    """Outcome of the replay of a turn or a plan."""

    SAME = "same"
    """The current code does the same."""
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """The history does not show it."""


@dataclass(frozen=True)
class ReplayedTurn:
    """The replay of one turn."""

    revision: int
    time: float
    """Time of the turn, seconds since the epoch, UTC."""
    event_type: str
    outcome: Outcome
    why: str = ""
    """Why it is unknown, or a remark."""
    differences: tuple[Difference, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        fields = {
            "revision": self.revision,
            "time": self.time,
            "event": self.event_type,
            "outcome": str(self.outcome),
            "why": self.why,
            "differences": [each.to_dict() for each in self.differences],
        }
        return {name: value for name, value in fields.items() if value not in ("", [])}


@dataclass(frozen=True)
class Replay:
    """The replay of a plan's history with the current code."""

    plan_id: str
    machine: Which
    turns: tuple[ReplayedTurn, ...]

    @property
    def outcome(self) -> Outcome:
        """DIFFERS if any turn differs; else UNKNOWN if any is unknown; else SAME."""
        found = {turn.outcome for turn in self.turns}
        return next((each for each in (Outcome.DIFFERS, Outcome.UNKNOWN) if each in found), Outcome.SAME)

    @property
    def first(self) -> ReplayedTurn | None:
        """The first turn whose outcome is not SAME."""
        return next((turn for turn in self.turns if turn.outcome is not Outcome.SAME), None)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return {
            "plan_id": self.plan_id,
            "outcome": str(self.outcome),
            "machine": self.machine,
            "turns": [turn.to_dict() for turn in self.turns],
        }


@dataclass(frozen=True)
class PlanAt:
    """A plan after one of its turns."""

    revision: int
    time: float
    """Time of the turn, seconds since the epoch, UTC."""
    event_type: str
    status: str
    current_state: str
    path: tuple[str, ...]
    """States entered in the turn."""
    known: bool
    """True if the remaining fields are known; if not, they are None and ``why`` holds the reason."""
    why: str = ""
    results: dict[str, Any] | None = None
    goal_data: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    """All fields, as ``plancast.plan.serialization.to_state`` writes them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "event_type"}
        return fields | {"event": self.event_type, "path": list(self.path)}
