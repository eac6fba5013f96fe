"""What answers do to the tasks of a plan; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.plan.context import PlanContext
from plancast.plan.record import tasks_of
from plancast.tasks.registry import TaskRegistry

_FAILURES: Final = (".failed", ".timeout")


def take_answer(plan: PlanContext, fields: Mapping[str, Any]) -> bool:
    """Note the answer to an open request; True when a task, or the whole group that it is in, is resolved by it.

    Args:
        plan: Whose request it is.
        fields: The answer; its ``parent_event_id`` names the request.
    """
    request = plan.requests.pop(fields["parent_event_id"], None)
    if request is None:
        return False  # of two answers that were kept during a pause, the first may have ended the other's request
    data = fields.get("data")
    plan.results[fields["type"]] = data
    tasks = tasks_of(plan)
    if not tasks.is_task(request.task):
        return True
    task = tasks.task(request.task)
    if not task.state.finished:
        _settle(tasks, request.task, fields["type"], data)
    resolved = not task.group_id or tasks.watch_group(task.group_id) is not None
    if not task.group_id and task.spec is None:
        task.result = None  # it stands among the plan's results
    drop_unwanted(plan)
    return resolved


def _settle(tasks: TaskRegistry, task_id: str, event_type: str, data: Any) -> None:
    said = data if isinstance(data, Mapping) else {}
    error = str(said.get("error") or event_type)
    if said.get("status") == "cancelled":
        tasks.cancel(task_id, error)
    elif event_type.endswith(_FAILURES) or said.get("success") is False or said.get("status") == "failed":
        tasks.fail(task_id, error, data)
    else:
        tasks.complete(task_id, data)


def awaited_is_resolved(plan: PlanContext) -> bool:
    """Whether what a plan awaits is resolved; what is not known any more was resolved."""
    tasks, awaited = tasks_of(plan), plan.awaiting
    if tasks.is_group(awaited):
        return tasks.watch_group(awaited) is not None
    return not tasks.is_task(awaited) or tasks.task(awaited).state.finished


def drop_unwanted(plan: PlanContext) -> None:
    """Requests whose tasks are over (a join was reached, a group cancelled) wait no more; old tasks are forgotten."""
    tasks = tasks_of(plan)
    for request_id, request in list(plan.requests.items()):
        if request.task and (not tasks.is_task(request.task) or tasks.task(request.task).state.finished):
            del plan.requests[request_id]
    tasks.prune()
