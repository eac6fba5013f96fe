"""Checks what decision-tree steps return (a decision, an action, or None), and calls their guards and builders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from inspect import isawaitable
from typing import Any, Final, TypeAlias, TypeVar

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision
from plancast.errors import InvalidDecision, InvalidPlannerConfig
from plancast.json_values.limits import shown
from plancast.planners.contract import RunContext
from plancast.tasks.model import GroupCompletion

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Builder: TypeAlias = Callable[[RunContext], T | Awaitable[T]]
"""A function of the run; plain or async."""
Guard: TypeAlias = Builder[bool]
"""A condition of a step; None always holds."""
Claim: TypeAlias = PlannerDecision | PlannerAction | None
"""The result of a step; None leaves the decision to the next step."""
OnResolved: TypeAlias = Callable[[RunContext, GroupCompletion], Claim | Awaitable[Claim]]
"""Decides after the end of a group; None leaves the decision to the next step."""

_CLAIMS: Final = (
    PlannerDecision,
    PublishAction,
    CompleteAction,
    WaitAction,
    DelegateAction,
    ParallelAction,
    AwaitAction,
)


def as_claim(value: object) -> Claim:
    """Check a claim.

    Raises:
        InvalidDecision: it is neither a decision nor an action nor None.
    """
    if value is None or isinstance(value, _CLAIMS):
        return value
    raise InvalidDecision(f"the claim: got {shown(value)}, allowed: a PlannerDecision, one of its actions, or None")


async def holds(when: Guard | None, run: RunContext) -> bool:
    """Evaluate a guard."""
    return when is None or bool(await built("when", when, run))


async def built(field: str, builder: Callable[..., Any] | None, *given: Any) -> Any:
    """Call a builder.

    Raises:
        InvalidPlannerConfig: it is missing, or no function.
    """
    required(**{field: builder})
    assert builder is not None
    made = builder(*given)
    return await made if isawaitable(made) else made


def required(**functions: object) -> None:
    """Check required functions, given by the names of their fields.

    Raises:
        InvalidPlannerConfig: one is missing, or no function.
    """
    for field, function in functions.items():
        if not callable(function):
            got = "nothing" if function is None else shown(function)
            raise InvalidPlannerConfig(f"{field}: got {got}, allowed: a function, plain or async")


def as_object(field: str, value: object) -> dict[str, Any]:
    """Check that a builder made an object.

    Raises:
        InvalidDecision: it did not.
    """
    if not isinstance(value, Mapping):
        raise InvalidDecision(f"{field}: got {shown(value)}, allowed: an object")
    return dict(value)


def as_reason(kind: type[E], value: object) -> E:
    """Convert a reason, or its text.

    Raises:
        InvalidPlannerConfig: there is no such reason.
    """
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        got = "nothing" if value is None else shown(value)
        raise InvalidPlannerConfig(f"reason: got {got}, allowed: {', '.join(kind)}") from None
