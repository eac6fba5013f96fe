"""Control of plans: signal, pause, resume, cancel and more. Events carry the user's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from fastapi import APIRouter

from plancast.client.signals import SignalOutcome, outcome_in
from plancast.console.routes.plans import IdempotencyKey, PlanId, sendable, stable_id
from plancast.console.schemas.plan_actions import (
    Accepted,
    AnswerOf,
    Injection,
    Nothing,
    Reason,
    Redirection,
    Resumption,
    Retried,
    Signal,
)
from plancast.console.service.auth import By
from plancast.console.service.backend import Backend, Here
from plancast.console.service.errors import Refused
from plancast.errors import NotAwaited, PlanFinished
from plancast.plan.control_events import BY, CANCEL, FORK, INJECT, PAUSE, REDIRECT, RESUME
from plancast.plan.status import PlanStatus
from plancast.turn.controls import CONTROLS

routes = APIRouter(prefix="/plans/{plan_id}", tags=["moves"])
RETRY_OF = "retry_of"
"""Key of a goal's metadata with the id of the retried plan."""


@routes.post("/signal", status_code=202, summary="Send an event to a plan")
async def signal(backend: Here, by: By, plan_id: PlanId, body: Signal, key: IdempotencyKey = None) -> Accepted:
    """The data becomes the result of the state that waits for the event; an early event is stored.

    ``outcome`` says what became of it within 5 seconds: ``moved``, ``kept`` or ``ignored``.
    422 when the data break the schema that a planner declares for the event, or answer in another user's name (`by`).
    """
    if body.event_type in CONTROLS or body.event_type == FORK:
        raise Refused(422, f"{body.event_type} is a control event: use its own route")
    return await _send(backend, plan_id, body.event_type, body.data, by, key)


@routes.post("/pause", status_code=202, summary="Pause a plan")
async def pause(backend: Here, by: By, plan_id: PlanId, body: Reason, key: IdempotencyKey = None) -> Accepted:
    """The plan makes no progress until it is resumed."""
    return await _send(backend, plan_id, PAUSE, {"reason": body.reason or "paused"}, by, key)


@routes.post("/resume", status_code=202, summary="Resume a paused plan")
async def resume(backend: Here, by: By, plan_id: PlanId, body: Resumption, key: IdempotencyKey = None) -> Accepted:
    """``data`` becomes the plan's ``user_input``."""
    return await _send(backend, plan_id, RESUME, {"input": body.data}, by, key)


@routes.post("/cancel", status_code=202, summary="Cancel a plan and its children")
async def cancel(backend: Here, by: By, plan_id: PlanId, body: Reason, key: IdempotencyKey = None) -> Accepted:
    """The requester and the history receive the reason."""
    return await _send(backend, plan_id, CANCEL, {"reason": body.reason or "cancelled"}, by, key)


@routes.post("/redirect", status_code=202, summary="Replace the data of a plan's goal")
async def redirect(backend: Here, by: By, plan_id: PlanId, body: Redirection, key: IdempotencyKey = None) -> Accepted:
    """The planner sees the new data with its next decision."""
    return await _send(backend, plan_id, REDIRECT, {"goal_data": body.goal_data}, by, key)


@routes.post("/inject", status_code=202, summary="Add context for a plan's planner")
async def inject(backend: Here, by: By, plan_id: PlanId, body: Injection, key: IdempotencyKey = None) -> Accepted:
    """Any JSON; the planner sees it with its next decision."""
    return await _send(backend, plan_id, INJECT, {"context": body.context}, by, key)


@routes.post("/approve", status_code=202, summary="Approve what a plan waits for")
async def approve(backend: Here, by: By, plan_id: PlanId, body: AnswerOf, key: IdempotencyKey = None) -> Accepted:
    """Sends the expected event with ``approved``, ``by``, ``reason`` and your data.

    409 when the plan does not wait for an approval, or for another one than `request_id` names; 422 when the data
    break the event's schema.
    """
    return await answer(backend, plan_id, True, body, by, key)


@routes.post("/reject", status_code=202, summary="Reject what a plan waits for")
async def reject(backend: Here, by: By, plan_id: PlanId, body: AnswerOf, key: IdempotencyKey = None) -> Accepted:
    """Sends the same event as an approval, with ``approved`` false, and the plan goes on with it; cancel ends a plan.

    409 also when the plan would take a no for a yes.
    """
    return await answer(backend, plan_id, False, body, by, key)


@routes.post("/retry", status_code=201, summary="Retry a failed plan")
async def retry(backend: Here, by: By, plan_id: PlanId, body: Nothing, key: IdempotencyKey = None) -> Retried:
    """Starts a new plan with the same goal, session, user and tenant. 409 unless the plan failed or was cancelled."""
    checkpoint = await backend.checkpoint(plan_id)
    plan = checkpoint.summary
    if plan.status not in (PlanStatus.FAILED, PlanStatus.CANCELLED):
        raise Refused(409, f"plan {plan_id} is {plan.status}: only a failed or cancelled plan can be retried")
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
        reuse=True,
    )
    backend.submitted(handle.plan_id)
    return Retried(plan_id=handle.plan_id, retry_of=plan.plan_id)


async def send_once(
    backend: Backend,
    plan_id: str,
    move: str,
    by: str,
    key: str | None,
    send: Callable[[str], Awaitable[SignalOutcome | None]],
) -> Accepted:
    """Send an event under an id that requests with the same idempotency key share, so that it takes effect once.

    Args:
        backend: The deployment.
        plan_id: The plan.
        move: Name of what is done, which tells requests of different kinds with one key apart.
        by: The user.
        key: The idempotency key.
        send: Sends the event with the id that it is given.
    """
    event_id = f"console:{stable_id(plan_id, move, by, key)}" if key is not None else uuid4().hex
    try:
        outcome = await send(event_id)
    except (PlanFinished, NotAwaited):
        done = await done_before(backend, plan_id, event_id) if key is not None else None
        if done is None:
            raise
        return done
    return Accepted(plan_id=plan_id, event_id=event_id, outcome=outcome)


async def answer(backend: Backend, plan_id: str, approved: bool, body: AnswerOf, by: str, key: str | None) -> Accepted:
    """Answer what a plan waits for people to decide; repeated with the same idempotency key, it counts once."""
    handle, data = backend.handle(plan_id), sendable(body.data)
    decide = handle.approve if approved else handle.reject

    async def send(event_id: str) -> SignalOutcome:
        outcome = await decide(data=data, reason=body.reason, user_id=by, event_id=event_id, request_id=body.request_id)
        await backend.approvals.assign((await backend.checkpoint(plan_id)).correlation_id, "", by)
        return outcome

    return await send_once(backend, plan_id, "answer", by, key, send)


async def _send(backend: Backend, plan_id: str, event_type: str, data: Any, by: str, key: str | None) -> Accepted:
    handle, said = backend.handle(plan_id), sendable(data)

    async def send(event_id: str) -> SignalOutcome | None:
        if event_type not in CONTROLS:
            return await handle.signal(event_type, said, user_id=by, event_id=event_id)
        await handle.control(event_type, said, user_id=by, event_id=event_id)
        return None

    return await send_once(backend, plan_id, event_type, by, key, send)


async def done_before(backend: Backend, plan_id: str, event_id: str) -> Accepted | None:
    """The response to an earlier request that has sent the event, if the plan has processed it."""
    history = await backend.history(await backend.checkpoint(plan_id))
    entry = next((each for each in history if (each.get("event") or {}).get("id") == event_id), None)
    if entry is None:
        return None
    outcome = outcome_in(entry) if entry["event"]["type"] not in CONTROLS else None
    return Accepted(plan_id=plan_id, event_id=event_id, outcome=outcome)
