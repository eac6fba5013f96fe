"""Creates, lists and changes schedules."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from plancast.client.schedules import ScheduleSummary
from plancast.console.routes.plans import IdempotencyKey, sendable, stable_id
from plancast.console.schemas.schedules import (
    Backfill,
    Backfilled,
    NewSchedule,
    ScheduleList,
    ScheduleOf,
    ScheduleRunOf,
    ScheduleRuns,
    Triggered,
)
from plancast.console.service.auth import By
from plancast.console.service.backend import Here

routes = APIRouter(prefix="/schedules", tags=["schedules"])
Name = Annotated[str, Path(min_length=1, max_length=100)]
Tenant = Annotated[str, Query(max_length=400, description="Tenant of the schedule.")]


@routes.get("", summary="All schedules")
async def list_schedules(
    backend: Here,
    tenant_id: Tenant = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=501, description="`next` of the previous page.")] = None,
) -> ScheduleList:
    """List schedules by name: those of a tenant, or of all tenants."""
    found = await backend.client.schedules.list(tenant_id=tenant_id or None)
    behind = found
    if cursor is not None:
        name, _, tenant = cursor.partition(":")
        behind = [each for each in found if (each.name, each.tenant_id) > (name, tenant)]
    items = behind[:limit]
    following = f"{items[-1].name}:{items[-1].tenant_id}" if len(behind) > limit else None
    return ScheduleList(items=[_view(each) for each in items], next=following, total=len(found))


@routes.post("", status_code=201, summary="Create a schedule")
async def create_schedule(backend: Here, _by: By, body: NewSchedule) -> ScheduleOf:
    """409 when there is one of this name, and it is not to be replaced; 422 when the definition is invalid."""
    options = body.model_dump(exclude={"name", "data"})
    return _view(await backend.client.schedules.create(body.name, data=sendable(body.data), **options))


@routes.get("/{name}", summary="A schedule")
async def get_schedule(backend: Here, name: Name, tenant_id: Tenant = "") -> ScheduleOf:
    return _view(await backend.client.schedules.get(name, tenant_id=tenant_id))


@routes.delete("/{name}", status_code=204, summary="Delete a schedule")
async def delete_schedule(backend: Here, _by: By, name: Name, tenant_id: Tenant = "") -> Response:
    """Its plans go on."""
    await backend.client.schedules.delete(name, tenant_id=tenant_id)
    return Response(status_code=204)


@routes.post("/{name}/pause", summary="Pause a schedule")
async def pause_schedule(backend: Here, _by: By, name: Name, tenant_id: Tenant = "") -> ScheduleOf:
    """Stops firing by time; triggers and backfills go on."""
    return _view(await backend.client.schedules.pause(name, tenant_id=tenant_id))


@routes.post("/{name}/resume", summary="Resume a schedule")
async def resume_schedule(backend: Here, _by: By, name: Name, tenant_id: Tenant = "") -> ScheduleOf:
    """Fires again; what was paused is not made up."""
    return _view(await backend.client.schedules.resume(name, tenant_id=tenant_id))


@routes.post("/{name}/trigger", status_code=202, summary="Start a plan of a schedule now")
async def trigger_schedule(
    backend: Here, by: By, name: Name, tenant_id: Tenant = "", key: IdempotencyKey = None
) -> Triggered:
    """Also while it is paused. Requests with the same ``Idempotency-Key`` start one plan."""
    trigger_id = stable_id("trigger", tenant_id, name, by, key) if key is not None else None
    handle = await backend.client.schedules.trigger(name, trigger_id=trigger_id, tenant_id=tenant_id)
    backend.submitted(handle.plan_id)
    return Triggered(plan_id=handle.plan_id)


@routes.post("/{name}/backfill", status_code=202, summary="Start plans for past times")
async def backfill_schedule(backend: Here, _by: By, name: Name, body: Backfill, tenant_id: Tenant = "") -> Backfilled:
    """One after another, unless the schedule's plans may overlap; at most 1,000, without those that have started."""
    times = await backend.client.schedules.backfill(name, body.begin, body.end, tenant_id=tenant_id)
    return Backfilled(times=times)


@routes.get("/{name}/runs", summary="Firings of a schedule")
async def get_runs(
    backend: Here, name: Name, tenant_id: Tenant = "", limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> ScheduleRuns:
    """The newest first, with the plans that they have started."""
    found = await backend.client.schedules.runs(name, limit=limit, tenant_id=tenant_id)
    return ScheduleRuns(items=[ScheduleRunOf.model_validate(each._asdict()) for each in found])


def _view(schedule: ScheduleSummary) -> ScheduleOf:
    return ScheduleOf.model_validate(schedule, from_attributes=True)
