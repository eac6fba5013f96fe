"""Plans as they were, their histories run again, and new plans that begin where others stood."""

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
    """What the plan knew after a turn, found by running its history again. `known` is false where that cannot tell."""
    await backend.checkpoint(plan_id)
    return DataAt.model_validate(_named((await backend.handle(plan_id).state_at(revision)).to_dict()))


@routes.post("/replay", summary="Run a plan's history again")
async def replay(backend: Here, plan_id: PlanId, said: ReplayRequest) -> ReplayedPlan:
    """Whether its machine, and what was decided, lead where they led. Nothing is sent and nobody is asked.

    `now` takes the state machine that its goal has today. Handlers are not known here, but to `plancast plans replay`.
    """
    await backend.checkpoint(plan_id)
    found = (await backend.handle(plan_id).replay(machine=said.machine)).to_dict()
    return ReplayedPlan.model_validate(found | {"turns": [_named(turn) for turn in found["turns"]]})


@routes.post("/fork", status_code=201, summary="Begin a plan where this one stood")
async def fork(backend: Here, by: By, plan_id: PlanId, said: Fork, key: IdempotencyKey = None) -> Forked:
    """A new plan, as this one was after a turn, with other data for its goal where you give some."""
    checkpoint = await backend.checkpoint(plan_id)
    made = await backend.client.fork(
        plan_id,
        at=said.revision,
        data=sendable(said.data) if said.data is not None else None,
        correlation_id=stable_id("fork", checkpoint.summary.plan_id, by, key) if key is not None else None,
    )
    backend.submitted(made.plan_id)
    await note(backend, by, "fork", f"{made.plan_id} of {plan_id} at {said.revision}")
    return Forked(plan_id=made.plan_id, forked_from=checkpoint.summary.plan_id, revision=said.revision)


def _named(told: dict[str, object]) -> dict[str, object]:
    return {("at" if name == "time" else name): value for name, value in told.items()}
