"""The one executor of decisions: whoever decided, it is carried out here, through ``context.bus`` and the plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from plancast.agents.definitions import EventDefinition
from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision, check_decision
from plancast.errors import InvalidDecision
from plancast.plan.context import PlanContext
from plancast.plan.record import WAIT_TIMEOUT, WAITING_FOR, tasks_of
from plancast.plan.requests import WAIT, Request
from plancast.state_machine.machine import base_of
from plancast.tasks.model import GroupState, Task, TaskState
from plancast.tasks.registry import TaskRegistry
from plancast.tasks.spec import SpawnSpec
from plancast_bus.errors import InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.events.envelope import EventTopic

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
        TaskError: it names tasks or groups that do not exist, or are over.
    """
    checked = check_decision(decision)
    action = checked.next_action
    known = {definition.event_type: definition for definition in definitions}
    if isinstance(action, PublishAction):
        _note_task(plan, await _publish(action, context, plan, goal_event, known), action.event_type)
    elif isinstance(action, CompleteAction):
        await _complete(action, checked, context, plan, goal_event)
    elif isinstance(action, WaitAction):
        await _wait(action, context, plan)
    elif isinstance(action, DelegateAction):
        await _delegate(action, context, plan, goal_event, known)
    elif isinstance(action, ParallelAction):
        await _parallel(action, context, plan, goal_event, known)
    elif plan is not None:
        _await(action, plan)


async def send_pending(context: Any, plan: PlanContext, definitions: Iterable[EventDefinition] = ()) -> None:
    """Send the tasks that a planner has registered by itself (``run.tasks``) and that nobody has sent yet."""
    known = {definition.event_type: definition for definition in definitions}
    for task in tasks_of(plan).tasks:
        if task.state is TaskState.PENDING and task.spec is not None:
            await _send_task(task, task.spec, context, plan, known)


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


async def _delegate(
    action: DelegateAction, context: Any, plan: PlanContext | None, goal: Any, known: dict[str, EventDefinition]
) -> None:
    spec = action.spec or SpawnSpec(event_type=action.goal_event, data=action.goal_data)
    if plan is None:
        await _send_spec(spec, context, plan, goal, known)
        return
    tasks = tasks_of(plan)
    task = _registered(tasks, action.group_id, spec)
    if task is not None:
        await _send_task(task, spec, context, plan, known)
    else:
        if action.group_id is not None and not tasks.is_group(action.group_id):
            tasks.open_group(action.group_id)
        task = tasks.spawn(spec, action.group_id)
        _bind(plan, tasks, task, await _send_spec(spec, context, plan, goal, known))
    if spec.retain_turn:
        plan.awaiting = task.task_id


def _registered(tasks: TaskRegistry, group_id: str | None, spec: SpawnSpec) -> Task | None:
    """The task that a planner has registered for its decision: it is sent, and none is spawned beside it."""
    if group_id is None or not tasks.is_group(group_id):
        return None
    members = [tasks.task(each) for each in tasks.group(group_id).members]
    return next((each for each in members if each.state is TaskState.PENDING and each.spec == spec), None)


async def _send_task(
    task: Task, spec: SpawnSpec, context: Any, plan: PlanContext, known: dict[str, EventDefinition]
) -> None:
    """Send a registered task. One that cannot be sent has failed: whoever watches it hears why."""
    tasks = tasks_of(plan)
    try:
        request_id = await _send_spec(spec, context, plan, None, known)
    except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
        tasks.fail(task, f"it could not be sent: {error}")
        return
    _bind(plan, tasks, task, request_id)


def _bind(plan: PlanContext, tasks: TaskRegistry, task: Task, request_id: Any) -> None:
    """What answers the request settles the task."""
    tasks.start(task)
    if isinstance(request_id, str) and request_id in plan.requests:
        plan.requests[request_id].task = task.task_id


async def _send_spec(
    spec: SpawnSpec, context: Any, plan: PlanContext | None, goal: Any, known: dict[str, EventDefinition]
) -> Any:
    definition = known.get(spec.event_type)
    said = {"description": spec.description, "query": spec.query, "priority": spec.priority}
    return await _send(
        context,
        plan,
        goal,
        event_type=spec.event_type,
        data=dict(spec.data),
        topic=str(EventTopic.ACTION_REQUESTS),
        response_event=(definition.response_event if definition else None) or f"{spec.event_type}.completed",
        metadata={name: value for name, value in said.items() if value} or None,
    )


async def _parallel(
    action: ParallelAction, context: Any, plan: PlanContext | None, goal: Any, known: dict[str, EventDefinition]
) -> None:
    ids = [await _publish(branch, context, plan, goal, known) for branch in action.branches]
    sent = [(each, branch) for each, branch in zip(ids, action.branches, strict=True) if _is_open(plan, each)]
    if plan is None or not sent:
        return
    tasks = tasks_of(plan)
    n = min(action.n, len(sent)) if action.n is not None else None
    group = tasks.open_group(join=action.join, n=n)
    for request_id, branch in sent:
        _note_task(plan, request_id, branch.event_type, group.group_id)
    tasks.seal_group(group)
    plan.awaiting = group.group_id


def _is_open(plan: PlanContext | None, request_id: Any) -> bool:
    return plan is not None and isinstance(request_id, str) and request_id in plan.requests


def _note_task(plan: PlanContext | None, request_id: Any, event_type: str, group_id: str | None = None) -> None:
    """Have a request that was sent be a task, so that it can be awaited; its event type tells people what it is."""
    if plan is not None and _is_open(plan, request_id):
        tasks = tasks_of(plan)
        _bind(plan, tasks, tasks.spawn(group_id=group_id, kind=event_type), request_id)


def _await(action: AwaitAction, plan: PlanContext) -> None:
    tasks, members = tasks_of(plan), list[str]()
    if action.group_id is not None:
        if not tasks.is_group(action.group_id):
            raise InvalidDecision(_unknown("group_id", action.group_id, [each.group_id for each in tasks.groups]))
        if tasks.group(action.group_id).state is GroupState.OPEN:
            tasks.seal_group(action.group_id)  # what is awaited takes no more members, or it might never be over
        members, plan.awaiting = tasks.group(action.group_id).members, action.group_id
    elif action.task_id is not None:
        if not tasks.is_task(action.task_id):
            raise InvalidDecision(_unknown("task_id", action.task_id, [each.task_id for each in tasks.tasks]))
        members, plan.awaiting = [action.task_id], action.task_id
    for task in map(tasks.task, members):
        if task.state is TaskState.PENDING and task.spec is None:
            raise InvalidDecision(f"next_action: got task {task.task_id!r}, which says nothing of what it is to do")


def _unknown(field: str, got: str, known: list[str]) -> str:
    return f"next_action.{field}: got {got!r}, which this plan has not started, allowed: {', '.join(known) or 'none'}"
