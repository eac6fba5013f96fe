"""What control events do to a plan: each is a turn of its own, between the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from plancast.decisions.actions import FinishReason
from plancast.plan.context import PlanContext
from plancast.plan.control_events import (
    CANCEL,
    INJECT,
    PAUSE,
    REDIRECT,
    REJECT,
    RESUME,
    WAKE,
    cancel_reason,
    given_reason,
)
from plancast.plan.record import WAITING_FOR
from plancast.plan.status import PlanStatus
from plancast.turn.environment import Verdict
from plancast.turn.stall import wake

if TYPE_CHECKING:
    from plancast.turn.turn import Turn

MAX_INJECTED: Final = 16
"""Newest pieces of injected context that a plan holds until its planner has seen them."""


async def _cancel(turn: Turn, plan: PlanContext) -> Verdict:
    await plan.cancel(cancel_reason(turn.event))
    return Verdict.COMMIT


async def _reject(turn: Turn, plan: PlanContext) -> Verdict:
    await plan.fail(f"{FinishReason.CONSTRAINTS_CONFLICT}: {given_reason(turn.event, 'rejected')}")
    return Verdict.COMMIT


async def _pause(turn: Turn, plan: PlanContext) -> Verdict:
    reason = given_reason(turn.event, "paused")
    if plan.status is not PlanStatus.PAUSED:
        await plan.pause(reason)
    elif plan.decider and WAITING_FOR in plan.results:
        plan.control["pause"] = reason
        turn.notes.append("the plan is held when what it waits for has come")
    else:
        return turn.ignored("the plan is paused already")
    return Verdict.COMMIT


async def _redirect(turn: Turn, plan: PlanContext) -> Verdict:
    goal_data = turn.event.data.get("goal_data") if isinstance(turn.event.data, dict) else None
    if not isinstance(goal_data, dict):
        return turn.refused("a redirect's data is {'goal_data': an object}")
    plan.goal_data = goal_data
    if plan.decider:
        plan.control["redirect_goal"] = goal_data
    return Verdict.COMMIT


async def _inject(turn: Turn, plan: PlanContext) -> Verdict:
    if not isinstance(turn.event.data, dict) or "context" not in turn.event.data:
        return turn.refused("an injection's data is {'context': ...}")
    injected = plan.control if plan.decider else plan.results
    injected["injected"] = [*injected.get("injected", ()), turn.event.data["context"]][-MAX_INJECTED:]
    return Verdict.COMMIT


async def _resume(turn: Turn, plan: PlanContext) -> Verdict:
    if plan.status is not PlanStatus.PAUSED:
        return turn.ignored("the plan is not paused")
    if (missing := turn.environment.missing_code(plan)) is not None:
        await plan.fail(missing)
        return Verdict.COMMIT
    plan.control.pop("pause", None)
    waited = WAITING_FOR in plan.results
    data = turn.event.data
    said = data["input"] if isinstance(data, dict) and "input" in data else data
    await plan.resume(said)
    deciding = turn.deciding(plan)
    if deciding is not None:
        await deciding.on_resume(waited, said)
    return Verdict.COMMIT


async def _wake(turn: Turn, plan: PlanContext) -> Verdict:
    if await wake(turn, plan):
        return Verdict.COMMIT
    return turn.ignored("the plan waits for something, or for its own code")


CONTROLS: Final[dict[str, Callable[[Turn, PlanContext], Awaitable[Verdict]]]] = {
    CANCEL: _cancel,
    REJECT: _reject,
    PAUSE: _pause,
    RESUME: _resume,
    REDIRECT: _redirect,
    INJECT: _inject,
    WAKE: _wake,
}
"""What each control event does, by its type; all of them come on the topic ``plan-events``."""
