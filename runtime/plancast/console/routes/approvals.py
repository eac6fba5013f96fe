"""Lists the plans that wait for an approval."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from plancast.console.schemas.plan_actions import ApprovalOf, Approvals
from plancast.console.service.backend import Backend, Here
from plancast.console.service.limits import Looking
from plancast.console.service.plan_index import Row
from plancast.console.views.plans import approval_view, summary_of
from plancast.plan.status import WAITING
from plancast.plan_store.approvals import People

routes = APIRouter(tags=["approvals"])


@routes.get("/approvals", summary="Plans that wait for an approval", dependencies=[Looking])
async def list_approvals(
    backend: Here,
    tenant_id: Annotated[str, Query(max_length=400)] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=30, pattern="^[0-9]+$")] = None,
) -> Approvals:
    """Newest first, with the reason, the payload and the event that answers it."""
    index = await backend.plans()
    people = await backend.registry.human_events()
    waiting = [
        row for row in index.rows() if row.summary.status == WAITING and tenant_id in ("", row.summary.tenant_id)
    ]
    items: list[ApprovalOf] = []
    more, last = False, 0
    for row in waiting:
        if cursor is not None and row.version >= int(cursor):
            continue
        if len(items) == limit:
            more = True
            break
        last = row.version
        found = await _approval(backend, row, people)
        if found is not None:
            items.append(found)
    return Approvals(items=items, next=str(last) if more else None, total=len(waiting))


async def _approval(backend: Backend, row: Row, people: People) -> ApprovalOf | None:
    checkpoint = await backend.bus.checkpoints.load(row.key)
    if checkpoint is None:
        return None
    state, history = await backend.state(checkpoint), await backend.history(checkpoint)
    wanted = approval_view(state, history, people)
    return ApprovalOf(plan=summary_of(checkpoint.summary), **wanted.model_dump()) if wanted is not None else None
