"""What all turns of a host share: the app, its planners by name and by goal, and the ways out of a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plancast.app import App
from plancast.context import PlanMemory
from plancast.planner import Planner
from plancast.settings import PlanSettings
from plancast_bus.envelope import EventEnvelope, WireEvent
from plancast_bus.subjects import Subjects


@dataclass(frozen=True)
class TurnEnvironment:
    """What all turns of a host share."""

    app: App
    subjects: Subjects
    encode: Callable[[EventEnvelope | WireEvent], tuple[bytes, str]]
    memory: PlanMemory
    settings: PlanSettings = field(default_factory=PlanSettings)
    max_event_bytes: int = 1_048_576
    registry: Any = None
    toolkit: Any = None
    reasoner: Any = None
    goals: Mapping[str, Planner] = field(init=False)
    planners: Mapping[str, Planner] = field(init=False)
    listeners: tuple[Planner, ...] = field(init=False)
    checked: set[str] = field(init=False, default_factory=set)
    """Hashes of state machines that were found valid."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "goals", self.app.goals)
        object.__setattr__(self, "planners", {planner.name: planner for planner in self.app.planners})
        object.__setattr__(self, "listeners", tuple(each for each in self.app.planners if each.handles_events))
