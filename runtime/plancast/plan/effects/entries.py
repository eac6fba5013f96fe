"""Effects of a plan: the outcomes of what its tasks did outside, as their answers name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self

from plancast.effects.effect import idempotency_key
from plancast.plan.status import PAUSED, RUNNING
from plancast_bus.events.envelope import EventEnvelope, EventTopic

if TYPE_CHECKING:
    from plancast.plan.record import PlanRecord
    from plancast.plan.requests import Request

DONE, FAILED, UNKNOWN, UNDONE = "done", "failed", "unknown", "undone"
"""Outcomes of an effect."""
OUTCOMES: Final = frozenset((DONE, FAILED, UNKNOWN, UNDONE))
WITHDRAWN: Final = "withdrawn"
"""Outcome in an answer to a withdrawn request of which nothing was begun: it has no effect of its own."""
NOT_DONE, GIVE_UP = "not_done", "give_up"
DECISIONS: Final = (DONE, NOT_DONE, GIVE_UP)
"""Decisions of people about an unknown effect."""
PENDING: Final = "pending"
"""Outcome of an effect in lists whose task is not answered yet."""
EFFECTS_UNKNOWN: Final = "effects_unknown"
"""Search attribute of plans with an effect that a person has to decide about; see :mod:`plancast.plan.effects`."""
MAX_REASON: Final = 500
"""Longest reason of a pause for an effect, in characters."""
ABOUT: Final = "about"
"""Key of a decision's data: the number of the attempt that the person has seen, or :data:`ABOUT_UNDO`."""
ABOUT_UNDO: Final = "undo"
"""A decision about a failed undo, and not about the outcome of an attempt."""
HELD: Final = "effects"
"""Name in a plan's ``control``: the requests with an unknown outcome for which the plan is paused."""
EFFECT_UNKNOWN: Final = "plan.effect_unknown"
"""System event: the outcome of an effect is not known."""
_NEXT: Final = {
    DONE: frozenset((UNDONE,)),
    FAILED: frozenset((DONE,)),
    UNKNOWN: frozenset((DONE, FAILED, UNDONE)),
    UNDONE: frozenset[str](),
}
"""Outcomes that may follow one of the same request: a repeated or late answer never makes a known outcome unknown."""


@dataclass(slots=True)
class EffectEntry:
    """One effect of a plan, by the id of the request that it answers; the revision that sent it is in that id."""

    event_type: str
    """Type of the task."""
    key: str
    address: str
    """Key of its record in the ledger of the task type."""
    outcome: str
    """``done``, ``failed``, ``unknown`` or ``undone``."""
    undo: bool = False
    """True if its worker can undo it."""
    answered: int = 0
    """Revision of the turn that took the answer."""
    reason: str = ""
    """Why it is unknown or has failed, for people."""
    result: Any = None
    """Data of the answer of a done one."""
    response_event: str = ""
    """Type of the answer that the request has asked for."""
    decision: str = ""
    """A person's decision that is on its way to the worker: ``done``, ``not_done`` or ``give_up``; empty: none."""
    given_up: bool = False
    """True if a person has given it up: it has failed, and may have been done."""
    decided: str = ""
    """Id of the request that carries it."""
    waits_for: str = ""
    """Id of the request of another task of the key, for whose outcome this one waits; it was not begun."""
    owner: str = ""
    """Plan to which the effect belongs, where it is another one: it is resolved and undone there."""
    attempt: int = 0
    """Number of the attempt whose end was told last; 0 where it was not said."""

    _stored: tuple[tuple[Any, ...], dict[str, Any]] = field(default=((), {}), init=False, repr=False, compare=False)
    """All fields as :meth:`to_state` has found them, and its result: the same object is not folded again."""

    def to_state(self) -> dict[str, Any]:
        """The entry as plain values, without fields that hold their default."""
        values = _VALUES(self)
        if values != self._stored[0]:
            given = zip(_DEFAULTS.items(), values, strict=True)
            state = {name: value for (name, default), value in given if value is not default and value != default}
            self._stored = values, state
        return self._stored[1]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The entry from its stored form; fields of later versions are ignored."""
        return cls(**{name: value for name, value in stored.items() if name in _DEFAULTS})

    def may_become(self, outcome: str) -> bool:
        """True if an answer with this outcome may replace the entry's."""
        return outcome in _NEXT.get(self.outcome, ())


_DEFAULTS: Final = {each.name: each.default for each in fields(EffectEntry) if each.init}
_VALUES: Final = attrgetter(*_DEFAULTS)


def is_unknown(plan: PlanRecord, request_id: str | None) -> bool:
    """True if the outcome of the effect of a request is not known."""
    entry = plan.effects.get(request_id) if request_id is not None else None
    return entry is not None and entry.outcome == UNKNOWN


def effect_now(plan: PlanRecord, task: str) -> str:
    """The id under which a plan lists the effect of a task: a further request of its key, which waits for it, may have
    taken its place since a person saw it."""
    if task in plan.effects:
        return task
    waiting = (key for key, entry in plan.effects.items() if entry.waits_for == task and not entry.owner)
    return next(waiting, task)


def is_outdated(decision: Mapping[str, Any], attempt: int | None) -> bool:
    """True if a person's decision is about something else than what there is to decide.

    Args:
        decision: The data of the decision; one that does not say what it is about is taken as it is.
        attempt: Number of the attempt whose end is not known; None: an undo has failed.
    """
    about = decision.get(ABOUT)
    if attempt is None:
        return type(about) is int
    return about == ABOUT_UNDO or (type(about) is int and 0 < about < attempt)


def has_unknown(plan: PlanRecord) -> bool:
    """True if the outcome of any effect of a plan is not known."""
    return any(entry.outcome == UNKNOWN for entry in plan.effects.values())


def repeated(plan: PlanRecord, event_types: Collection[str]) -> str | None:
    """Id of a request with an unknown or given up outcome that such a task would repeat; None: there is none.

    Where tasks are compared by a key of the app, the ledger holds the second one back. Without one, every task is an
    effect of its own.
    """
    for request_id, entry in plan.effects.items():
        if (entry.outcome == UNKNOWN or entry.given_up) and entry.event_type in event_types:
            fields: dict[str, Any] = {"id": request_id, "tenant_id": plan.tenant_id or None, "goal_id": plan.goal_id}
            request = EventEnvelope(source="", type=entry.event_type, topic=EventTopic.ACTION_REQUESTS, **fields)
            if entry.key == idempotency_key(request):
                return request_id
    return None


def is_given_up(plan: PlanRecord, request_id: str | None) -> bool:
    """True if a person has given the effect of a request up: it may have been done, and is not begun again."""
    entry = plan.effects.get(request_id) if request_id is not None else None
    return entry is not None and entry.given_up


def waits_for_effects(plan: PlanRecord) -> bool:
    """True if a plan is paused until the outcomes of effects are known."""
    return plan.status is PAUSED and HELD in plan.control


def held_for(plan: PlanRecord) -> list[str]:
    """Ids of the requests for whose outcomes a plan is paused; those of a planner that decides are not open."""
    held = [each for each in plan.control.get(HELD, ()) if is_unknown(plan, each)]
    return held if plan.decider else [each for each in held if each in plan.requests]


def hold_for_others(plan: PlanRecord) -> None:
    """Pause a plan that a planner decides while its requests wait for outcomes of other tasks that are not known."""
    if plan.status is RUNNING or waits_for_effects(plan):
        for request_id in plan.requests:
            if is_unknown(plan, request_id) and plan.effects[request_id].waits_for:
                pause_for(plan, request_id)


def hold(plan: PlanRecord, request_id: str, request: Request) -> None:
    """Pause a plan until the outcome of the effect of this request is known; the request stays open."""
    plan.requests[request_id] = request
    pause_for(plan, request_id)


def pause_for(plan: PlanRecord, request_id: str) -> None:
    """Pause a plan until the outcome of the effect of this request is known."""
    plan.control[HELD] = list(dict.fromkeys((*plan.control.get(HELD, ()), request_id)))
    plan.status, plan.unmoved = PAUSED, ""
    first, *others = held_for(plan)
    entry = plan.effects[first]
    more = f" (and {len(others)} more)" if others else ""
    plan.pause_reason = f"effect_unknown: {entry.event_type}, {entry.key}: {entry.reason}"[:MAX_REASON] + more
