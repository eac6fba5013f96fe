"""Moving plans over the API: signal, pause, resume, cancel, and the rest. What is sent says who sent it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from plancast.console.routes.plans import IdempotencyKey, PlanId, sendable, stable_id
from plancast.console.schemas.plan_actions import (
    Accepted,
    Approved,
    Injection,
    Nothing,
    Reason,
    Redirection,
    Resumption,
    Retried,
    Signal,
)
from plancast.console.service.approvals import asked_of_people
from plancast.console.service.auth import By
from plancast.console.service.backend import Backend, Here
from plancast.console.service.errors import Refused
from plancast.console.views.plans import approval_of
from plancast.errors import PlanFinished
from plancast.plan.control_events import BY, CANCEL, FORK, INJECT, PAUSE, REDIRECT, REJECT, RESUME
from plancast.plan.status import PlanStatus
from plancast.turn.controls import CONTROLS

routes = APIRouter(prefix="/plans/{plan_id}", tags=["moves"])
RETRY_OF = "retry_of"
"""Where a goal's metadata names the plan that it tries anew."""


@routes.post("/signal", status_code=202, summary="Send a plan an event")
async def signal(backend: Here, by: By, plan_id: PlanId, said: Signal, key: IdempotencyKey = None) -> Accepted:
    """What the event says becomes the result of the state that waits for it; one that comes early is kept."""
    if said.event_type in CONTROLS or said.event_type == FORK:
        raise Refused(422, f"{said.event_type} steers plans: use the route of its own")
    return await _send(backend, plan_id, said.event_type, said.data, by, key)


@routes.post("/pause", status_code=202, summary="Hold a plan")
async def pause(backend: Here, by: By, plan_id: PlanId, said: Reason, key: IdempotencyKey = None) -> Accepted:
    """It takes no step until it is resumed."""
    return await _send(backend, plan_id, PAUSE, {"reason": said.reason or "paused"}, by, key)


@routes.post("/resume", status_code=202, summary="Let a paused plan go on")
async def resume(backend: Here, by: By, plan_id: PlanId, said: Resumption, key: IdempotencyKey = None) -> Accepted:
    """With ``data`` as its ``user_input``."""
    return await _send(backend, plan_id, RESUME, {"input": said.data}, by, key)


@routes.post("/cancel", status_code=202, summary="Cancel a plan and its children")
async def cancel(backend: Here, by: By, plan_id: PlanId, said: Reason, key: IdempotencyKey = None) -> Accepted:
    """The requester and the history are told why."""
    return await _send(backend, plan_id, CANCEL, {"reason": said.reason or "cancelled"}, by, key)


@routes.post("/reject", status_code=202, summary="Fail a plan")
async def reject(backend: Here, by: By, plan_id: PlanId, said: Reason, key: IdempotencyKey = None) -> Accepted:
    """It ends as failed, because it may not go on like this."""
    return await _send(backend, plan_id, REJECT, {"reason": said.reason or "rejected"}, by, key)


@routes.post("/redirect", status_code=202, summary="Give a plan's goal new data")
async def redirect(backend: Here, by: By, plan_id: PlanId, said: Redirection, key: IdempotencyKey = None) -> Accepted:
    """Its planner is shown the new data the next time it is asked."""
    return await _send(backend, plan_id, REDIRECT, {"goal_data": said.goal_data}, by, key)


@routes.post("/inject", status_code=202, summary="Hand a plan's planner context")
async def inject(backend: Here, by: By, plan_id: PlanId, said: Injection, key: IdempotencyKey = None) -> Accepted:
    """Any JSON, shown to the planner the next time it is asked."""
    return await _send(backend, plan_id, INJECT, {"context": said.context}, by, key)


@routes.post("/approve", status_code=202, summary="Approve what a plan waits for")
async def approve(backend: Here, by: By, plan_id: PlanId, said: Approved, key: IdempotencyKey = None) -> Accepted:
    """Sends the event that it expects, with ``{"approved": true}`` and your data; or resumes it, where it expects none.

    409 when it waits for no person.
    """
    if key is not None and (done := await _done(backend, plan_id, _event_id(plan_id, "approve", by, key))) is not None:
        return done
    checkpoint = await backend.checkpoint(plan_id)
    if PlanStatus(checkpoint.summary.status).finished:
        raise PlanFinished(f"plan {plan_id} is {checkpoint.summary.status} and waits for nobody")
    state, history = await backend.state(checkpoint), await backend.history(checkpoint)
    wanted = approval_of(state, history, await asked_of_people(backend))
    if wanted is None:
        raise Refused(409, f"plan {plan_id} waits for no person")
    data: dict[str, Any] = {"approved": True, "approved_by": by}
    data |= {"comment": said.comment} if said.comment else {}
    data |= said.data
    kind = wanted.expected_event or RESUME
    return await _send(backend, plan_id, kind, data if wanted.expected_event else {"input": data}, by, key, "approve")


@routes.post("/retry", status_code=201, summary="Try a failed plan anew")
async def retry(backend: Here, by: By, plan_id: PlanId, said: Nothing, key: IdempotencyKey = None) -> Retried:
    """A new plan with the same goal, session, user and tenant. 409 unless it has failed or was cancelled."""
    checkpoint = await backend.checkpoint(plan_id)
    plan = checkpoint.summary
    if plan.status not in (PlanStatus.FAILED, PlanStatus.CANCELLED):
        raise Refused(409, f"plan {plan_id} is {plan.status}: only one that failed or was cancelled is tried anew")
    state = await backend.state(checkpoint)
    handle = await backend.client.submit(
        state["goal_event"],
        state.get("goal_data") or {},
        response_event=state.get("response_event") or None,
        correlation_id=stable_id("retry", plan.plan_id, by, key) if key is not None else None,
        session_id=plan.session_id or None,
        user_id=plan.user_id,
        tenant_id=plan.tenant_id or None,
        response_topic=state.get("response_topic") or None,
        metadata={BY: by, RETRY_OF: plan.plan_id},
    )
    backend.submitted(handle.plan_id)
    return Retried(plan_id=handle.plan_id, retry_of=plan.plan_id)


async def _send(
    backend: Backend, plan_id: str, event_type: str, data: Any, by: str, key: str | None, move: str = ""
) -> Accepted:
    event_id = _event_id(plan_id, move or event_type, by, key) if key is not None else None
    try:
        sent = await backend.handle(plan_id).signal(event_type, sendable(data), user_id=by, event_id=event_id)
    except PlanFinished:
        done = await _done(backend, plan_id, event_id) if event_id is not None else None
        if done is None:
            raise
        return done
    return Accepted(plan_id=plan_id, event_id=sent)


def _event_id(plan_id: str, move: str, by: str, key: str) -> str:
    return f"console:{stable_id(plan_id, move, by, key)}"


async def _done(backend: Backend, plan_id: str, event_id: str) -> Accepted | None:
    """What was answered to a request that was sent before under the same key, if the plan has taken its event."""
    history = await backend.history(await backend.checkpoint(plan_id))
    if any((entry.get("event") or {}).get("id") == event_id for entry in history):
        return Accepted(plan_id=plan_id, event_id=event_id)
    return None
