"""Server-sent events for the list of plans and for single plans."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AbstractContextManager, aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from plancast.client.changes import Cursor, DecisionText, TaskChunk, TaskProgress
from plancast.client.plan_watch import Change, PlanWatch
from plancast.client.results import response_of
from plancast.console.routes.plan_details import Known, PlanDetails
from plancast.console.routes.plans import Detailed, PlanId, plan_query
from plancast.console.schemas.plans import DecisionWritten, PlanStanding, Result, TaskOutput, TaskProgressed
from plancast.console.service.auth import By
from plancast.console.service.backend import Backend, Here
from plancast.console.service.plan_index import PlanQuery
from plancast.console.views.plans import entry_of, summary_of
from plancast.plan.status import PlanStatus
from plancast_bus.ports.checkpoints import Checkpoint

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.2
MOST_A_TICK = 100
"""Maximum number of changes per tick that are sent one by one; older ones are skipped with a `more` event."""
MOST_LOOKED_AT = 5_000
"""Maximum number of changes per tick that are examined."""
COUNTS_SECONDS = 1.0
COUNTS_REST = 10
"""Minimum pause between two counts, in multiples of a count's duration."""
SEND_SECONDS = 30.0
"""Seconds without progress after which a slow client's stream is closed; the client can resume."""
CURSOR = r"^[0-9]{1,16}(\.[0-9]{1,16})?$"
"""Pattern of :class:`~plancast.client.changes.Cursor`."""
PING_SECONDS = 15
routes = APIRouter(prefix="/plans", tags=["streams"])


def _stream_of(*names: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI response of a stream with these events."""
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


def _event(name: str, body: BaseModel | dict[str, Any], cursor: str | None = None) -> ServerSentEvent:
    data = body.model_dump_json(by_alias=True) if isinstance(body, BaseModel) else json.dumps(body)
    return ServerSentEvent(data, event=name, id=cursor)


class HeldStream(EventSourceResponse):
    """A response that holds a slot while it streams."""

    def __init__(self, events: AsyncIterable[Any], slot: AbstractContextManager[None]) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(events, ping=PING_SECONDS, headers=headers, send_timeout=SEND_SECONDS)
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            try:
                await super().__call__(scope, receive, send)
            except* SendTimeoutError:
                logger.info("closed a stream whose client does not read")


@routes.get(
    "/stream",
    summary="Follow the list of plans",
    response_class=EventSourceResponse,
    responses=_stream_of("plan", "counts", "more"),
)
async def stream_plans(
    backend: Here, by: By, known: Known, asked: Annotated[PlanQuery, Depends(plan_query)], details: Detailed = False
) -> EventSourceResponse:
    """Events: `plan` with a summary per change, `counts` at most once a second, `more` for skipped changes."""
    return HeldStream(_changes(backend, asked, known if details else None), backend.streams.held_by(by))


async def _changes(backend: Backend, asked: PlanQuery, details: PlanDetails | None) -> AsyncIterator[ServerSentEvent]:
    # The status is not filtered: a plan that leaves the plan_query status is a change of the list as well.
    index, loop = backend.index, asyncio.get_running_loop()
    sent: dict[str, int] | None = None
    due, seen = float("-inf"), index.version
    while not backend.closing.is_set():
        # No queue per client: changes since the last tick are read from the index, once per plan.
        moved = index.changed_after(seen, MOST_LOOKED_AT)
        seen = index.version
        rows = list(asked.select(moved))
        if len(rows) > MOST_A_TICK:
            yield _event("more", {"skipped": len(rows) - MOST_A_TICK})
        shown = await details.of(rows[:MOST_A_TICK]) if details is not None else {}
        for row in reversed(rows[:MOST_A_TICK]):
            yield _event("plan", summary_of(row.summary, shown.get(row.key)))
        if loop.time() >= due:
            began = loop.time()
            counts = await backend.counts(asked)
            due = began + max(COUNTS_SECONDS, COUNTS_REST * (loop.time() - began))
            if counts != sent:
                sent = counts
                yield _event("counts", sent)
        await _pause(backend, TICK_SECONDS)


@routes.get(
    "/{plan_id}/stream",
    summary="Follow a plan",
    response_class=EventSourceResponse,
    responses=_stream_of("status", "change", "progress", "chunk", "tokens", "end"),
)
async def stream_plan(
    backend: Here,
    by: By,
    plan_id: PlanId,
    after: Annotated[
        str | None,
        Query(pattern=CURSOR, description="Only changes after this one: the `id` of an event, or a turn's revision."),
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> EventSourceResponse:
    """Events: `status`, `change` per turn, `progress` and `chunk` of tasks, `tokens` of models, `end` with the result.

    Without `after` or `Last-Event-ID` the stream starts with the newest turn.
    """
    checkpoint = await backend.checkpoint(plan_id)
    if after is None and last_event_id is not None and re.fullmatch(CURSOR, last_event_id):
        after = last_event_id
    cursor = Cursor(checkpoint.revision - 1) if after is None else Cursor.read(after)
    return HeldStream(_plan_changes(backend, checkpoint, cursor), backend.streams.held_by(by))


async def _plan_changes(backend: Backend, newest: Checkpoint, after: Cursor) -> AsyncIterator[ServerSentEvent]:
    watch = PlanWatch(backend.bus, newest.correlation_id, newest.summary.plan_id, after, is_over=backend.closing.is_set)
    plan, status = newest.summary, PlanStatus(newest.summary.status)
    yield _event("status", PlanStanding(plan_id=plan.plan_id, status=status, revision=plan.revision))
    async with aclosing(watch.changes()) as changes:
        async for each in until_closing(backend, changes):
            change, newest, entry = each.change, each.checkpoint or newest, each.entry
            if change.status is not status:
                status = change.status
                standing = PlanStanding(plan_id=plan.plan_id, status=status, revision=change.revision)
                yield _event("status", standing)
            if isinstance(change, TaskProgress):
                yield _event("progress", TaskProgressed.model_validate(change, from_attributes=True), change.cursor)
            elif isinstance(change, TaskChunk):
                yield _event("chunk", TaskOutput.model_validate(change, from_attributes=True), change.cursor)
            elif isinstance(change, DecisionText):
                yield _event("tokens", DecisionWritten.model_validate(change, from_attributes=True), change.cursor)
            else:
                yield _event("change", entry_of(entry), change.cursor)
    ended = response_of(newest)
    if ended is not None:
        plan = newest.summary
        yield _event(
            "end",
            Result(plan_id=plan.plan_id, status=PlanStatus(plan.status), result=ended["result"], error=ended["error"]),
        )


async def until_closing(backend: Backend, changes: AsyncGenerator[Change]) -> AsyncGenerator[Change]:
    """Pass changes on until the server ends."""
    spawn = asyncio.get_running_loop().create_task
    closing = spawn(backend.closing.wait())
    following: asyncio.Task[Change | None] | None = None
    try:
        while True:
            following = spawn(_next(changes))
            await asyncio.wait((following, closing), return_when=asyncio.FIRST_COMPLETED)
            if not following.done() or (change := following.result()) is None:
                return
            yield change
    finally:
        tasks = [task for task in (following, closing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(changes: AsyncGenerator[Change]) -> Change | None:
    return await anext(changes, None)


async def _pause(backend: Backend, seconds: float) -> None:
    try:
        await asyncio.wait_for(backend.closing.wait(), seconds)
    except TimeoutError:
        return
