"""Applies responses to the tasks of a plan; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.plan.effects.entries import UNKNOWN
from plancast.plan.event_fields import event_data, event_type_of
from plancast.plan.record import PlanRecord, tasks_of
from plancast.tasks.registry import TaskRegistry

_FAILURES: Final = (".failed", ".timeout")


def take_answer(plan: PlanRecord, fields: Mapping[str, Any]) -> bool:
    """Apply the answer to the open request ``parent_event_id``; True when it resolves a task or the task's group."""
    if fields["parent_event_id"] not in plan.requests:
        return False  # of two early answers, the first may have closed the request of the other
    plan.results[fields["type"]] = fields.get("data")
    return close_request(plan, fields["parent_event_id"], fields)


def close_request(plan: PlanRecord, request_id: str, event: Any) -> bool:
    """Close the request that an event has answered, and finish its task.

    Returns:
        True when that resolves the task's group, or it is in none.
    """
    request = plan.requests.pop(request_id, None)
    if request is None or not request.task:
        return request is not None
    tasks = tasks_of(plan)
    if not tasks.is_task(request.task):
        return True
    task = tasks.task(request.task)
    if not task.state.finished:
        _finish(tasks, request.task, event_type_of(event), event_data(event))
    resolved = not task.group_id or tasks.watch_group(task.group_id) is not None
    if not task.group_id and task.spec is None:
        task.result = None  # the plan's results hold it
    drop_unwanted(plan)
    return resolved


def _finish(tasks: TaskRegistry, task_id: str, event_type: str, data: Any) -> None:
    values = data if isinstance(data, Mapping) else {}
    error = str(values.get("error") or event_type)
    if values.get("outcome") == UNKNOWN and values.get("success") is False:
        error = f"outcome unknown: {values.get('reason') or event_type}"  # no failure after which to repeat it
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
