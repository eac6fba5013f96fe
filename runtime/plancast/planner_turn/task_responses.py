"""Applies responses to the tasks of a plan; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.plan.record import PlanRecord, tasks_of
from plancast.tasks.registry import TaskRegistry

_FAILURES: Final = (".failed", ".timeout")


def take_answer(plan: PlanRecord, fields: Mapping[str, Any]) -> bool:
    """Apply the answer to the open request ``parent_event_id``; True when it resolves a task or the task's group."""
    request = plan.requests.pop(fields["parent_event_id"], None)
    if request is None:
        return False  # of two early answers, the first may have closed the request of the other
    data = fields.get("data")
    plan.results[fields["type"]] = data
    tasks = tasks_of(plan)
    if not tasks.is_task(request.task):
        return True
    task = tasks.task(request.task)
    if not task.state.finished:
        _finish(tasks, request.task, fields["type"], data)
    resolved = not task.group_id or tasks.watch_group(task.group_id) is not None
    if not task.group_id and task.spec is None:
        task.result = None  # the plan's results hold it
    drop_unwanted(plan)
    return resolved


def _finish(tasks: TaskRegistry, task_id: str, event_type: str, data: Any) -> None:
    values = data if isinstance(data, Mapping) else {}
    error = str(values.get("error") or event_type)
    if values.get("status") == "cancelled":
        tasks.cancel(task_id, error)
    elif event_type.endswith(_FAILURES) or values.get("success") is False or values.get("status") == "failed":
        tasks.fail(task_id, error, data)
    else:
        tasks.complete(task_id, data)


def awaited_is_resolved(plan: PlanRecord) -> bool:
    """True if the task or group that a plan awaits is resolved, or was dropped after that."""
    tasks, awaited = tasks_of(plan), plan.awaiting
    if tasks.is_group(awaited):
        return tasks.watch_group(awaited) is not None
    return not tasks.is_task(awaited) or tasks.task(awaited).state.finished


def drop_unwanted(plan: PlanRecord) -> None:
    """Close the requests of finished tasks (a join was reached, a group cancelled), and forget old tasks."""
    tasks = tasks_of(plan)
    for request_id, request in list(plan.requests.items()):
        if request.task and (not tasks.is_task(request.task) or tasks.task(request.task).state.finished):
            del plan.requests[request_id]
    tasks.prune()
