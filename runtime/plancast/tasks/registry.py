"""TaskRegistry: the tasks and groups of a plan; a plain value, stored in the plan's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from plancast.errors import IdempotencyConflict, IllegalTaskMove, UnknownTask
from plancast.tasks.model import LEGAL_MOVES, GroupCompletion, GroupState, StepState, Task, TaskGroup, TaskState
from plancast.tasks.spec import JoinKind, SpawnSpec

__all__ = ["MAX_FINISHED_STEPS", "MAX_RESOLVED", "TaskRegistry"]

MAX_FINISHED_STEPS: Final = 512
"""Finished steps that a plan remembers; planners have far fewer, unless they create steps while they run."""
MAX_RESOLVED: Final = 16
"""Resolved groups, and finished tasks outside groups, that a plan keeps; older ones are dropped."""


class TaskRegistry:
    """Tasks and groups of tasks: started, watched, and resolved once.

    It does no work and never blocks: callers report what became of tasks, and it decides when a group is resolved.
    A plan's registry is part of its checkpoint (``run.tasks``); others live in memory, for tests. Methods accept a
    task or group, or its id.
    """

    __slots__ = ("_count", "_groups", "_steps", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._groups: dict[str, TaskGroup] = {}
        self._steps: dict[tuple[str, str], StepState] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"TaskRegistry(tasks={len(self._tasks)}, groups={len(self._groups)})"

    # Start groups and tasks.

    def open_group(
        self,
        group_id: str | None = None,
        *,
        join: JoinKind = "all",
        n: int | None = None,
        fail_fast: bool = False,
    ) -> TaskGroup:
        """Open a group, or return the open one of this id.

        Args:
            group_id: Defaults to a new id.
            join: The group is resolved after all members, the first success, or ``n`` successes.
            n: Number of successes, when join is ``n``.
            fail_fast: Whether the first failure cancels the rest.

        Raises:
            IllegalTaskMove: a group of this id takes no more members.
            IdempotencyConflict: an open group of this id has other options.
            ValueError: ``join`` or ``n`` is invalid.
        """
        needed = _needed(join, n)
        if group_id is None:
            group_id = self._fresh("group", self._groups)
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = TaskGroup(group_id, join, needed, fail_fast)
        elif group.state is not GroupState.OPEN:
            raise IllegalTaskMove(f"group {group_id!r} is {group.state} and cannot be opened again")
        elif (group.join, group.needed, group.fail_fast) != (join, needed, fail_fast):
            raise IdempotencyConflict(f"group {group_id!r} is open with another join or fail_fast")
        return group

    def spawn(
        self,
        spec: SpawnSpec | None = None,
        group_id: str | TaskGroup | None = None,
        *,
        kind: str = "background",
        task_id: str | None = None,
        idempotency_key: str = "",
    ) -> Task:
        """Register a pending task.

        Args:
            spec: The request or goal to send.
            group_id: An open group that it joins.
            kind: Shown to people.
            task_id: Defaults to a new id.
            idempotency_key: The same key with the same spec and group returns the same task.

        Raises:
            UnknownTask: there is no such group.
            IllegalTaskMove: the group takes no more members, or the id is taken.
            IdempotencyConflict: the key belongs to another task.
        """
        group = self.group(group_id) if group_id is not None else None
        owner = group.group_id if group is not None else ""
        if idempotency_key:
            known = next((each for each in self._tasks.values() if each.idempotency_key == idempotency_key), None)
            if known is not None and (known.spec, known.group_id, known.kind) == (spec, owner, kind):
                return known
            if known is not None:
                raise IdempotencyConflict(
                    f"key {idempotency_key!r} is task {known.task_id!r}, which is another request"
                )
        if group is not None and group.state is not GroupState.OPEN:
            raise IllegalTaskMove(f"group {owner!r} is {group.state} and takes no more members")
        if task_id is None:
            task_id = self._fresh("task", self._tasks)
        elif task_id in self._tasks:
            raise IllegalTaskMove(f"there is a task {task_id!r} already")
        task = self._tasks[task_id] = Task(task_id, spec, kind, owner, idempotency_key=idempotency_key)
        if group is not None:
            group.members.append(task_id)
        return task

    def seal_group(self, group_id: str | TaskGroup) -> TaskGroup:
        """Close a group to new members; it is resolved at once if its join is reached, or it has no members.

        Raises:
            UnknownTask: there is no such group.
            IllegalTaskMove: it was sealed or resolved before.
        """
        group = self.group(group_id)
        if group.state is not GroupState.OPEN:
            raise IllegalTaskMove(f"group {group.group_id!r} is {group.state} and cannot be sealed")
        group.state = GroupState.SEALED
        self._resolve(group)
        return group

    # State changes of tasks.

    def start(self, task_id: str | Task) -> Task:
        """Mark a task as running, also after a pause. Raises as `complete` does."""
        return self._move(task_id, TaskState.RUNNING)

    def pause(self, task_id: str | Task) -> Task:
        """Mark a task as paused. Raises as `complete` does."""
        return self._move(task_id, TaskState.PAUSED)

    def complete(self, task_id: str | Task, result: Any = None) -> Task:
        """Mark a task as complete, with a result.

        Raises:
            UnknownTask: there is no such task.
            IllegalTaskMove: its state does not allow it.
        """
        return self._move(task_id, TaskState.COMPLETE, result=result)

    def fail(self, task_id: str | Task, error: str = "failed", result: Any = None) -> Task:
        """Mark a task as failed; with fail-fast, the rest of its group is cancelled. Raises as `complete` does."""
        return self._move(task_id, TaskState.FAILED, result=result, error=str(error))

    def cancel(self, task_id: str | Task, reason: str = "cancelled") -> Task:
        """Mark a task as cancelled. Raises as `complete` does."""
        return self._move(task_id, TaskState.CANCELLED, error=reason)

    def cancel_group(self, group_id: str | TaskGroup, reason: str = "cancelled") -> TaskGroup:
        """Cancel a group and all its unfinished members. A second call changes nothing.

        Raises:
            UnknownTask: there is no such group.
            IllegalTaskMove: it is completed.
        """
        group = self.group(group_id)
        if group.state is GroupState.COMPLETED:
            raise IllegalTaskMove(f"group {group.group_id!r} is completed and cannot be cancelled")
        if group.state is not GroupState.CANCELLED:
            self._end(group, GroupState.CANCELLED, reason)
        return group

    # Queries.

    def watch_group(self, group_id: str | TaskGroup) -> GroupCompletion | None:
        """The resolution of a group; None while it is unresolved. Never blocks.

        Raises:
            UnknownTask: there is no such group.
        """
        group = self.group(group_id)
        if not group.state.resolved:
            return None
        members = tuple(self._tasks[each].outcome() for each in group.members)
        return GroupCompletion(
            group.group_id, "completed" if group.state is GroupState.COMPLETED else "cancelled", group.reason, members
        )

    def task(self, task_id: str | Task) -> Task:
        """The task with this id.

        Raises:
            UnknownTask: there is none of this id.
        """
        task_id = task_id.task_id if isinstance(task_id, Task) else task_id
        if task_id not in self._tasks:
            raise UnknownTask(f"no task {task_id!r}, there are: {_listed(self._tasks)}")
        return self._tasks[task_id]

    def group(self, group_id: str | TaskGroup) -> TaskGroup:
        """The group with this id.

        Raises:
            UnknownTask: there is none of this id.
        """
        group_id = group_id.group_id if isinstance(group_id, TaskGroup) else group_id
        if group_id not in self._groups:
            raise UnknownTask(f"no group {group_id!r}, there are: {_listed(self._groups)}")
        return self._groups[group_id]

    def is_task(self, task_id: str) -> bool:
        """True if a task with this id exists."""
        return task_id in self._tasks

    def is_group(self, group_id: str) -> bool:
        """True if a group with this id exists."""
        return group_id in self._groups

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, oldest first."""
        return tuple(self._tasks.values())

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """All groups, oldest first."""
        return tuple(self._groups.values())

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Ids of unfinished tasks."""
        return tuple(key for key, task in self._tasks.items() if not task.state.finished)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Ids of unresolved groups."""
        return tuple(key for key, group in self._groups.items() if not group.state.resolved)

    # State of steps.

    def step(self, run_id: str, step_id: str) -> StepState | None:
        """The state of a step in a run; None before its first call."""
        return self._steps.get((run_id, step_id))

    def keep_step(self, run_id: str, step_id: str, state: StepState) -> StepState:
        """Store the state of a step in a run."""
        self._steps[run_id, step_id] = state
        return state

    def forget_step(self, run_id: str, step_id: str) -> None:
        """Drop a step's state and the task that it registered, as if it had never been called.

        A group with this task only is dropped too; one with other members opens again, unless it is resolved.
        """
        state = self._steps.pop((run_id, step_id), None)
        group = self._groups.get(state.group_id) if state is not None else None
        if state is None or group is None or state.task_id not in group.members:
            return
        if group.members == [state.task_id]:
            del self._groups[group.group_id]
        elif group.state.resolved:
            return
        else:
            group.members.remove(state.task_id)
            group.state = GroupState.OPEN
        del self._tasks[state.task_id]

    # Stored form.

    def prune(self, keep: int = MAX_RESOLVED) -> None:
        """Drop the oldest resolved groups, and finished tasks outside groups, beyond ``keep`` of each; and finished
        steps beyond ``MAX_FINISHED_STEPS``. A group that a step has not seen resolved yet stays.
        """
        watched = {state.group_id for state in self._steps.values() if not state.resolved}
        resolved = [each for each in self._groups.values() if each.state.resolved and each.group_id not in watched]
        for group in resolved[: max(0, len(resolved) - keep)]:
            del self._groups[group.group_id]
            for member in group.members:
                del self._tasks[member]
        finished = [key for key, task in self._tasks.items() if not task.group_id and task.state.finished]
        for key in finished[: max(0, len(finished) - keep)]:
            del self._tasks[key]
        done = [step for step, state in self._steps.items() if state.resolved]
        for step in done[: max(0, len(done) - MAX_FINISHED_STEPS)]:
            del self._steps[step]

    def to_state(self) -> dict[str, Any]:
        """The registry as plain values, without steps whose task is still being created: those start over."""
        return {
            "count": self._count,
            "tasks": [_written(task) for task in self._tasks.values()],
            "groups": [
                [each.group_id, each.join, each.needed, each.fail_fast, str(each.state), each.reason, [*each.members]]
                for each in self._groups.values()
            ],
            "steps": [
                [*key, each.group_id, each.task_id, each.resolved]
                for key, each in self._steps.items()
                if not each.busy or each.task_id in self._tasks
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Read the result of `to_state`."""
        registry = cls()
        registry._count = state["count"]
        for key, spec, kind, group_id, moved, result, error, idempotency in state["tasks"]:
            read = SpawnSpec.model_validate(spec) if spec is not None else None
            registry._tasks[key] = Task(key, read, kind, group_id, TaskState(moved), result, error, idempotency)
        for key, join, needed, fail_fast, moved, reason, members in state["groups"]:
            registry._groups[key] = TaskGroup(key, join, needed, fail_fast, GroupState(moved), reason, list(members))
        for run_id, step_id, *kept in state["steps"]:
            registry._steps[run_id, step_id] = StepState(*kept)
        return registry

    # Resolution of groups.

    def _move(self, task_id: str | Task, to: TaskState, *, result: Any = None, error: str = "") -> Task:
        task = self.task(task_id)
        if to not in LEGAL_MOVES[task.state]:
            allowed = ", ".join(sorted(LEGAL_MOVES[task.state])) or "nothing"
            raise IllegalTaskMove(f"task {task.task_id!r} is {task.state} and cannot become {to}; allowed: {allowed}")
        task.state, task.result, task.error = to, result, error
        if task.group_id and to.finished:
            self._member_ended(self._groups[task.group_id], task)
        return task

    def _member_ended(self, group: TaskGroup, task: Task) -> None:
        if group.state.resolved:
            return
        fail_fast = group.fail_fast or (task.spec is not None and task.spec.fail_fast)
        if task.state is TaskState.FAILED and fail_fast:
            self._end(group, GroupState.CANCELLED, f"{task.task_id} failed: {task.error}")
        elif group.state is GroupState.SEALED:
            self._resolve(group)

    def _resolve(self, group: TaskGroup) -> None:
        """Complete a sealed group if its join is reached."""
        states = [self._tasks[each].state for each in group.members]
        done, open_members = states.count(TaskState.COMPLETE), sum(not each.finished for each in states)
        needed = group.needed or len(states)
        if open_members == 0:
            self._end(
                group, GroupState.COMPLETED, f"{done} of {len(states)} members succeeded" if states else "no members"
            )
        elif group.needed and done >= needed:
            self._end(group, GroupState.COMPLETED, f"{done} of {needed} successes are there")
        elif group.needed and done + open_members < needed:
            self._end(group, GroupState.COMPLETED, f"{needed} successes are out of reach")

    def _end(self, group: TaskGroup, state: GroupState, reason: str) -> None:
        group.state, group.reason = state, reason
        for member in group.members:
            task = self._tasks[member]
            if not task.state.finished:
                task.state, task.error = TaskState.CANCELLED, f"the group is {state}: {reason}"

    def _fresh(self, kind: str, taken: Mapping[str, Any]) -> str:
        while True:
            self._count += 1
            if (name := f"{kind}-{self._count}") not in taken:
                return name


def _needed(join: JoinKind, n: int | None) -> int:
    if join == "n":
        if n is None or n < 1:
            raise ValueError(f"a group with join 'n' needs an n from 1, not {n}")
        return n
    if n is not None or join not in ("all", "first_success"):
        raise ValueError(f"join is 'all', 'first_success' or 'n' with an n, not {join!r} with {n}")
    return 1 if join == "first_success" else 0


def _written(task: Task) -> list[Any]:
    spec = task.spec.model_dump(mode="json", exclude_defaults=True) if task.spec is not None else None
    return [
        task.task_id, spec, task.kind, task.group_id, str(task.state), task.result, task.error, task.idempotency_key
    ]  # fmt: skip


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, list(names)[-10:])) or "none"
