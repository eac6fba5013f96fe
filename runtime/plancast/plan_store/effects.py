"""Effects of stored plans: what their tasks did outside, and the outcomes that people have to tell."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

from plancast.errors import NotAwaited, PlancastError
from plancast.json_values.normalize import plain
from plancast.plan.control_events import NOT_GIVEN
from plancast.plan.effects.entries import (
    ABOUT,
    ABOUT_UNDO,
    DONE,
    EFFECTS_UNKNOWN,
    GIVE_UP,
    NOT_DONE,
    PENDING,
    UNKNOWN,
    EffectEntry,
)
from plancast.plan.effects.undo_list import BLOCKED
from plancast.plan.requests import Request
from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import CheckpointStore, PlanFilter, PlanSummary


@dataclass(frozen=True, slots=True)
class PlanEffect:
    """An effect of a plan's task."""

    task: str
    """Id of its request."""
    event_type: str
    """Type of the task."""
    key: str
    """Empty while the task is not answered."""
    outcome: str
    """``pending``, ``done``, ``failed``, ``unknown`` or ``undone``."""
    result: Any = None
    """Data of the answer of a done one."""
    reason: str = ""
    """Why it is unknown or has failed, or why the undo of a done one has failed."""
    plan: str = ""
    """Id of the plan."""
    undo: bool = False
    """True if its worker can undo it."""
    decision: str = ""
    """A person's decision, until the worker has recorded it: ``done``, ``not_done`` or ``give_up``."""
    undecided: bool = False
    """True if a person has to decide: its outcome is unknown, or its undo has failed for good."""
    about: int | str = 0
    """Subject of a decision now: the number of the last attempt (0: it is not said), or ``undo`` for a failed undo.
    A decision that names it is none about what has followed since."""


class ListedEffect(NamedTuple):
    """An effect in a listing of plans."""

    plan: PlanSummary
    effect: PlanEffect


def effects_of(state: Mapping[str, Any], effect_types: Collection[str] = ()) -> list[PlanEffect]:
    """The effects of a plan, as they were answered, then those of open requests.

    Args:
        state: The plan's stored fields.
        effect_types: Task types with an effect; requests of other types are not listed while they are open.
    """
    plan, stored = str(state.get("plan_id") or ""), state.get("effects") or {}
    entries = {task: EffectEntry.read(fields) for task, fields in stored.items()}
    blocked = _failed_undos(state)
    answered = [
        PlanEffect(
            task,
            each.event_type,
            each.key,
            each.outcome,
            each.result,
            blocked.get(task, each.reason),
            plan,
            each.undo,
            each.decision,
            task in blocked or (each.outcome == UNKNOWN and not each.decision and not each.owner),
            ABOUT_UNDO if task in blocked else each.attempt,
        )
        for task, each in entries.items()
    ]
    requests = {task: Request.read(values) for task, values in (state.get("requests") or {}).items()}
    pending = [
        PlanEffect(task, each.event_type, "", PENDING, plan=plan)
        for task, each in requests.items()
        if task not in entries and each.event_type in effect_types
    ]
    return answered + pending


async def effect_types(bus: Bus) -> frozenset[str]:
    """The task types of the deployed apps that have an effect; empty if this login may not read them.

    Raises:
        BusUnavailable: the registry cannot be read.
    """
    try:
        apps = await bus.registry.list("app")
    except AccessDenied:
        return frozenset()
    return frozenset(each for app in apps.values() for each in app.get("effects") or ())


async def list_effects(
    checkpoints: CheckpointStore,
    *,
    outcome: str | None = UNKNOWN,
    tenant_id: str | None = None,
    session_id: str | None = None,
    goal_event: str | None = None,
    planner: str | None = None,
    text: str | None = None,
    types: Collection[str] = (),
) -> AsyncGenerator[ListedEffect]:
    """List the effects of all plans, those of the most recently changed plan first.

    Only plans with effects that a person has to decide about are read, unless others are wanted. The caller stops when
    it has enough.

    Args:
        checkpoints: The store.
        outcome: Only effects with this outcome; with ``unknown`` also those whose undo has failed. None: all.
        tenant_id: Only plans of this tenant.
        session_id: Only plans of this session.
        goal_event: Only plans of this goal.
        planner: Only plans of this planner.
        text: Only plans with this text in an id, their goal, state or planner.
        types: Task types with an effect, for those that are pending.

    Raises:
        BusUnavailable: the store cannot be reached.
    """
    having = ((EFFECTS_UNKNOWN, "true"),) if outcome == UNKNOWN else ()
    wanted = PlanFilter(None, session_id, tenant_id, goal_event, text or None, having)
    async with aclosing(checkpoints.newest(wanted)) as plans:
        async for committed in plans:
            if planner not in (None, committed.summary.planner):
                continue
            for effect in effects_of(await _state(checkpoints, committed.correlation_id), types):
                if is_wanted(effect, outcome):
                    yield ListedEffect(committed.summary, effect)


def is_wanted(effect: PlanEffect, outcome: str | None) -> bool:
    """True if a list of effects with an outcome has this one; None: any."""
    return outcome in (None, effect.outcome) or (outcome == UNKNOWN and effect.undecided)


async def _state(checkpoints: CheckpointStore, correlation_id: str) -> Mapping[str, Any]:
    """The stored fields of a plan; of one that cannot be read only an id."""
    try:
        checkpoint = await checkpoints.load(correlation_id)
        state = unpack(checkpoint.state) if checkpoint is not None else None
    except BusUnavailable:
        raise
    except PlancastError:
        state = None
    return state if isinstance(state, dict) else {"plan_id": correlation_id}


def decision_about(
    state: Mapping[str, Any],
    task: str,
    *,
    done: Any = NOT_GIVEN,
    not_done: bool = False,
    give_up: bool = False,
    about: int | str | None = None,
) -> dict[str, Any]:
    """The data of the control event by which a person tells the outcome of an effect, or of its undo.

    Args:
        state: The plan's stored fields; empty if they may not be read.
        task: Id of the effect's request.
        done: It was done, with this result; or it was undone.
        not_done: It was not done, and may be begun again; nor was its undo.
        give_up: It is not to be known, and the task fails; or the effect is left as it is.
        about: :attr:`PlanEffect.about` as the person has seen it; None: what the stored fields say.

    Raises:
        TypeError: not exactly one of the three is given, or the result has no JSON form.
        NotAwaited: the plan has no such effect, its outcome is known, a decision about it is on its way, or there is
            something else to decide about by now.
    """
    given: list[Any] = [done is not NOT_GIVEN, not_done, give_up]
    if not all(isinstance(each, bool) for each in given) or sum(given) != 1:
        raise TypeError("give exactly one of done=RESULT, not_done=True and give_up=True")
    decision: dict[str, Any] = {"task": task}
    if state:
        now = _undecided(state, task)
        if about not in (None, now):
            raise NotAwaited(
                f"the effect of task {task} of plan {state.get('plan_id')} has changed since it was looked at: "
                f"decide about {'its undo' if now == ABOUT_UNDO else f'attempt {now}'} now"
            )
        about = now
    if about is not None:
        decision[ABOUT] = about
    if done is not NOT_GIVEN:
        return decision | {"outcome": DONE, "result": plain(done)}
    return decision | {"outcome": NOT_DONE if not_done else GIVE_UP}


def _failed_undos(state: Mapping[str, Any]) -> Mapping[str, str]:
    """Why undos have failed that a person has to decide about, by the tasks of their effects."""
    return (state.get("rollback") or {}).get(BLOCKED) or {}


def _undecided(state: Mapping[str, Any], task: str) -> int | str:
    """The number of the attempt whose end is not known, or :data:`ABOUT_UNDO`.

    Raises:
        NotAwaited: there is nothing to decide.
    """
    plan = state.get("plan_id")
    if task in _failed_undos(state):
        return ABOUT_UNDO
    effects = {each.task: each for each in effects_of(state)}
    if task not in effects:  # a further request may have taken its place (:func:`plancast.plan.effects.effect_now`)
        stored = state.get("effects", {}).items()
        task = next((key for key, each in stored if each.get("waits_for") == task and not each.get("owner")), task)
    found = effects.get(task)
    if found is None:
        unknown = [each.task for each in effects.values() if each.outcome == UNKNOWN]
        listed = f"its unknown ones are {', '.join(unknown)}" if unknown else "it has no unknown one"
        raise NotAwaited(f"plan {plan} has no effect of the task {task!r:.200} that is answered; {listed}")
    if found.outcome != UNKNOWN:
        raise NotAwaited(f"the effect of task {task} of plan {plan} is {found.outcome}: there is nothing to tell")
    if owner := state["effects"][task].get("owner"):
        raise NotAwaited(f"the effect of task {task} of plan {plan} is one of plan {owner}: resolve it there")
    if found.decision:
        raise NotAwaited(f"the effect of task {task} of plan {plan} was decided already: {found.decision}")
    attempt: int = state["effects"][task].get("attempt", 0)
    return attempt
