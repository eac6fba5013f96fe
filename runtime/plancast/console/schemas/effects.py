"""Schemas of the effects of plans' tasks, version 1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plancast.console.schemas.base import RequestModel, ResponseModel, example
from plancast.console.schemas.plans import Summary

OutcomeOf = Literal["pending", "done", "failed", "unknown", "undone"]
"""Outcome of an effect."""


class PlanEffectOf(ResponseModel):
    """An effect of a plan's task."""

    plan_id: str
    task: str
    """Id of the task's request."""
    event_type: str
    """Type of the task."""
    key: str
    """Key of the effect within its scope; empty while the task is not answered."""
    outcome: OutcomeOf
    result: Any = None
    """The worker's answer, if it is done."""
    reason: str = ""
    """Why it is unknown or has failed, or why the undo of a done one has failed."""
    undo: bool = False
    """True if its worker can undo it."""
    decision: Literal["", "done", "not_done", "give_up"] = ""
    """A person's decision about an unknown one, while its worker has not confirmed it."""
    undecided: bool = False
    """True if a person has to decide about it: its outcome is unknown, or its undo has failed."""
    about: int | Literal["undo"] = 0
    """Subject of a decision now: the number of the last attempt, or a failed undo. Send it with the decision."""


class PlanEffects(ResponseModel):
    items: list[PlanEffectOf]


class EffectInList(PlanEffectOf):
    plan: Summary


class Effects(ResponseModel):
    items: list[EffectInList]
    next: str | None = None
    total: int
    """Number of effects that match."""


class Resolution(RequestModel):
    """A person's decision about an effect with an unknown outcome, or about an undo that has failed."""

    model_config = example(outcome="done", result={"charge": "c-7"})

    outcome: Literal["done", "not_done", "give_up"]
    """``done``: it was done; ``not_done``: it was not, and is begun again; ``give_up``: the task fails.

    Of a failed undo: the effect was undone; its undo is begun again; it is left as it is."""
    result: Any = Field(default=None)
    """The value that the task would have returned, if it is done."""
    about: int | Literal["undo"] | None = Field(default=None)
    """``about`` of the effect, as the person has seen it. Without it the decision is about what there is to decide
    now."""
