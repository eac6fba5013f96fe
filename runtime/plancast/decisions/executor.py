"""Executes decisions of all planners, through ``context.bus`` and the plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from plancast.agents.definitions import EventDefinition, response_event_of
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
from plancast.plan.requests import wait_request
from plancast.tasks.model import GroupState, Task, TaskState
from plancast.tasks.registry import TaskRegistry
from plancast.tasks.spec import SpawnSpec
from plancast_bus.errors import InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.events.envelope import EventTopic

WAITING_EVENT = "plan.waiting_for_input"
"""System event that announces to people and services what a plan waits for."""


async def execute_decision(
    decision: PlannerDecision,
    context: Any,
    *,
    goal_event: Any = None,
    plan: PlanContext | None = None,
    definitions: Iterable[EventDefinition] = (),
) -> None:
    """Execute a decision.

    Args:
        decision: Checked anew before anything is done.
        context: Its ``bus`` sends the events; inside a turn they are staged.
        goal_event: The goal, for the correlation and the response of a decision without a plan.
        plan: The plan; a WAIT needs it.
        definitions: Known events, for their response events.

    Raises:
        InvalidDecision: the decision cannot be executed; nothing was done.
        TaskError: it names tasks or groups that do not exist or are finished.
    """
    checked = check_decision(decision)
    action, executor = checked.next_action, _Executor(context, plan, goal_event, definitions)
    if isinstance(action, PublishAction):
        executor.note_task(await executor.publish(action), action.event_type)
    elif isinstance(action, CompleteAction):
        await executor.complete(action, checked)
    elif isinstance(action, WaitAction):
        await executor.wait(action)
    elif isinstance(action, DelegateAction):
        await executor.delegate(action)
    elif isinstance(action, ParallelAction):
        await executor.parallel(action)
    elif plan is not None:
        _await(action, plan)


async def send_pending(context: Any, plan: PlanContext, definitions: Iterable[EventDefinition] = ()) -> None:
    """Send the tasks that a planner has registered by itself (``run.tasks``) and that are not sent yet."""
    executor = _Executor(context, plan, None, definitions)
    for task in tasks_of(plan).tasks:
        if task.state is TaskState.PENDING and task.spec is not None:
            await executor.send_task(tasks_of(plan), task, task.spec)


class _Executor:
    """Executes one decision; ``plan`` and ``goal`` may be absent."""

    def __init__(
        self, context: Any, plan: PlanContext | None, goal: Any, definitions: Iterable[EventDefinition]
    ) -> None:
        self._context = context
        self._plan = plan
        self._goal = goal
        self._definitions = {definition.event_type: definition for definition in definitions}

    async def publish(self, action: PublishAction) -> Any:
        """Publish an event, on the topic of requests with a response event; returns its id."""
        response_event = action.response_event
        if action.topic == EventTopic.ACTION_REQUESTS and not response_event:
            response_event = response_event_of(action.event_type, self._definitions.get(action.event_type))
        request_id = await self._send(action.event_type, action.data, str(action.topic), response_event)
        self._limit(request_id, action.timeout_seconds)
        return request_id

    async def complete(self, action: CompleteAction, decision: PlannerDecision) -> None:
        """Finish the plan, or respond to the goal when there is no plan."""
        plan, goal = self._plan, self._goal
        reached = action.reason is FinishReason.GOAL
        why = decision.reasoning or action.reasoning
        error = f"{action.reason}: {why}" if why else str(action.reason)
        if plan is not None:
            if reached:
                await plan.finalize(action.result)
            elif action.reason is FinishReason.CANCELLED:
                await plan.cancel(error)
            elif action.reason is FinishReason.ROLLED_BACK:
                await plan.compensate(why or "the planner decided so")
            else:
                await plan.fail(error)
            return
        if goal is None:
            raise InvalidDecision(
                "next_action: got a complete without a plan or a goal, allowed: one of them to answer for"
            )
        ending = "completed" if reached else "failed"
        await self._context.bus.respond(
            event_type=getattr(goal, "response_event", "") or f"{goal.event_type}.{ending}",
            data={
                "plan_id": decision.plan_id or goal.correlation_id,
                "status": ending,
                "result": action.result,
                "error": None if reached else error,
            },
            correlation_id=goal.correlation_id,
        )

    async def wait(self, action: WaitAction) -> None:
        """Pause the plan until an event from outside, and announce it."""
        plan = self._plan
        if plan is None:
            raise InvalidDecision(
                "next_action: got a wait without a plan; a WAIT action requires PlanContext for pause/resume"
            )
        plan.results[WAITING_FOR] = action.expected_event
        plan.results[WAIT_TIMEOUT] = action.seconds if action.due is None else action.until
        await plan.pause(reason=action.reason)
        published = self._context.bus.publish(
            topic=str(EventTopic.SYSTEM_EVENTS),
            event_type=WAITING_EVENT,
            data={
                "plan_id": plan.plan_id,
                "correlation_id": plan.correlation_id,
                "reason": action.reason,
                "pause_reason": str(action.pause_reason),
                "expected_event": action.expected_event,
                "timeout_seconds": action.seconds if action.due is None else None,
                **({} if action.until is None else {"until": action.until}),
                "payload": dict(action.payload),
            },
        )
        event_id = await published if inspect.isawaitable(published) else published
        if isinstance(event_id, str) and (action.due is not None or action.seconds is not None):
            plan.requests[event_id] = wait_request(action.expected_event, plan.results[WAIT_TIMEOUT])

    async def delegate(self, action: DelegateAction) -> None:
        """Send the goal of a child plan, as a task of the plan."""
        plan, spec = self._plan, action.spec
        if spec is None:
            timeout = action.timeout_seconds
            spec = SpawnSpec(event_type=action.goal_event, data=action.goal_data, timeout_seconds=timeout)
        if plan is None:
            await self._send_spec(spec)
            return
        tasks = tasks_of(plan)
        task = _registered(tasks, action.group_id, spec)
        if task is not None:
            await self.send_task(tasks, task, spec)
        else:
            if action.group_id is not None and not tasks.is_group(action.group_id):
                tasks.open_group(action.group_id)
            task = tasks.spawn(spec, action.group_id)
            self._bind(tasks, task, await self._send_spec(spec))
        if spec.retain_turn:
            plan.awaiting = task.task_id

    async def parallel(self, action: ParallelAction) -> None:
        """Publish several events, as a group of tasks that the plan awaits."""
        plan = self._plan
        ids = [await self.publish(branch) for branch in action.branches]
        sent = [(each, branch) for each, branch in zip(ids, action.branches, strict=True) if self._is_open(each)]
        if plan is None or not sent:
            return
        tasks = tasks_of(plan)
        n = min(action.n, len(sent)) if action.n is not None else None
        group = tasks.open_group(join=action.join, n=n)
        for request_id, branch in sent:
            self.note_task(request_id, branch.event_type, group.group_id)
        tasks.seal_group(group)
        plan.awaiting = group.group_id

    async def send_task(self, tasks: TaskRegistry, task: Task, spec: SpawnSpec) -> None:
        """Send a registered task; one that cannot be sent fails, so that its watchers see why."""
        try:
            request_id = await self._send_spec(spec)
        except (PayloadTooLarge, InvalidEnvelope, InvalidSubject) as error:
            tasks.fail(task, f"it could not be sent: {error}")
            return
        self._bind(tasks, task, request_id)

    def note_task(self, request_id: Any, event_type: str, group_id: str | None = None) -> None:
        """Register an open request as a task, so that it can be awaited; the event type is shown to people."""
        if self._plan is not None and self._is_open(request_id):
            tasks = tasks_of(self._plan)
            self._bind(tasks, tasks.spawn(group_id=group_id, kind=event_type), request_id)

    def _bind(self, tasks: TaskRegistry, task: Task, request_id: Any) -> None:
        """Let the answer to a request finish the task."""
        tasks.start(task)
        if self._plan is not None and self._is_open(request_id):
            self._plan.requests[request_id].task = task.task_id

    def _limit(self, request_id: Any, seconds: float | None) -> None:
        """Set the timeout of an open request."""
        if self._plan is not None and self._is_open(request_id):
            self._plan.requests[request_id].timeout = seconds

    def _is_open(self, request_id: Any) -> bool:
        return self._plan is not None and isinstance(request_id, str) and request_id in self._plan.requests

    def _declared_response(self, event_type: str) -> str | None:
        definition = self._definitions.get(event_type)
        return definition.response_event if definition is not None else None

    async def _send_spec(self, spec: SpawnSpec) -> Any:
        metadata = {
            "description": spec.description, "query": spec.query, "priority": spec.priority, "share": spec.share
        }  # fmt: skip
        request_id = await self._send(
            spec.event_type,
            spec.data,
            str(EventTopic.ACTION_REQUESTS),
            self._declared_response(spec.event_type) or f"{spec.event_type}.completed",
            metadata={name: value for name, value in metadata.items() if value} or None,
        )
        self._limit(request_id, spec.timeout_seconds)
        return request_id

    async def _send(
        self, event_type: str, data: Any, topic: str, response_event: str | None, metadata: Any = None
    ) -> Any:
        owner = self._plan if self._plan is not None else self._goal
        correlation_id = getattr(owner, "correlation_id", None)
        fields = {
            "event_type": event_type,
            "data": dict(data),
            "topic": topic,
            "response_event": response_event,
            "metadata": metadata,
            "correlation_id": correlation_id if isinstance(correlation_id, str) else None,
        }
        return await self._context.bus.publish(**{name: value for name, value in fields.items() if value is not None})


def _registered(tasks: TaskRegistry, group_id: str | None, spec: SpawnSpec) -> Task | None:
    """The pending task that the planner has registered for its decision, so that no second one is spawned."""
    if group_id is None or not tasks.is_group(group_id):
        return None
    members = [tasks.task(each) for each in tasks.group(group_id).members]
    return next((each for each in members if each.state is TaskState.PENDING and each.spec == spec), None)


def _await(action: AwaitAction, plan: PlanContext) -> None:
    tasks, members = tasks_of(plan), list[str]()
    if action.group_id is not None:
        if not tasks.is_group(action.group_id):
            raise InvalidDecision(_unknown("group_id", action.group_id, [each.group_id for each in tasks.groups]))
        if tasks.group(action.group_id).state is GroupState.OPEN:
            tasks.seal_group(action.group_id)  # an open group might never be resolved
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
