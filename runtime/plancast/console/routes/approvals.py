"""Lists what plans wait for people to decide, and assigns it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from plancast.console.routes.plans import MOST_WORDS, PlanId
from plancast.console.schemas.plan_actions import ApprovalOf, Approvals, Assigned, Assignment
from plancast.console.service.approvals import ApprovalQuery
from plancast.console.service.auth import By
from plancast.console.service.backend import Here
from plancast.console.service.errors import Refused
from plancast.console.service.limits import Looking
from plancast.console.views.plans import approval_view, summary_of
from plancast.errors import NotAwaited
from plancast.plan_store.approvals import approval_of

routes = APIRouter(tags=["approvals"])


def approval_query(
    by: By,
    tenant_id: Annotated[str, Query(max_length=400)] = "",
    session_id: Annotated[str, Query(max_length=400)] = "",
    goal: Annotated[str, Query(max_length=400)] = "",
    text: Annotated[str, Query(max_length=400, description="Words in ids, goal, goal's data, and what is asked.")] = "",
    assignee: Annotated[str, Query(max_length=400, description="A user, `@me`, or `-` for nobody.")] = "",
) -> ApprovalQuery:
    """Read the filters of the list from its query."""
    if len(text.split()) > MOST_WORDS:
        raise Refused(422, f"query.text: at most {MOST_WORDS} words are allowed")
    return ApprovalQuery(tenant_id, session_id, goal, text, by if assignee == "@me" else assignee)


@routes.get("/approvals", summary="What plans wait for people to decide", dependencies=[Looking])
async def list_approvals(
    backend: Here,
    asked: Annotated[ApprovalQuery, Depends(approval_query)],
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=30, pattern="^[0-9]+$")] = None,
) -> Approvals:
    """Newest first: the goal's data, what is asked, the event that answers it with its schema, and the assignee.

    A `text` is searched in the newest 20,000, for at most 3 seconds (`searched`, of `waiting`); asked again, the search
    goes on with those that it has not read.
    """
    await backend.plans()
    people, before = await backend.registry.human_events(), int(cursor) if cursor is not None else None
    found = await backend.approvals.page(asked, people, limit=limit, before=before)
    assignees = await backend.approvals.assignees()
    items: list[ApprovalOf] = []
    for each in found.items:
        shown = approval_view(each.state, each.history, people)
        if shown is not None:
            plan = each.row.summary
            items.append(
                ApprovalOf(
                    **shown.model_dump(),
                    plan=summary_of(plan),
                    goal_data=each.state.get("goal_data") or {},
                    assignee=assignees.get(each.row.key, "").removeprefix("-"),
                    only_user=plan.user_id if backend.settings.plans.check_user else "",
                )
            )
    users = sorted(backend.settings.console.tokens)
    following = str(found.next) if found.next else None
    return Approvals(
        items=items, next=following, total=found.total, searched=found.searched, waiting=found.waiting, users=users
    )


@routes.post("/plans/{plan_id}/assign", summary="Assign what a plan waits for to a user")
async def assign(backend: Here, by: By, plan_id: PlanId, body: Assignment) -> Assigned:
    """Shown to all who look at approvals, until the plan is answered here; an empty name takes it back.

    409 when the plan does not wait for an approval.
    """
    checkpoint = await backend.checkpoint(plan_id)
    if approval_of(await backend.state(checkpoint), await backend.registry.human_events()) is None:
        raise NotAwaited(f"plan {plan_id} does not wait for an approval")
    await backend.approvals.assign(checkpoint.correlation_id, body.assignee, by)
    return Assigned(plan_id=checkpoint.summary.plan_id, assignee=body.assignee)
