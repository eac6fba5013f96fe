"""Lists of tasks."""

from __future__ import annotations

import asyncio
from typing import Final

from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState, TaskStatus
from a2a.utils.errors import InvalidParamsError

from plancast.a2a_client.values import CURSOR, struct_of
from plancast.console.a2a_server.plans import Caller, TaskPlans
from plancast.console.a2a_server.tasks import STATE, context_of
from plancast.console.service.backend import Backend
from plancast.console.service.plan_index import PlanQuery, Row
from plancast.errors import PlanNotFound
from plancast.plan.status import WAITING, ListedStatus

PAGE: Final = 50
MAX_PAGE: Final = 100
_READ_AT_ONCE: Final = 16
_STATES: Final = {
    str(ListedStatus.PENDING): TaskState.TASK_STATE_SUBMITTED,
    str(ListedStatus.RUNNING): TaskState.TASK_STATE_WORKING,
    str(ListedStatus.PAUSED): TaskState.TASK_STATE_WORKING,
    WAITING: TaskState.TASK_STATE_INPUT_REQUIRED,
    str(ListedStatus.COMPLETED): TaskState.TASK_STATE_COMPLETED,
    str(ListedStatus.FAILED): TaskState.TASK_STATE_FAILED,
    str(ListedStatus.CANCELLED): TaskState.TASK_STATE_CANCELED,
}
"""States by the status that lists show."""


async def tasks_page(backend: Backend, plans: TaskPlans, caller: Caller, params: ListTasksRequest) -> ListTasksResponse:
    """A page of the plans, those that have moved last first.

    Raises:
        InvalidParamsError: the size or the token of the page is none.
    """
    size = params.page_size if params.HasField("page_size") else PAGE
    if not 1 <= size <= MAX_PAGE:
        raise InvalidParamsError(f"pageSize: allowed: 1 to {MAX_PAGE}")
    statuses = frozenset(name for name, state in _STATES.items() if state == params.status)
    if params.status and not statuses:
        return ListTasksResponse(page_size=size)
    index = await backend.plans()
    asked = PlanQuery(statuses, session_id=params.context_id, tenant_id=caller.tenant)
    found = await backend.found(asked)
    if params.HasField("status_timestamp_after"):
        since = params.status_timestamp_after.ToMicroseconds() / 1e6
        rows = list(index.rows())[::-1] if found is None else found
        found = [row for row in rows if row.summary.updated_at > since]
    try:
        page = index.page(asked, limit=size, cursor=params.page_token or None, found=found)
    except ValueError as error:
        raise InvalidParamsError(f"pageToken: {error}") from error
    reading = asyncio.Semaphore(_READ_AT_ONCE)

    async def task_of(row: Row) -> Task:
        if params.include_artifacts and row.summary.status == ListedStatus.COMPLETED:
            try:
                async with reading:
                    plan = await plans.find(caller, row.summary.plan_id)
            except PlanNotFound:
                plan = None
            if plan is not None:
                return plan.to_task()
        return _task(row)

    tasks = await asyncio.gather(*map(task_of, page.rows))
    return ListTasksResponse(tasks=tasks, next_page_token=page.next or "", page_size=size, total_size=page.total)


def _task(row: Row) -> Task:
    plan = row.summary
    status = TaskStatus(state=_STATES[plan.status])
    status.timestamp.FromMicroseconds(int(plan.updated_at * 1e6))
    metadata = struct_of({CURSOR: str(plan.revision), STATE: plan.current_state})
    return Task(id=plan.plan_id, context_id=context_of(plan), status=status, metadata=metadata)
