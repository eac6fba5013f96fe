"""Checks of sequential calls: shape, identity, control and memory."""

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
    error_text,
    own_registry,
    plain,
    sound,
)
from plancast.testing.conformance.scripted_reasoner import GOOD


async def check_name(bench: Bench) -> str:
    """The planner has a name."""
    name = getattr(await bench.fresh(), "name", None)
    if not isinstance(name, str) or not name.strip():
        raise NotConforming(f"name is {name!r:.80}, expected a non-empty string")
    return repr(name)


async def check_wake_mode(bench: Bench) -> str:
    """The declared wake mode exists and is the resolved one."""
    planner = await bench.fresh()
    declared = getattr(planner, "wake_mode", None)
    mode = resolve_wake_mode(planner)
    return str(mode) if declared is not None else f"{mode}, the default"


async def check_known_shape(bench: Bench) -> str:
    """Each call returns one executable decision, whatever the model answers."""
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
    """`PlannerAction` has six actions, and `check_decision` rejects any other."""
    union = set(get_args(get_args(PlannerAction)[0]))
    if union != set(ACTIONS):
        raise NotConforming(f"PlannerAction consists of {', '.join(sorted(each.__name__ for each in union))}")

    class Foreign(BaseModel):
        action: Literal["foreign"] = "foreign"
        reasoning: str = "why not"

    for foreign in (Foreign(), {"action": "foreign"}, None):
        made = PlannerDecision.model_construct(next_action=foreign, reasoning="why not")  # type: ignore[arg-type]
        try:
            check_decision(made)
        except InvalidDecision:
            continue
        raise NotConforming(f"check_decision accepts the action {foreign!r}")
    return f"{len(union)} actions, foreign ones are rejected"


async def check_identity(bench: Bench) -> str:
    """A run without a complete identity is rejected."""
    planner = await bench.fresh()
    parts = ("tenant_id", "user_id", "session_id", "run_id")
    for part in parts:
        empty: dict[str, Any] = {part: ""} | ({"plan_id": ""} if part == "run_id" else {})
        try:
            decision = await bench.ask(planner, bench.run(planner, **empty))
        except IdentityRequired:
            continue
        except Exception as error:
            raise NotConforming(f"with an empty {part}: {error_text(error)}, not IdentityRequired") from error
        raise NotConforming(f"with an empty {part}: returned {named(decision)} instead of raising IdentityRequired")
    return f"IdentityRequired without each of {', '.join(parts)}"


async def check_cancelled(bench: Bench) -> str:
    """A cancelled run is completed as cancelled."""
    planner = await bench.fresh()
    decision = await bench.ask(planner, bench.run(planner, control=RunControl(cancelled=True)))
    action = sound(decision)
    if not isinstance(action, CompleteAction) or action.reason is not FinishReason.CANCELLED:
        raise NotConforming(f"with control.cancelled set: returned {named(decision)} instead of a complete (cancelled)")
    return "complete (cancelled)"


async def check_past_deadline(bench: Bench) -> str:
    """A run past its deadline gets a decision or BudgetExhausted."""
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
    """The planner keeps no state: the same run gets the same decision, also after another run."""
    planner = await bench.fresh()
    if own_registry(planner) is not None:
        return "keeps the tasks of its steps in the given registry, by run"
    decisions = []
    for who in (1, 2, 1):
        run = bench.run(planner, who)
        before = _shown_of(run)
        decisions.append(await bench.ask(planner, run))
        if _shown_of(run) != before:
            raise NotConforming("modified the given run")
    first, last = (plain(decisions[at]) for at in (0, 2))
    if first != last:
        raise NotConforming(f"the same run again, after another one: returned {last:.200}, before {first:.200}")
    return "the same run gets the same decision, also after another run"


def _shown_of(run: RunContext) -> str:
    """A run as text, without its tasks, which planners may add to."""
    return repr([getattr(run, each.name) for each in fields(run) if each.name != "tasks"])


def named(decision: object) -> str:
    try:
        action = action_of(decision)
    except NotConforming:
        return "None" if decision is None else f"a {type(decision).__name__}"
    return f"a complete ({action.reason})" if isinstance(action, CompleteAction) else f"a {action.action}"
