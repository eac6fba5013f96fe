"""Time travel: data of earlier turns, replays and forks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from plancast.console.routes.audit import note
from plancast.console.routes.plans import IdempotencyKey, PlanId, sendable, stable_id
from plancast.console.schemas.plan_actions import DataAt, Fork, Forked, ReplayedPlan, ReplayRequest
from plancast.console.service.auth import By
from plancast.console.service.backend import Here

routes = APIRouter(prefix="/plans/{plan_id}", tags=["time travel"])


@routes.get("/data", summary="A plan's data as of a turn")
async def get_data(
    backend: Here, plan_id: PlanId, revision: Annotated[int, Query(ge=1, le=2**53, description="The turn.")]
) -> DataAt:
    """The plan's data after a turn, by replaying its history. `known` is false when that is impossible."""
    await backend.checkpoint(plan_id)
    return DataAt.model_validate(_named((await backend.handle(plan_id).state_at(revision)).to_dict()))


@routes.post("/replay", summary="Replay a plan's history")
async def replay(backend: Here, plan_id: PlanId, body: ReplayRequest) -> ReplayedPlan:
    """Compares the replay of the machine and the recorded decisions with the history, without side effects.

    `now` uses the goal's current state machine. Handlers are available to `plancast plans replay` only.
    """
    await backend.checkpoint(plan_id)
    found = (await backend.handle(plan_id).replay(machine=body.machine)).to_dict()
    return ReplayedPlan.model_validate(found | {"turns": [_named(turn) for turn in found["turns"]]})


@routes.post("/fork", status_code=201, summary="Fork a plan")
async def fork(backend: Here, by: By, plan_id: PlanId, body: Fork, key: IdempotencyKey = None) -> Forked:
    """Starts a new plan from this plan's state after a turn, optionally with changed goal data."""
    checkpoint = await backend.checkpoint(plan_id)
    made = await backend.client.fork(
        plan_id,
        at=body.revision,
        data=sendable(body.data) if body.data is not None else None,
        correlation_id=stable_id("fork", checkpoint.summary.plan_id, by, key) if key is not None else None,
    )
    backend.submitted(made.plan_id)
    await note(backend, by, "fork", f"{made.plan_id} of {plan_id} at {body.revision}")
    return Forked(plan_id=made.plan_id, forked_from=checkpoint.summary.plan_id, revision=body.revision)


def _named(fields: dict[str, object]) -> dict[str, object]:
    return {("at" if name == "time" else name): value for name, value in fields.items()}
