"""The one executor of decisions: whoever decided, it is carried out here, through ``context.bus`` and the plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from plancast.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions import PlannerDecision, check_decision
from plancast.definitions import EventDefinition
from plancast.errors import InvalidDecision
from plancast.groups import Group
from plancast.machine import base_of
from plancast.plan import WAIT_TIMEOUT, WAITING_FOR, PlanContext
from plancast.requests import WAIT, Request
from plancast_bus.envelope import EventTopic

WAITING_EVENT = "plan.waiting_for_input"
"""System event that tells people and services what a plan waits for."""


async def execute_decision(
    decision: PlannerDecision,
    context: Any,
    *,
    goal_event: Any = None,
    plan: PlanContext | None = None,
    definitions: Iterable[EventDefinition] = (),
) -> None:
    """Carry a decision out.

    Args:
        decision: Checked anew before anything is done.
        context: Its ``bus`` sends what is to be sent; inside a turn that is staged.
        goal_event: The goal, for the correlation and the response of a decision without a plan.
        plan: The plan; a WAIT needs it.
        definitions: What is known of the events that may be published: their answers.

    Raises:
        InvalidDecision: the decision cannot be carried out; nothing was done.
    """
    checked = check_decision(decision)
    action = checked.next_action
    known = {definition.event_type: definition for definition in definitions}
    if isinstance(action, PublishAction):
        await _publish(action, context, plan, goal_event, known)
    elif isinstance(action, CompleteAction):
        await _complete(action, checked, context, plan, goal_event)
    elif isinstance(action, WaitAction):
        await _wait(action, context, plan)
    elif isinstance(action, DelegateAction):
        await _delegate(action, context, plan, goal_event)
    elif isinstance(action, ParallelAction):
        await _parallel(action, context, plan, goal_event, known)
    elif plan is not None:
        _check_awaited(action, plan)


async def _publish(
    action: PublishAction, context: Any, plan: PlanContext | None, goal: Any, known: dict[str, EventDefinition]
) -> Any:
    return await _send(
        context,
        plan,
        goal,
        event_type=action.event_type,
        data=dict(action.data),
        topic=str(action.topic),
        response_event=_answer_of(action, known),
    )


def _answer_of(action: PublishAction, known: dict[str, EventDefinition]) -> str | None:
    """The event that answers a request; other topics are not answered."""
    if action.topic != EventTopic.ACTION_REQUESTS:
        return action.response_event
    definition = known.get(action.event_type)
    declared = definition.response_event if definition is not None else None
    base = base_of(action.event_type) or action.event_type
    return action.response_event or declared or f"{base}.completed"


async def _send(context: Any, plan: PlanContext | None, goal: Any, **said: Any) -> Any:
    correlation_id = plan.correlation_id if plan is not None else getattr(goal, "correlation_id", None)
    if isinstance(correlation_id, str):
        said["correlation_id"] = correlation_id
    return await context.bus.publish(**{name: value for name, value in said.items() if value is not None})


async def _complete(
    action: CompleteAction, decision: PlannerDecision, context: Any, plan: PlanContext | None, goal: Any
) -> None:
    reached = action.reason is FinishReason.GOAL
    why = decision.reasoning or action.reasoning
    error = None if reached else f"{action.reason}: {why}" if why else str(action.reason)
    if plan is not None:
        if reached:
            await plan.finalize(action.result)
        elif action.reason is FinishReason.CANCELLED:
            await plan.cancel(error or "cancelled")
        else:
            await plan.fail(error or str(action.reason))
        return
    if goal is None:
        raise InvalidDecision(
            "next_action: got a complete without a plan or a goal, allowed: one of them to answer for"
        )
    ending = "completed" if reached else "failed"
    await context.bus.respond(
        event_type=getattr(goal, "response_event", "") or f"{goal.event_type}.{ending}",
        data={
            "plan_id": decision.plan_id or goal.correlation_id,
            "status": ending,
            "result": action.result,
            "error": error,
        },
        correlation_id=goal.correlation_id,
    )


async def _wait(action: WaitAction, context: Any, plan: PlanContext | None) -> None:
    if plan is None:
        raise InvalidDecision(
            "next_action: got a wait without a plan; a WAIT action requires PlanContext for pause/resume"
        )
    plan.results[WAITING_FOR] = action.expected_event
    plan.results[WAIT_TIMEOUT] = action.timeout_seconds
    await plan.pause(reason=action.reason)
    published = context.bus.publish(
        topic=str(EventTopic.SYSTEM_EVENTS),
        event_type=WAITING_EVENT,
        data={
            "plan_id": plan.plan_id,
            "correlation_id": plan.correlation_id,
            "reason": action.reason,
            "pause_reason": str(action.pause_reason),
            "expected_event": action.expected_event,
            "timeout_seconds": action.timeout_seconds,
            "payload": dict(action.payload),
        },
    )
    event_id = await published if inspect.isawaitable(published) else published
    if isinstance(event_id, str) and action.timeout_seconds is not None:
        plan.requests[event_id] = Request(WAIT, action.expected_event, timeout=action.timeout_seconds)


async def _delegate(action: DelegateAction, context: Any, plan: PlanContext | None, goal: Any) -> None:
    base = action.goal_event
    await _send(
        context,
        plan,
        goal,
        event_type=action.goal_event,
        data=dict(action.goal_data),
        topic=str(EventTopic.ACTION_REQUESTS),
        response_event=f"{base}.completed",
    )


async def _parallel(
    action: ParallelAction, context: Any, plan: PlanContext | None, goal: Any, known: dict[str, EventDefinition]
) -> None:
    ids = [await _publish(branch, context, plan, goal, known) for branch in action.branches]
    members = [each for each in ids if isinstance(each, str) and plan is not None and each in plan.requests]
    if plan is None or not members:
        return
    needed = {"all": len(members), "first_success": 1}.get(action.join, action.n or len(members))
    group_id = f"group:{members[0]}"
    plan.groups[group_id] = Group(str(action.join), needed, members)
    for member in members:
        plan.requests[member].group = group_id


def _check_awaited(action: AwaitAction, plan: PlanContext) -> None:
    if action.group_id is not None and action.group_id not in plan.groups:
        known = ", ".join(plan.groups) or "none"
        raise InvalidDecision(f"next_action.group_id: got {action.group_id!r}, allowed: {known}")
    if action.task_id is not None and action.task_id not in plan.requests:
        known = ", ".join(plan.requests) or "none"
        raise InvalidDecision(f"next_action.task_id: got {action.task_id!r}, allowed: {known}")
