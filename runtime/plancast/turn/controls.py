"""Applies control events to a plan, each in a turn of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from plancast.decisions.actions import FinishReason
from plancast.errors import InvalidGoal
from plancast.plan.context import PlanContext
from plancast.plan.control_events import (
    CANCEL,
    FOLLOW,
    INJECT,
    PAUSE,
    REDIRECT,
    REJECT,
    RESOLVE_EFFECT,
    RESUME,
    ROLLBACK,
    ROLLED_BACK,
    TURNS_LOST,
    WAKE,
    cancel_reason,
    given_reason,
)
from plancast.plan.effects.entries import waits_for_effects
from plancast.plan.record import HELD_WAIT, HOLD, WAITING_FOR, is_held
from plancast.plan.status import PlanStatus
from plancast.planner_turn.autonomous import autonomous_turn
from plancast.turn.dependencies import add_follower
from plancast.turn.effects import resolve_effect
from plancast.turn.rollback import start_rollback
from plancast.turn.stall import wake
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord

MAX_INJECTED: Final = 16
"""Newest injected values that a plan holds until its planner has seen them."""


async def _cancel(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    await plan.cancel(cancel_reason(turn.event))
    return TurnOutcome.COMMIT


async def _reject(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    await plan.fail(f"{FinishReason.CONSTRAINTS_CONFLICT}: {given_reason(turn.event, 'rejected')}")
    return TurnOutcome.COMMIT


async def _pause(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    reason, was_paused = given_reason(turn.event, "paused"), plan.status is PlanStatus.PAUSED
    if is_held(plan) or (was_paused and plan.decider and WAITING_FOR not in plan.results):
        return turn.ignored("the plan is paused already")
    if not was_paused:
        await plan.pause(reason)
    elif plan.decider:
        turn.notes.append("the plan is held when what it waits for has come")
    else:
        plan.control[HELD_WAIT] = True
        turn.notes.append("the plan is held; what it waits for is kept until it is resumed")
    if was_paused or not plan.decider:
        plan.control[HOLD] = reason
    return TurnOutcome.COMMIT


async def _redirect(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    goal_data = turn.event.data.get("goal_data") if isinstance(turn.event.data, dict) else None
    if not isinstance(goal_data, dict):
        return turn.refused("a redirect's data is {'goal_data': an object}")
    try:
        turn.environment.check_goal(plan.goal_event, goal_data)
    except InvalidGoal as error:
        return turn.refused(str(error))
    plan.goal_data = goal_data
    if plan.decider:
        plan.control["redirect_goal"] = goal_data
    return TurnOutcome.COMMIT


async def _inject(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    if not isinstance(turn.event.data, dict) or "context" not in turn.event.data:
        return turn.refused("an injection's data is {'context': ...}")
    injected = plan.control if plan.decider else plan.results
    injected["injected"] = [*injected.get("injected", ()), turn.event.data["context"]][-MAX_INJECTED:]
    return TurnOutcome.COMMIT


async def _resume(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    if plan.status is not PlanStatus.PAUSED:
        return turn.ignored("the plan is not paused")
    if (missing := turn.environment.missing_code(plan)) is not None:
        await plan.fail(missing)
        return TurnOutcome.COMMIT
    if waits_for_effects(plan) and not is_held(plan):
        return turn.unwanted(plan, f"a resume does not tell the outcome that the plan waits for ({plan.pause_reason})")
    data = turn.event.data
    asked = data.get("asked") if isinstance(data, dict) and "input" in data else None
    if asked is not None and (asked != (plan.pause_reason or "paused") or is_held(plan)):
        return turn.ignored("it answers what the plan asks no more")
    plan.control.pop(HOLD, None)
    waited = WAITING_FOR in plan.results
    data = data["input"] if isinstance(data, dict) and "input" in data else data
    if (plan.control.pop(HELD_WAIT, False) and (data is None or data == {})) or waits_for_effects(plan):
        turn.notes.append("the plan is held no more, and waits as before")
        return TurnOutcome.COMMIT
    await plan.resume(data)
    autonomous = autonomous_turn(turn, plan)
    if autonomous is not None:
        await autonomous.on_resume(waited, data)
    return TurnOutcome.COMMIT


async def _wake(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    if await wake(turn, plan):
        return TurnOutcome.COMMIT
    return turn.ignored("the plan waits for something, or for its own code")


async def _turns_lost(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    data = turn.event.data if isinstance(turn.event.data, dict) else {}
    lost, stored = data.get("revision"), data.get("stored")
    if type(lost) is not int or type(stored) is not int:
        return turn.refused("the data of a notice of lost turns is {'revision': an integer, 'stored': an integer}")
    if stored < lost:
        found = f"the server has lost turns of this plan: revision {lost} was committed, and {stored} was stored at its"
        found += " restart. What these turns have caused outside is not undone, and may be repeated"
    else:
        found = "the server's machine has lost power: what the plan's last tasks have done outside may be repeated"
    turn.notes.append(f"warning: {found}")
    return TurnOutcome.COMMIT


async def _resolve_effect(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    return resolve_effect(turn, plan)


async def _follow(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    return await add_follower(turn, plan)


async def _rolled_back(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    return turn.ignored("the plan is not being rolled back")


CONTROLS: Final[dict[str, Callable[[TurnRecord, PlanContext], Awaitable[TurnOutcome]]]] = {
    CANCEL: _cancel,
    REJECT: _reject,
    PAUSE: _pause,
    RESUME: _resume,
    REDIRECT: _redirect,
    INJECT: _inject,
    WAKE: _wake,
    TURNS_LOST: _turns_lost,
    RESOLVE_EFFECT: _resolve_effect,
    FOLLOW: _follow,
    ROLLBACK: start_rollback,
    ROLLED_BACK: _rolled_back,
}
"""Functions that apply control events of the topic ``plan-events``, by event type."""
