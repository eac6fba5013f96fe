"""Takes webhooks of the app: each begins a plan, or signals one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from plancast.console.routes.plan_actions import done_before
from plancast.console.service.backend import Backend, Here
from plancast.console.service.errors import Refused
from plancast.console.service.hook_receiver import HookReceiver, Received
from plancast.errors import PlanFinished
from plancast.plan.control_events import BY
from plancast.plan_store.store import find_checkpoint
from plancast.webhooks.hook import HookMessage

routes = APIRouter(include_in_schema=False)


@routes.post("/hooks/{name}", status_code=202)
async def receive(request: Request, backend: Here, name: str) -> JSONResponse:
    """Answers once the event is durable; a repetition of a message counts once, by its id."""
    receiver: HookReceiver = request.app.state.hooks
    received = await receiver.receive(name, request)
    if received.message is None:
        return JSONResponse({"outcome": "ignored"}, 202)
    send = _begin if received.begins_plan else _signal
    plan_id = await send(backend, received, received.message)
    return JSONResponse({"plan_id": plan_id, "event_id": received.message.event_id}, 202)


async def _begin(backend: Backend, received: Received, message: HookMessage) -> str:
    tenant = received.hook.tenant_id
    stored = await find_checkpoint(backend.bus.checkpoints, message.plan_id, folded=True)
    if stored is not None and stored.summary.tenant_id != tenant:
        raise Refused(409, f"plan {message.plan_id[:200]} is none of this hook's tenant: give it another correlation")
    handle = await backend.client.submit(
        received.hook.event_type,
        message.data,
        correlation_id=message.plan_id,
        tenant_id=tenant or None,
        metadata={BY: f"hook:{received.hook.name}"},
        reuse=message.plan_id == message.event_id,
    )
    backend.submitted(handle.plan_id)
    return handle.plan_id


async def _signal(backend: Backend, received: Received, message: HookMessage) -> str:
    handle = backend.client.plan(message.plan_id, tenant_id=received.hook.tenant_id)
    try:
        await handle.signal(received.hook.event_type, message.data, event_id=message.event_id, timeout=0)
    except PlanFinished:
        if await done_before(backend, message.plan_id, message.event_id) is None:
            raise
    return handle.plan_id
