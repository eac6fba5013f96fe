"""What the conformance kit checks of calls that follow each other: shape, identity, control, memory."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any, Literal, get_args

from pydantic import BaseModel

from plancast.decisions.actions import CompleteAction, FinishReason, PlannerAction
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.errors import BudgetExhausted, IdentityRequired, InvalidDecision
from plancast.planners.contract import RunBudget, RunContext, RunControl, resolve_wake_mode
from plancast.testing.conformance.driver import MOST_STEPS, Drive
from plancast.testing.conformance.harness import (
    ACTIONS,
    Bench,
    NotConforming,
    action_of,
    own_registry,
    plain,
    sound,
    told,
)
from plancast.testing.conformance.scripted_reasoner import GOOD


async def check_name(bench: Bench) -> str:
    """It has a name."""
    name = getattr(await bench.fresh(), "name", None)
    if not isinstance(name, str) or not name.strip():
        raise NotConforming(f"name is {name!r:.80}, allowed: a text that is not empty")
    return repr(name)


async def check_wake_mode(bench: Bench) -> str:
    """The declared wake mode exists, and is the resolved one."""
    planner = await bench.fresh()
    declared = getattr(planner, "wake_mode", None)
    mode = resolve_wake_mode(planner)
    return str(mode) if declared is not None else f"{mode}, as none is declared"


async def check_known_shape(bench: Bench) -> str:
    """Runs from their goal on, whatever the model says: each call gives one decision that can be carried out."""
    planner = await bench.fresh()
    seen: dict[str, int] = {}
    for script in GOOD.values():
        drive = Drive(bench.run(planner), bench.answers)
        for _ in range(MOST_STEPS):
            decision = await bench.ask(planner, drive.run, script)
            kind = str(sound(decision).action)
            seen[kind] = seen.get(kind, 0) + 1
            drive.take(decision)
            if drive.ended:
                break
    return ", ".join(f"{count} {kind}" for kind, count in seen.items())


async def check_closed_union(bench: Bench) -> str:
    """There are six actions, and no seventh gets past `check_decision`."""
    union = set(get_args(get_args(PlannerAction)[0]))
    if union != set(ACTIONS):
        raise NotConforming(f"PlannerAction has {', '.join(sorted(each.__name__ for each in union))}")

    class Foreign(BaseModel):
        action: Literal["foreign"] = "foreign"
        reasoning: str = "why not"

    for foreign in (Foreign(), {"action": "foreign"}, None):
        made = PlannerDecision.model_construct(next_action=foreign, reasoning="why not")  # type: ignore[arg-type]
        try:
            check_decision(made)
        except InvalidDecision:
            continue
        raise NotConforming(f"check_decision lets the action {foreign!r} pass")
    return f"{len(union)} actions, and a foreign one is refused"


async def check_identity(bench: Bench) -> str:
    """A run that lacks a part of its identity is refused."""
    planner = await bench.fresh()
    parts = ("tenant_id", "user_id", "session_id", "run_id")
    for part in parts:
        empty: dict[str, Any] = {part: ""} | ({"plan_id": ""} if part == "run_id" else {})
        try:
            decision = await bench.ask(planner, bench.run(planner, **empty))
        except IdentityRequired:
            continue
        except Exception as error:
            raise NotConforming(f"with an empty {part}: {told(error)}, not IdentityRequired") from error
        raise NotConforming(f"with an empty {part}: gave {named(decision)} instead of raising IdentityRequired")
    return f"IdentityRequired without each of {', '.join(parts)}"


async def check_cancelled(bench: Bench) -> str:
    """A cancelled run is finished as cancelled."""
    planner = await bench.fresh()
    decision = await bench.ask(planner, bench.run(planner, control=RunControl(cancelled=True)))
    action = sound(decision)
    if not isinstance(action, CompleteAction) or action.reason is not FinishReason.CANCELLED:
        raise NotConforming(f"control.cancelled is set: gave {named(decision)} instead of a complete (cancelled)")
    return "complete (cancelled)"


async def check_past_deadline(bench: Bench) -> str:
    """A run whose time is up gets a decision, or BudgetExhausted: never nothing."""
    planner = await bench.fresh()
    run = bench.run(planner)
    run = bench.run(planner, budget=RunBudget(deadline=run.now - timedelta(hours=1)))
    try:
        decision = await bench.ask(planner, run)
    except BudgetExhausted:
        return "BudgetExhausted"
    sound(decision)
    return named(decision)


async def check_keeps_nothing(bench: Bench) -> str:
    """Asked about one run, another one and the first again, it says of the first what it said before."""
    planner = await bench.fresh()
    if own_registry(planner) is not None:
        return "keeps what its steps do in the registry that it was given, for each run"
    decisions = []
    for who in (1, 2, 1):
        run = bench.run(planner, who)
        before = _shown_of(run)
        decisions.append(await bench.ask(planner, run))
        if _shown_of(run) != before:
            raise NotConforming("has written into the run that it was shown")
    first, last = (plain(decisions[at]) for at in (0, 2))
    if first != last:
        raise NotConforming(f"the same run, asked about again after another one: gave {last:.200}, before {first:.200}")
    return "the same run gives the same decision, also after another one"


def _shown_of(run: RunContext) -> str:
    """A run as text, but for its tasks, which planners may add to."""
    return repr([getattr(run, each.name) for each in fields(run) if each.name != "tasks"])


def named(decision: object) -> str:
    """A decision in a word or two."""
    try:
        action = action_of(decision)
    except NotConforming:
        return "None" if decision is None else f"a {type(decision).__name__}"
    return f"a complete ({action.reason})" if isinstance(action, CompleteAction) else f"a {action.action}"
