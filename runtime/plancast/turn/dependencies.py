"""Plans that begin when others have ended: what they wait for, and how they learn of it.

A goal that names other plans makes a pending plan, whose first turn asks each of them to report its end. A plan that
ends tells all that have asked, as effects of its last turn. The last report begins the pending plan's goal.

A pending plan passes such requests on to the plans that it waits for, with the path that they have come. One that comes
back shows a cycle, whose plans fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plancast.context import GoalContext
from plancast.errors import InvalidGoal
from plancast.plan.context import PlanContext
from plancast.plan.control_events import BEGIN_AFTER, ENDED, FOLLOW, INJECT, MAX_AFTER, PAUSE, REDIRECT, RESUME
from plancast.plan.record import AFTER, FOLLOWERS, GOAL
from plancast.plan.status import PAUSED, PENDING
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord
from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.subjects import encode_token

MAX_FOLLOWERS: Final = 1_000
"""Plans that may wait for one plan; a further one fails."""
UNKNOWN, CROWDED, CYCLE = "unknown", "crowded", "cycle"
"""Answers to a plan that asks for the end of another one, in place of a status."""
PATH, WAITING = "path", "waiting"
"""The plans through which a request to follow has come; those that are known to wait for a deferred plan."""
_WHY: Final = {
    UNKNOWN: "is unknown, or was forgotten after its retention",
    CROWDED: f"is awaited by {MAX_FOLLOWERS} plans already",
}


async def defer(turn: TurnRecord, goal: GoalContext, after: Any) -> None:
    """Create the pending plan of a goal, which begins when the plans that ``after`` names have ended."""
    plan = await PlanContext.create_from_goal(goal, {})
    plan.planner_version = ""  # the code that is current when it begins
    plan.deadline = goal.deadline  # that of its planner counts from the time when it begins
    if fault := _fault_of(after, plan.correlation_id):
        await plan.fail(f"the plans to begin after cannot be read: {fault}")
        return
    names = list(dict.fromkeys(after))
    fields = {name: value for name, value in turn.event.to_wire().items() if name != "data"}
    plan.dependencies = {AFTER: names, GOAL: fields}
    for name in names:
        turn.outbox.send(_control(FOLLOW, name, {"plan": plan.correlation_id, "after": name}))


def is_deferred(plan: PlanContext) -> bool:
    """True if the plan waits for others to end before its goal begins."""
    return GOAL in plan.dependencies


def goal_of(plan: PlanContext) -> EventEnvelope:
    """The goal event of a deferred plan."""
    return EventEnvelope.model_validate({**plan.dependencies[GOAL], "data": plan.goal_data})


async def take_deferred(turn: TurnRecord, plan: PlanContext) -> TurnOutcome | None:
    """Apply an event to a deferred plan; None when its goal is to begin now, UNKNOWN for an event of another kind."""
    event = turn.event
    if event.topic != EventTopic.PLAN_EVENTS:
        return TurnOutcome.UNKNOWN
    data = event.data if isinstance(event.data, dict) else {}
    after: list[str] = plan.dependencies[AFTER]
    if event.type == ENDED:
        name, status = data.get("plan"), data.get("status")
        if name not in after:
            return turn.ignored(f"the plan does not wait for {name!r:.80}")
        if status in _WHY:
            await plan.fail(f"it was to begin after plan {name}, which {_WHY[status]}")
            return TurnOutcome.COMMIT
        if status == CYCLE and plan.correlation_id in (cycle := _path(data.get(CYCLE))):
            return await _fail_in_cycle(plan, cycle)
        after.remove(name)
        turn.notes.append(f"plan {name} is {status!s:.40}")
    elif event.type == RESUME and plan.status is PAUSED:
        plan.status, plan.pause_reason = PENDING, None
    elif event.type == REDIRECT and isinstance(data.get("goal_data"), dict):
        try:
            turn.environment.check_goal(plan.goal_event, data["goal_data"])
        except InvalidGoal as error:
            return turn.refused(str(error))
        plan.goal_data = data["goal_data"]
    elif event.type == PAUSE and plan.status is not PAUSED:
        await plan.pause(str(data.get("reason") or "paused"))
    elif event.type == INJECT:
        return turn.ignored("the plan has not begun, and has nothing to see it")
    else:
        return TurnOutcome.UNKNOWN
    return None if plan.status is PENDING and not after else TurnOutcome.COMMIT


async def add_follower(turn: TurnRecord, plan: PlanContext) -> TurnOutcome:
    """Remember a plan that waits for the end of this one; answer it at once when that cannot be."""
    follower, name = _read(turn.event)
    if not follower:
        return turn.refused("a request to follow names no plan")
    path = _path(turn.event.data.get(PATH)) or [follower]
    followers: list[list[str]] = plan.dependencies.setdefault(FOLLOWERS, [])
    is_new = [follower, name] not in followers
    if is_new and len(followers) >= MAX_FOLLOWERS:
        return answer_follower(turn, CROWDED)
    if is_new:
        followers.append([follower, name])
    if is_deferred(plan):
        if plan.correlation_id in path:
            return await _fail_in_cycle(plan, path[path.index(plan.correlation_id) :])
        is_new = _pass_on(turn, plan, path) or is_new
    return TurnOutcome.COMMIT if is_new else turn.ignored("that plan is told already")


def _pass_on(turn: TurnRecord, plan: PlanContext, path: list[str]) -> bool:
    """Tell the plans that a deferred plan waits for which others wait for it; False if they know."""
    known: list[str] = plan.dependencies.setdefault(WAITING, [])
    new = [each for each in path if each not in known]
    if not new or len(path) >= MAX_AFTER or len(known) + len(new) > MAX_FOLLOWERS:
        return False
    known += new
    own = plan.correlation_id
    for name in plan.dependencies[AFTER]:
        turn.outbox.send(_control(FOLLOW, name, {"plan": own, "after": name, PATH: [*path, own]}))
    return True


async def _fail_in_cycle(plan: PlanContext, cycle: list[str]) -> TurnOutcome:
    plan.dependencies[CYCLE] = cycle
    await plan.fail(f"it cannot begin, since it waits for itself: {' after '.join([*cycle, cycle[0]])}")
    return TurnOutcome.COMMIT


def answer_follower(turn: TurnRecord, status: str) -> TurnOutcome:
    """Answer a plan that waits for one that has ended or is not there, apart from the latter, which does not change."""
    follower, name = _read(turn.event)
    if not follower:
        return turn.refused("a request to follow names no plan")
    turn.outbox.leave()
    turn.outbox.send(_control(ENDED, follower, {"plan": name, "status": status}))
    return TurnOutcome.EMIT


def is_follow(event: EventEnvelope) -> bool:
    """True if a plan asks to be told when the plan of this event has ended."""
    return event.type == FOLLOW and event.topic == EventTopic.PLAN_EVENTS


def tell_followers(turn: TurnRecord, plan: PlanContext) -> None:
    """Tell the plans that wait for a plan that it has ended."""
    cycle = plan.dependencies.get(CYCLE)
    ended = {"status": CYCLE, CYCLE: cycle} if cycle else {"status": str(plan.status)}
    for follower, name in plan.dependencies.get(FOLLOWERS, ()):
        turn.outbox.send(_control(ENDED, follower, {"plan": name, **ended}))
    plan.dependencies = {}


def _control(event_type: str, plan: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": event_type, "topic": EventTopic.PLAN_EVENTS, "correlation_id": plan, "data": dict(data)}


def _read(event: EventEnvelope) -> tuple[str, str]:
    """The plan that asks, and the id under which it knows the other one; empty when they cannot be read."""
    data = event.data if isinstance(event.data, dict) else {}
    follower, name = data.get("plan"), data.get("after")
    return ("", "") if any(_faults((follower, name))) else (str(follower), str(name))


def _path(ids: Any) -> list[str]:
    """The plans that a request to follow has come through, or those of a cycle; empty when they cannot be read."""
    return [str(each) for each in ids] if isinstance(ids, list) and not any(_faults(ids)) else []


def _fault_of(after: Any, own: str) -> str:
    if not isinstance(after, list) or not 0 < len(after) <= MAX_AFTER:
        return f"metadata.{BEGIN_AFTER} must be a list of 1 to {MAX_AFTER} plan ids"
    return f"a plan cannot begin after itself ({own})" if own in after else next(_faults(after), "")


def _faults(ids: Any) -> Iterator[str]:
    for each in ids:
        try:
            encode_token(each) if isinstance(each, str) else None
        except InvalidSubject as error:
            yield str(error)
        if not isinstance(each, str):
            yield f"{each!r:.40} is no plan id"
