"""Lists the effects of plans' tasks, resolves those with an unknown outcome, and rolls plans back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query

from plancast.client.signals import SignalOutcome
from plancast.console.routes.plan_actions import send_once
from plancast.console.routes.plans import MOST_WORDS, IdempotencyKey, PlanId, sendable
from plancast.console.schemas.effects import EffectInList, Effects, OutcomeOf, PlanEffectOf, PlanEffects, Resolution
from plancast.console.schemas.plan_actions import Accepted, Reason
from plancast.console.service.auth import By
from plancast.console.service.backend import Here
from plancast.console.service.effects import EffectQuery
from plancast.console.service.errors import Refused
from plancast.console.service.limits import Looking
from plancast.console.views.plans import summary_of
from plancast.json_values.normalize import plain
from plancast.plan_store.effects import PlanEffect, effects_of

routes = APIRouter(tags=["effects"])
TaskId = Annotated[
    str, Path(min_length=1, max_length=500, description="Id of the task's request: `task` of an effect.")
]


def effect_query(
    outcome: Annotated[OutcomeOf | Literal["all"], Query(description="Only effects with this outcome.")] = "unknown",
    tenant_id: Annotated[str, Query(max_length=400)] = "",
    session_id: Annotated[str, Query(max_length=400)] = "",
    goal: Annotated[str, Query(max_length=400)] = "",
    text: Annotated[str, Query(max_length=400, description="Words in the effect, or in its plan's ids and goal.")] = "",
) -> EffectQuery:
    """Read the filters of the list from its query."""
    if len(text.split()) > MOST_WORDS:
        raise Refused(422, f"query.text: at most {MOST_WORDS} words are allowed")
    return EffectQuery("" if outcome == "all" else outcome, tenant_id, session_id, goal, text)


@routes.get("/effects", summary="Effects of plans' tasks", dependencies=[Looking])
async def list_effects(
    backend: Here,
    asked: Annotated[EffectQuery, Depends(effect_query)],
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=30, pattern="^[0-9]+$")] = None,
) -> Effects:
    """Those of the newest plans first; a page has all matching effects of a plan.

    With `unknown`, those that a person has to decide about: also those whose undo has failed. Other outcomes are
    searched in the 2,000 plans that were updated last.
    """
    await backend.plans()
    before = int(cursor) if cursor is not None else None
    found, total, following = await backend.effects.page(asked, limit=limit, before=before)
    items = [EffectInList(**_view(each.effect).model_dump(), plan=summary_of(each.row.summary)) for each in found]
    return Effects(items=items, next=str(following) if following is not None else None, total=total)


@routes.get("/plans/{plan_id}/effects", summary="Effects of a plan's tasks")
async def get_effects(backend: Here, plan_id: PlanId) -> PlanEffects:
    """List the effects of a plan's tasks, as far as their workers declare them; the oldest first."""
    checkpoint = await backend.checkpoint(plan_id)
    found = effects_of(await backend.state(checkpoint), await backend.effects.types())
    return PlanEffects(items=[_view(each) for each in found])


@routes.post("/plans/{plan_id}/effects/{task}", status_code=202, summary="Resolve an effect of a plan")
async def resolve_effect(
    backend: Here, by: By, plan_id: PlanId, task: TaskId, body: Resolution, key: IdempotencyKey = None
) -> Accepted:
    """Tells the plan, by way of the task's worker, what a person has found out; of a failed undo, what becomes of it.

    409 when there is nothing to decide, or something else than ``about`` says, or the plan has no such effect; 422 for
    a result of what was not done.
    """
    if body.outcome != "done" and body.result is not None:
        raise Refused(422, f"body.result: allowed with the outcome done only, not with {body.outcome}")
    said: dict[str, Any] = {"done": sendable(body.result)} if body.outcome == "done" else {body.outcome: True}
    said["about"] = body.about

    async def send(event_id: str) -> SignalOutcome:
        return await backend.handle(plan_id).resolve_effect(task, user_id=by, event_id=event_id, **said)

    return await send_once(backend, plan_id, f"effect:{task}", by, key, send)


@routes.post("/plans/{plan_id}/rollback", status_code=202, summary="Undo the effects of a plan's tasks")
async def rollback(backend: Here, by: By, plan_id: PlanId, body: Reason, key: IdempotencyKey = None) -> Accepted:
    """Undoes what the plan and its children have done outside, the latest first, also when the plan has ended.

    The plan ends as failed. What cannot be undone is named in its error, and in full in its result. ``ignored`` when it
    is being rolled back already, or nothing is left.
    """

    async def send(event_id: str) -> SignalOutcome:
        return await backend.handle(plan_id).rollback(body.reason or "rolled back", user_id=by, event_id=event_id)

    return await send_once(backend, plan_id, "rollback", by, key, send)


def _view(effect: PlanEffect) -> PlanEffectOf:
    return PlanEffectOf.model_validate({**asdict(effect), "plan_id": effect.plan, "result": plain(effect.result)})
