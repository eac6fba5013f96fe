"""Claims: what steps of a decision tree want next, and what makes it: guards, builders and `on_resolved`.

All of them are functions of the run, plain or async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from inspect import isawaitable
from typing import Any, Final, TypeAlias, TypeVar

from plancast.decisions.decision import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PlannerAction,
    PlannerDecision,
    PublishAction,
    WaitAction,
)
from plancast.errors import InvalidDecision, InvalidPlannerConfig
from plancast.json_values.limits import shown
from plancast.planners.contract import RunContext
from plancast.tasks.model import GroupCompletion

__all__ = [
    "Builder",
    "Claim",
    "Guard",
    "OnResolved",
    "as_claim",
    "as_object",
    "as_reason",
    "built",
    "holds",
    "required",
]

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Builder: TypeAlias = Callable[[RunContext], T | Awaitable[T]]
"""Makes something of a run; plain or async."""
Guard: TypeAlias = Builder[bool]
"""Whether a step has anything to do with a run as it stands; None is always."""
Claim: TypeAlias = PlannerDecision | PlannerAction | None
"""What a step wants next; None leaves it to the next step."""
OnResolved: TypeAlias = Callable[[RunContext, GroupCompletion], Claim | Awaitable[Claim]]
"""What comes next, now that it is known how a group ended; None leaves it to the next step."""

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
    """A claim, checked.

    Raises:
        InvalidDecision: it is neither a decision nor an action of the union nor None.
    """
    if value is None or isinstance(value, _CLAIMS):
        return value
    raise InvalidDecision(f"the claim: got {shown(value)}, allowed: a PlannerDecision, one of its actions, or None")


async def holds(when: Guard | None, run: RunContext) -> bool:
    """Whether a guard lets a step act; no guard does."""
    return when is None or bool(await built("when", when, run))


async def built(field: str, builder: Callable[..., Any] | None, *given: Any) -> Any:
    """What a builder makes.

    Raises:
        InvalidPlannerConfig: it is missing, or no function.
    """
    required(**{field: builder})
    assert builder is not None
    made = builder(*given)
    return await made if isawaitable(made) else made


def required(**functions: object) -> None:
    """Refuse functions that are missing, by the names of the fields that they should be in.

    Raises:
        InvalidPlannerConfig: one is missing, or no function.
    """
    for field, function in functions.items():
        if not callable(function):
            got = "nothing" if function is None else shown(function)
            raise InvalidPlannerConfig(f"{field}: got {got}, allowed: a function, plain or async")


def as_object(field: str, value: object) -> dict[str, Any]:
    """What a builder made, when it is an object.

    Raises:
        InvalidDecision: it is not.
    """
    if not isinstance(value, Mapping):
        raise InvalidDecision(f"{field}: got {shown(value)}, allowed: an object")
    return dict(value)


def as_reason(kind: type[E], value: object) -> E:
    """A reason, given as itself or as its text.

    Raises:
        InvalidPlannerConfig: there is no such reason.
    """
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        got = "nothing" if value is None else shown(value)
        raise InvalidPlannerConfig(f"reason: got {got}, allowed: {', '.join(kind)}") from None
