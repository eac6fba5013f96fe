"""Lists, submits and shows plans."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from pydantic import AfterValidator, AwareDatetime

from plancast.client.results import response_of
from plancast.console.routes.plan_details import Known
from plancast.console.schemas.plans import (
    GoalOf,
    Graph,
    History,
    Plan,
    PlanPage,
    PlanStanding,
    Result,
    Spans,
    StoredSize,
    Submission,
    Submitted,
    Tree,
)
from plancast.console.service.auth import By
from plancast.console.service.backend import Backend, Here
from plancast.console.service.errors import Refused
from plancast.console.service.limits import Looking
from plancast.console.service.plan_index import PlanQuery
from plancast.console.service.plan_order import Direction, PlanOrder, Sort
from plancast.console.views.graph import graph_of, step_of
from plancast.console.views.plans import approval_view, entry_of, groups_of, summary_of, usage_of, waits_of
from plancast.console.views.spans import spans_of
from plancast.json_values.normalize import plain
from plancast.plan.attributes import read_attribute
from plancast.plan.control_events import BY
from plancast.plan.status import ListedStatus, PlanStatus
from plancast.plan_store import timeline
from plancast.plan_store.effects import effects_of
from plancast.plan_store.plan_size import size_of
from plancast.plan_store.store import check_repetition
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.event_data import read_value
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary

SLASH = "\ue000"
"""Represents a slash inside a plan id; see :mod:`plancast.console.api`."""
MAX_CHILDREN = 200
MAX_TREE = 2000
"""Maximum number of plans in a tree."""
MAX_WAIT = 60.0
MOST_WORDS = 16
MOST_ATTRIBUTES = 16

PlanId = Annotated[
    str,
    Path(min_length=1, max_length=400, description="Id of the plan."),
    AfterValidator(lambda name: name.replace(SLASH, "/")),
]
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The reference's `sha256`.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Requests with the same key take effect once.",
    ),
]
Statuses = Annotated[list[ListedStatus | Literal[""]] | None, Query(description="Only plans with these statuses.")]
Detailed = Annotated[bool, Query(description="With what each plan waits for, or its result or error.")]
Moment = Annotated[AwareDatetime | Literal[""], Query(description="A time with its zone: 2026-01-31T08:00:00Z.")]
routes = APIRouter(prefix="/plans", tags=["plans"])


def plan_query(
    status: Statuses = None,
    session_id: Annotated[str, Query(max_length=400, description="Only plans of this session.")] = "",
    tenant_id: Annotated[str, Query(max_length=400, description="Only plans of this tenant.")] = "",
    goal: Annotated[str, Query(max_length=400, description="Only plans of this goal, by its event type.")] = "",
    parent: Annotated[str, Query(max_length=400, description="Only plans of this parent, by its id.")] = "",
    text: Annotated[
        str, Query(max_length=400, description="Words in plan id, goal, state, session, user or tenant.")
    ] = "",
    attribute: Annotated[
        list[str] | None, Query(max_length=MOST_ATTRIBUTES, description="Search attributes, as `name=value`.")
    ] = None,
    created_after: Moment = "",
    created_before: Moment = "",
) -> PlanQuery:
    """Read the filters of a list from its query."""
    if len(text.split()) > MOST_WORDS:
        raise Refused(422, f"query.text: at most {MOST_WORDS} words are allowed")
    try:
        having = tuple(read_attribute(each) for each in attribute or () if each)
    except ValueError as error:
        raise Refused(422, f"query.attribute: {error}") from error
    statuses = frozenset(str(each) for each in status or () if each)
    after, before = (each.timestamp() if each else None for each in (created_after, created_before))
    return PlanQuery(statuses, session_id, tenant_id, goal, parent, text, having, after, before)


def stable_id(*parts: str) -> str:
    """A deterministic id."""
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def sendable(data: Any) -> Any:
    """Normalize the data of an event.

    Raises:
        Refused: it contains NaN or infinity, or is nested too deep.
    """
    try:
        return plain(data)
    except (TypeError, ValueError) as error:
        raise Refused(422, f"the data cannot be sent: {error}") from error


@routes.get("", summary="List plans", dependencies=[Looking])
async def list_plans(
    backend: Here,
    known: Known,
    asked: Annotated[PlanQuery, Depends(plan_query)],
    sort: Sort = "updated",
    order: Direction = "desc",
    data: Annotated[str, Query(max_length=400, description="Words in the data of goals, of the newest plans.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=1000, description="`next` of the previous page.")] = None,
    details: Detailed = False,
) -> PlanPage:
    """Stored plans with their counts by status; newest first, unless another order is asked for.

    `searched` is the number of plans whose data were searched, at most the 2,000 that were updated last.
    """
    index, words = await backend.plans(), [word.casefold() for word in data.split()[:MOST_WORDS]]
    found, searched = await backend.found(asked), None
    if words:
        found, searched = await backend.goal_data.having(list(index.rows())[::-1] if found is None else found, words)
    try:
        page = index.page(asked, order=PlanOrder(sort, order), limit=limit, cursor=cursor, found=found)
    except ValueError as error:
        raise Refused(422, str(error)) from error
    shown = await known.of(page.rows) if details else {}
    return PlanPage(
        items=[summary_of(row.summary, shown.get(row.key)) for row in page.rows],
        next=page.next,
        total=page.total,
        counts=page.counts,
        complete=index.loaded,
        searched=searched,
    )


@routes.post("", status_code=201, summary="Submit a goal", responses={200: {"model": Submitted}})
async def submit(
    backend: Here, by: By, body: Submission, response: Response, idempotency_key: IdempotencyKey = None
) -> Submitted:
    """Publishes a goal durably. 200 when the correlation id already has a plan; 409 when that has other data.

    422 when nothing takes the goal, or its data break the goal's schema; 404 when a plan of ``after`` is unknown.
    """
    name = body.correlation_id
    if name is None and idempotency_key is not None:
        name = stable_id("submit", by, idempotency_key)
    if name in body.after:
        raise Refused(422, f"plan {str(name)[:200]} cannot begin after itself")
    if name is not None:
        known = await backend.bus.checkpoints.load(name)
        if known is not None and (body.tenant_id or "") == known.summary.tenant_id:
            if not body.reuse:
                await check_repetition(backend.bus, name, body.tenant_id or "", body.event_type, sendable(body.data))
            response.status_code = 200
            return Submitted(plan_id=known.summary.plan_id, status=PlanStatus(known.summary.status))
        if known is not None:
            raise Refused(409, f"the correlation id {name[:200]} is already in use")
    handle = await backend.client.submit(
        body.event_type,
        sendable(body.data),
        response_event=body.response_event,
        correlation_id=name,
        session_id=body.session_id,
        user_id=body.user_id,
        tenant_id=body.tenant_id,
        metadata={BY: by},
        deadline=body.deadline,
        after=body.after,
        reuse=body.reuse,
    )
    backend.submitted(handle.plan_id)
    return Submitted(plan_id=handle.plan_id, status=PlanStatus.PENDING)


@routes.get("/{plan_id}", summary="A plan")
async def get_plan(backend: Here, plan_id: PlanId) -> Plan:
    """The plan without its history: state, open requests and results."""
    checkpoint = await backend.checkpoint(plan_id)
    state, history = await backend.state(checkpoint), await backend.history(checkpoint)
    people = await backend.registry.human_events()
    index = await backend.plans()
    ended = response_of(checkpoint) or {}
    return Plan(
        **summary_of(checkpoint.summary).model_dump(),
        step=step_of(state),
        correlation_id=checkpoint.correlation_id,
        goal=GoalOf(event_type=state["goal_event"], data=state.get("goal_data") or {}),
        results=state["results"],
        result=ended.get("result"),
        error=state.get("error"),
        pause_reason=state.get("pause_reason"),
        waiting_for=waits_of(state, history, people),
        listens_for=[] if ended else timeline.listens_for(state),
        approval=approval_view(state, history, people),
        usage=usage_of(state, history),
        children=[summary_of(each) for each in index.children(checkpoint.summary.plan_id)[:MAX_CHILDREN]],
        groups=groups_of(state),
        effects=len(effects_of(state, await backend.effects.types())),
        machine=bool(state["state_machine"]),
        decider=state.get("decider") or "",
        planner_version=state.get("planner_version") or "",
        size=StoredSize(**asdict(await size_of(backend.bus, checkpoint.correlation_id))),
    )


@routes.get("/{plan_id}/status", summary="A plan's status")
async def get_status(backend: Here, plan_id: PlanId) -> PlanStanding:
    """Status and revision; pending with revision 0 before the first turn."""
    return _standing(plan_id, await backend.begun(plan_id))


def _standing(plan_id: str, checkpoint: Checkpoint | None) -> PlanStanding:
    if checkpoint is None:
        return PlanStanding(plan_id=plan_id, status=PlanStatus.PENDING, revision=0)
    plan = checkpoint.summary
    return PlanStanding(plan_id=plan.plan_id, status=PlanStatus(plan.status), revision=plan.revision)


@routes.get("/{plan_id}/history", summary="A plan's history")
async def get_history(
    backend: Here,
    plan_id: PlanId,
    after: Annotated[int, Query(ge=0, le=2**53, description="Only turns after this revision.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> History:
    """The turns of a plan, oldest first."""
    entries = await backend.history(await backend.checkpoint(plan_id))
    behind = [entry for entry in entries if entry["revision"] > after]
    items = [entry_of(entry) for entry in behind[:limit]]
    return History(items=items, next=items[-1].revision if len(behind) > limit else None)


@routes.get("/{plan_id}/graph", summary="A plan as a graph")
async def get_graph(backend: Here, plan_id: PlanId) -> Graph:
    """The state machine or the decisions with a layout, and the path that the plan took."""
    checkpoint = await backend.checkpoint(plan_id)
    return graph_of(await backend.state(checkpoint), await backend.history(checkpoint))


@routes.get("/{plan_id}/spans", summary="A plan on a time axis")
async def get_spans(backend: Here, plan_id: PlanId) -> Spans:
    """Turns, states, pauses, tasks, child plans and model calls, with their beginning and end, oldest first."""
    checkpoint = await backend.checkpoint(plan_id)
    state, history = await backend.state(checkpoint), await backend.history(checkpoint)
    children = {child.plan_id for child in (await backend.plans()).children(checkpoint.summary.plan_id)}
    return spans_of(state, history, children, time.time())


@routes.get("/{plan_id}/tree", summary="A plan and its children", dependencies=[Looking])
async def get_tree(backend: Here, plan_id: PlanId) -> Tree:
    """The plan and all plans started by it, with their task groups."""
    checkpoint = await backend.checkpoint(plan_id)
    await backend.plans()
    return await _tree(backend, checkpoint.summary, {checkpoint.summary.plan_id}, depth=16)


async def _tree(backend: Backend, plan: PlanSummary, seen: set[str], depth: int) -> Tree:
    children = backend.index.children(plan.plan_id)
    shown = [child for child in children[:MAX_CHILDREN] if child.plan_id not in seen] if depth else []
    shown = shown[: max(0, MAX_TREE - len(seen))]
    seen.update(child.plan_id for child in shown)
    groups = []
    if plan.machine == "" or plan.machine is None:  # a state machine has no groups
        checkpoint = await backend.bus.checkpoints.load(plan.plan_id)
        groups = groups_of(await backend.state(checkpoint)) if checkpoint is not None else []
    below = [await _tree(backend, child, seen, depth - 1) for child in shown]
    return Tree(plan=summary_of(plan), children=below, groups=groups, more=len(children) - len(shown))


@routes.get("/{plan_id}/result", summary="A plan's result", responses={202: {"model": PlanStanding}})
async def get_result(
    backend: Here,
    by: By,
    plan_id: PlanId,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for the end.")] = 0.0,
) -> Result | PlanStanding:
    """The result of a plan; 202 when it has not ended within the wait."""
    checkpoint = await backend.begun(plan_id)
    if wait > 0 and (checkpoint is None or response_of(checkpoint) is None):
        with backend.streams.held_by(by):
            await _end_within(backend, plan_id, wait)
        checkpoint = await backend.begun(plan_id)
    ended = response_of(checkpoint) if checkpoint is not None else None
    if checkpoint is None or ended is None:
        response.status_code = 202
        return _standing(plan_id, checkpoint)
    plan = checkpoint.summary
    return Result(plan_id=plan.plan_id, status=PlanStatus(plan.status), result=ended["result"], error=ended["error"])


@routes.get("/{plan_id}/values/{sha256}", summary="Large data of an event")
async def get_value(backend: Here, plan_id: PlanId, sha256: Digest) -> Any:
    """The data of an event that carries a [reference](events.md#large-data); only data of the plan's tenant."""
    plan = (await backend.checkpoint(plan_id)).summary
    try:
        return await read_value(backend.bus, plan.tenant_id, plan.plan_id, bytes.fromhex(sha256))
    except InvalidEnvelope as error:
        raise Refused(404, str(error)) from error


async def _end_within(backend: Backend, plan_id: str, seconds: float) -> None:
    """Wait until a plan or the server ends, at most this long."""
    endings = [asyncio.ensure_future(each) for each in (backend.handle(plan_id).result(), backend.closing.wait())]
    try:
        await asyncio.wait(endings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in endings:
            each.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
