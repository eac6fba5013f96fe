"""Server-sent events: the list of plans as it changes, and one plan until it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from plancast.client.results import response_of
from plancast.console.routes.plans import PlanId, wanted
from plancast.console.schemas.plans import PlanStanding, Result
from plancast.console.service.auth import By
from plancast.console.service.backend import Backend, Here
from plancast.console.service.plan_index import Wanted
from plancast.console.views.plans import entry_of, summary_of
from plancast.plan.status import PlanStatus
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.checkpoints import Checkpoint

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.2
MOST_A_TICK = 100
"""Changes of the list that are told one by one; of more, only the newest are, and that there are more."""
MOST_LOOKED_AT = 5_000
"""Changes of the list that are looked at in a tick."""
COUNTS_SECONDS = 1.0
COUNTS_REST = 10
"""How many times what counting took lies between two counts."""
SEND_SECONDS = 30.0
"""How long a reader may take nothing before its stream is ended; it may go on where it was."""
AGAIN_SECONDS = 0.5
PING_SECONDS = 15
routes = APIRouter(prefix="/plans", tags=["streams"])


def _stream_of(*names: str) -> dict[int | str, dict[str, Any]]:
    """How the schema tells of a stream: by what each of its events is."""
    event = {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": [*names]},
            "data": {"type": "string", "contentMediaType": "application/json"},
            "id": {"type": "string"},
        },
        "required": ["data"],
    }
    return {200: {"content": {"text/event-stream": {"schema": event}}, "description": "Server-sent events."}}


def _event(name: str, body: BaseModel | dict[str, Any], number: int | None = None) -> ServerSentEvent:
    data = body.model_dump_json(by_alias=True) if isinstance(body, BaseModel) else json.dumps(body)
    return ServerSentEvent(data, event=name, id=str(number) if number is not None else None)


class _Stream(EventSourceResponse):
    """A stream that holds a slot for as long as it is sent."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], slot: AbstractContextManager[None]) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(events, ping=PING_SECONDS, headers=headers, send_timeout=SEND_SECONDS)
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            try:
                await super().__call__(scope, receive, send)
            except* SendTimeoutError:
                logger.info("a stream is ended: its reader takes nothing")


@routes.get(
    "/stream",
    summary="Follow the list of plans",
    response_class=EventSourceResponse,
    responses=_stream_of("plan", "counts", "more"),
)
async def stream_plans(backend: Here, by: By, asked: Annotated[Wanted, Depends(wanted)]) -> EventSourceResponse:
    """`plan` with a summary for each change, `counts` at most once a second, `more` where changes were left out."""
    return _Stream(_changes(backend, asked), backend.streams.held_by(by))


async def _changes(backend: Backend, asked: Wanted) -> AsyncIterator[ServerSentEvent]:
    # A plan that leaves the status that is asked for is a change of the list too, so the status does not count here.
    index, loop = backend.index, asyncio.get_running_loop()
    told: dict[str, int] | None = None
    due, seen = float("-inf"), index.version
    while not backend.closing.is_set():
        # Nothing waits here for a slow reader: what moved meanwhile is found in the index, each plan once.
        moved = index.changed_after(seen, MOST_LOOKED_AT)
        seen = index.version
        rows = list(asked.among(moved))
        if len(rows) > MOST_A_TICK:
            yield _event("more", {"skipped": len(rows) - MOST_A_TICK})
        for row in reversed(rows[:MOST_A_TICK]):
            yield _event("plan", summary_of(row.summary))
        if loop.time() >= due:
            began = loop.time()
            counts = await backend.counts(asked)
            due = began + max(COUNTS_SECONDS, COUNTS_REST * (loop.time() - began))
            if counts != told:
                told = counts
                yield _event("counts", told)
        await _pause(backend, TICK_SECONDS)


@routes.get(
    "/{plan_id}/stream",
    summary="Follow a plan",
    response_class=EventSourceResponse,
    responses=_stream_of("status", "change", "end"),
)
async def stream_plan(
    backend: Here,
    by: By,
    plan_id: PlanId,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="Turns behind this revision.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=30)] = None,
) -> EventSourceResponse:
    """`status` at first and when it changes, `change` with each turn, and `end` with the result.

    Without `after` or `Last-Event-ID` it begins with the newest turn.
    """
    checkpoint = await backend.checkpoint(plan_id)
    if after is None and last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        after = int(last_event_id)
    events = _turns(backend, checkpoint, checkpoint.revision - 1 if after is None else after)
    return _Stream(events, backend.streams.held_by(by))


async def _turns(backend: Backend, first: Checkpoint, after: int) -> AsyncIterator[ServerSentEvent]:
    status = ""
    async with aclosing(_checkpoints(backend, first)) as checkpoints:
        async for checkpoint in checkpoints:
            plan = checkpoint.summary
            if plan.status != status:
                status = plan.status
                standing = PlanStanding(plan_id=plan.plan_id, status=PlanStatus(status), revision=plan.revision)
                yield _event("status", standing)
            for entry in await backend.history(checkpoint):
                if after < entry["revision"] <= checkpoint.revision:
                    after = entry["revision"]
                    yield _event("change", entry_of(entry), after)
            ended = response_of(checkpoint)
            if ended is not None:
                result = Result(
                    plan_id=plan.plan_id, status=PlanStatus(plan.status), result=ended["result"], error=ended["error"]
                )
                yield _event("end", result)
                return


async def _checkpoints(backend: Backend, first: Checkpoint) -> AsyncGenerator[Checkpoint, None]:
    """A plan's checkpoints until the server ends; the loss of NATS does not end them."""
    newest, moved = first, asyncio.Event()

    async def keep_up() -> None:
        nonlocal newest
        while True:
            with suppress(BusUnavailable):
                async for checkpoint in backend.bus.checkpoints.watch(first.correlation_id):
                    newest = checkpoint
                    moved.set()
            await asyncio.sleep(AGAIN_SECONDS)

    yield first
    version = first.version
    spawn = asyncio.get_running_loop().create_task
    tasks: list[asyncio.Task[Any]] = [spawn(keep_up()), spawn(backend.closing.wait())]
    try:
        while not backend.closing.is_set():
            waiting = spawn(moved.wait())
            await asyncio.wait((waiting, *tasks), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            moved.clear()
            if newest.version > version:
                version = newest.version
                yield newest
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pause(backend: Backend, seconds: float) -> None:
    try:
        await asyncio.wait_for(backend.closing.wait(), seconds)
    except TimeoutError:
        return
