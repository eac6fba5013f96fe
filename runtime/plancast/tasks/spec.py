"""SpawnSpec: the request or goal of a task to start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plancast.json_values.limits import FrozenDict
from plancast.json_values.model import Data, Name, NullIsDefault, PlannerValue, Seconds, Text


class SpawnSpec(PlannerValue):
    """A task or child plan to start."""

    event_type: Name
    """The event that starts it."""
    data: Data = Field(default_factory=FrozenDict)
    """The event's data."""
    description: Text = ""
    """Its purpose."""
    query: Text = ""
    """The question that it answers, in words."""
    priority: Annotated[int, Field(ge=-1000, le=1000), NullIsDefault] = 0
    """Higher goes first."""
    retain_turn: Annotated[bool, NullIsDefault] = False
    """Whether the plan makes no other move until it is resolved."""
    timeout_seconds: Seconds | None = None
    """Seconds to wait for its answer."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Part of the budget that is left which a child plan may spend."""
    fail_fast: Annotated[bool, NullIsDefault] = False
    """Whether its failure cancels the rest of its group."""


JoinKind = Literal["all", "first_success", "n"]
"""When a ParallelAction is done: after all answers, the first success, or n successes."""
