"""The steps of a decision tree: call a tool, finish, pause, spawn and await, watch a group.

A step claims the call with an action, or leaves it to the next step with None. A misconfigured step can be built, and
fails when it is reached. Guards, builders and `on_resolved` may be plain or async, and serve many runs concurrently.
Steps hold no state: that of group-aware steps is in the run's task registry, and so in the plan's checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    PauseReason,
    PublishAction,
    WaitAction,
)
from plancast.errors import InvalidDecision, InvalidPlannerConfig
from plancast.json_values.limits import check_payload, shown
from plancast.planners.contract import RunContext
from plancast.planners.decision_tree.step_results import (
    Builder,
    Claim,
    Guard,
    OnResolved,
    as_claim,
    as_object,
    as_reason,
    built,
    holds,
    required,
)
from plancast.tasks.model import GroupCompletion, StepState, group_of_step
from plancast.tasks.registry import TaskRegistry
from plancast.tasks.spec import SpawnSpec

_DEFAULT_STEP_ID: Final = "<spawn-and-await>"
_PAUSES: Final = {
    PauseReason.APPROVAL_REQUIRED: "somebody has to approve",
    PauseReason.AWAIT_INPUT: "somebody has to add something",
    PauseReason.EXTERNAL_EVENT: "something has to happen elsewhere",
    PauseReason.CONSTRAINTS_CONFLICT: "constraints contradict each other, and somebody has to choose",
}


@dataclass(frozen=True)
class CallToolStep:
    """Publishes the event of a tool; the response triggers the planner's next call.

    Args:
        tool: The event type to publish. Required.
        args: Builds the event's data. Required; an empty dict is data without arguments.
        when: The guard.
        response_event: Event type of the response; None: the one that the tool declares.
        timeout_seconds: Seconds to wait for the response: then ``<base>.timeout`` is the result. None: no timeout.
    """

    tool: str | None = None
    args: Builder[Mapping[str, Any]] | None = None
    when: Guard | None = None
    response_event: str | None = None
    timeout_seconds: float | None = None

    async def decide(self, run: RunContext) -> Claim:
        """Return a PUBLISH. Raises InvalidPlannerConfig, InvalidDecision, and the errors of the builder."""
        if not await holds(self.when, run):
            return None
        if not self.tool:
            raise InvalidPlannerConfig("tool: got nothing, allowed: the event type of a tool")
        data = as_object("args", await built("args", self.args, run))
        return PublishAction(
            event_type=self.tool,
            data=data,
            response_event=self.response_event,
            timeout_seconds=self.timeout_seconds,
        )


@dataclass(frozen=True)
class FinishStep:
    """Ends the run.

    Args:
        reason: A FinishReason, or its text. Required.
        payload: Builds the result, an object; None: no result, which is an empty object where the goal is reached.
        metadata: Builds metadata for the history; `run_id` is added where it is missing.
        when: The guard.
    """

    reason: FinishReason | str | None = None
    payload: Builder[Any] | None = None
    metadata: Builder[Mapping[str, Any]] | None = None
    when: Guard | None = None

    async def decide(self, run: RunContext) -> Claim:
        """Return a COMPLETE. Raises InvalidPlannerConfig, InvalidDecision, and the errors of the builders."""
        if not await holds(self.when, run):
            return None
        reason = as_reason(FinishReason, self.reason)
        result: Any = {} if reason is FinishReason.GOAL else None
        if self.payload is not None:
            result = await built("payload", self.payload, run)
        kept = await built("metadata", self.metadata, run) if self.metadata is not None else {}
        return CompleteAction(
            result=result, reason=reason, metadata={"run_id": run.run_id} | as_object("metadata", kept)
        )


@dataclass(frozen=True)
class PauseStep:
    """Pauses the run until an event comes.

    Args:
        reason: A PauseReason, or its text. Required.
        payload: Builds data for the sender of the event, within `PAUSE_BOUNDS`; None: no data.
        expected_event: The event that resumes the run; None: `plan.resume`.
        when: The guard.
        timeout_seconds: None: no timeout.
        message: Text for people on what is awaited; empty: a sentence about the reason.
    """

    reason: PauseReason | str | None = None
    payload: Builder[Mapping[str, Any]] | None = None
    expected_event: str | None = None
    when: Guard | None = None
    timeout_seconds: float | None = None
    message: str = ""

    async def decide(self, run: RunContext) -> Claim:
        """Return a WAIT. Raises InvalidPlannerConfig, InvalidDecision, and the errors of the builder."""
        if not await holds(self.when, run):
            return None
        reason = as_reason(PauseReason, self.reason)
        payload = as_object("payload", await built("payload", self.payload, run) if self.payload is not None else {})
        check_payload(payload, where="payload")
        return WaitAction(
            reason=self.message or _PAUSES[reason],
            expected_event=self.expected_event or "plan.resume",
            timeout_seconds=self.timeout_seconds,
            pause_reason=reason,
            payload=payload,
        )


@dataclass(frozen=True)
class SpawnAndAwaitStep:
    """Starts a task in a group, awaits the group, and decides once on its completion.

    Per run, the first call spawns. Calls until the group is resolved await it, also those made while the spec is being
    built. The first call after that calls `on_resolved`; if it raises or is cancelled, the next call calls it again.
    Concurrent calls for the run await meanwhile, so that its result is used once; after that the step claims no more
    calls of the run. A run remembers the newest 512 resolved steps.

    Args:
        spec: Builds the SpawnSpec. Required. If it raises or is cancelled, the next call starts anew.
        on_resolved: Called with the run and the group's completion. Required.
        step_id: Unique among the steps of a planner.
        kind: The task's kind, for people.
        group_id: A group to join, or to open if there is none; None: a group of this run and step.
        when: The guard.
    """

    group_aware: ClassVar[bool] = True

    spec: Builder[SpawnSpec] | None = None
    on_resolved: OnResolved | None = None
    step_id: str = _DEFAULT_STEP_ID
    kind: str = "background"
    group_id: str | None = None
    when: Guard | None = None

    def __post_init__(self) -> None:
        if not self.step_id:
            object.__setattr__(self, "step_id", _DEFAULT_STEP_ID)

    async def decide(self, run: RunContext) -> Claim:
        """Return a DELEGATE, an AWAIT, or the claim of `on_resolved`.

        Raises:
            InvalidPlannerConfig: something required is missing.
            InvalidDecision: `spec` or `on_resolved` returned a value of the wrong type.
            IllegalTaskMove: the group takes no more members.
            UnknownTask: the group is forgotten.
        """
        if not await holds(self.when, run):
            return None
        required(spec=self.spec, on_resolved=self.on_resolved)
        tasks = _registry(run)
        state = tasks.step(run.run_id, self.step_id)
        if state is None:
            return await self._spawn(run, tasks)
        if state.resolved:
            return None
        if state.busy:
            return AwaitAction(task_id=state.task_id)
        completion = tasks.watch_group(state.group_id)
        if completion is None:
            return _awaiting(tasks, state.task_id, state.group_id)
        return await _resolve(self.on_resolved, run, completion, state)

    async def _spawn(self, run: RunContext, tasks: TaskRegistry) -> Claim:
        own = group_of_step(run.run_id, self.step_id)
        group_id, task_id = self.group_id or own, _free_name(tasks, own)
        # Stored before the first await: a concurrent call finds it, and spawns no second task.
        state = tasks.keep_step(run.run_id, self.step_id, StepState(group_id, task_id, busy=True))
        try:
            spec = await built("spec", self.spec, run)
            if not isinstance(spec, SpawnSpec):
                raise InvalidDecision(f"spec: got a {type(spec).__name__}, allowed: a SpawnSpec")
            claim = DelegateAction(spec=spec, group_id=group_id)
            group = tasks.group(group_id) if tasks.is_group(group_id) else tasks.open_group(group_id)
            tasks.spawn(spec, group, kind=self.kind, task_id=task_id)
            tasks.seal_group(group)
        except BaseException:  # also when cancelled
            tasks.forget_step(run.run_id, self.step_id)
            raise
        state.busy = False
        return claim


@dataclass(frozen=True)
class WatchGroupStep:
    """Awaits a group that was opened elsewhere, and decides once on its completion, as SpawnAndAwaitStep does.

    Args:
        group_id: The group. Required.
        owner_task_id: The task to await until the group is resolved; None, or one that is finished: the group.
        on_resolved: Called with the run and the group's completion. Required.
        when: The guard.
    """

    group_aware: ClassVar[bool] = True

    group_id: str | None = None
    owner_task_id: str | None = None
    on_resolved: OnResolved | None = None
    when: Guard | None = None

    @property
    def step_id(self) -> str:
        """Unique among the steps of a planner."""
        return f"watch:{self.group_id or ''}:{self.owner_task_id or ''}"

    async def decide(self, run: RunContext) -> Claim:
        """Return an AWAIT, or the claim of `on_resolved`.

        Raises:
            InvalidPlannerConfig: something required is missing.
            InvalidDecision: `on_resolved` returned a value of the wrong type.
            UnknownTask: there is no such group, or it is forgotten.
        """
        if not await holds(self.when, run):
            return None
        if not self.group_id:
            raise InvalidPlannerConfig("group_id: got nothing, allowed: the id of a group")
        required(on_resolved=self.on_resolved)
        tasks = _registry(run)
        state = tasks.step(run.run_id, self.step_id)
        if state is not None and state.resolved:
            return None
        completion = tasks.watch_group(self.group_id)
        if completion is None or (state is not None and state.busy):
            return _awaiting(tasks, self.owner_task_id, self.group_id)
        state = state or tasks.keep_step(run.run_id, self.step_id, StepState())
        return await _resolve(self.on_resolved, run, completion, state)


async def _resolve(
    on_resolved: OnResolved | None, run: RunContext, completion: GroupCompletion, state: StepState
) -> Claim:
    state.busy = True
    try:
        claim = as_claim(await built("on_resolved", on_resolved, run, completion))
        state.resolved = True
        return claim
    finally:
        state.busy = False


def _awaiting(tasks: TaskRegistry, task_id: str | None, group_id: str) -> AwaitAction:
    """Await the task, or its group where the task is finished."""
    if not task_id or (tasks.is_task(task_id) and tasks.task(task_id).state.finished):
        return AwaitAction(group_id=group_id)
    return AwaitAction(task_id=task_id)


def _free_name(tasks: TaskRegistry, own: str) -> str:
    number = 1
    while tasks.is_task(name := f"{own}/{number}"):
        number += 1
    return name


def _registry(run: RunContext) -> TaskRegistry:
    if not isinstance(run.tasks, TaskRegistry):
        raise InvalidPlannerConfig(f"the run's tasks: got {shown(run.tasks)}, allowed: a TaskRegistry")
    return run.tasks
