"""Resources: ``plan://ID`` is a plan's state, ``plan://ID/history`` its turns."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote, unquote

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from plancast.console.routes.plans import get_plan
from plancast.console.service.backend import Backend
from plancast.console.service.plan_index import PlanQuery
from plancast.console.views.plans import entry_of
from plancast.errors import PlanNotFound

SCHEME: Final = "plan://"
HISTORY: Final = "/history"
JSON: Final = "application/json"
PAGE: Final = 50
MAX_TURNS: Final = 500
"""Newest turns of a history that is read."""
TEMPLATES: Final = ListResourceTemplatesResult(
    resource_templates=[
        ResourceTemplate(
            name="plan",
            uri_template=SCHEME + "{plan_id}",
            description="State, results and open requests of a plan. The id is percent-encoded.",
            mime_type=JSON,
        ),
        ResourceTemplate(
            name="history",
            uri_template=SCHEME + "{plan_id}" + HISTORY,
            description=f"The newest {MAX_TURNS} turns of a plan, oldest first.",
            mime_type=JSON,
        ),
    ]
)


def uri_of(plan_id: str) -> str:
    """The URI of a plan."""
    return SCHEME + quote(plan_id, safe="")


async def plans_page(backend: Backend, tenant_id: str, cursor: str | None) -> ListResourcesResult:
    """A page of the plans, those that have moved last first."""
    index = await backend.plans()
    asked = PlanQuery(tenant_id=tenant_id)
    try:
        page = index.page(asked, limit=PAGE, cursor=cursor, found=await backend.found(asked))
    except ValueError as error:
        raise MCPError(INVALID_PARAMS, str(error)) from None
    plans = [row.summary for row in page.rows]
    resources = [
        Resource(
            name=each.plan_id,
            title=f"{each.goal_event}: {each.status}",
            uri=uri_of(each.plan_id),
            description=f"in state {each.current_state}" if each.current_state else None,
            mime_type=JSON,
        )
        for each in plans
    ]
    return ListResourcesResult(resources=resources, next_cursor=page.next)


async def read_plan(backend: Backend, tenant_id: str, uri: str) -> ReadResourceResult:
    """Read the state or the history of a plan."""
    if not uri.startswith(SCHEME):
        raise MCPError(INVALID_PARAMS, f"there is no resource {uri[:200]!r}: its URI begins with {SCHEME}")
    name = uri.removeprefix(SCHEME)
    plan_id = unquote(name.removesuffix(HISTORY))
    try:
        checkpoint = await backend.checkpoint(plan_id)
        if tenant_id and checkpoint.summary.tenant_id != tenant_id:
            raise PlanNotFound(f"plan {plan_id[:200]} is unknown, or was deleted after its retention")
        if name.endswith(HISTORY):
            entries = (await backend.history(checkpoint))[-MAX_TURNS:]
            text = json.dumps([entry_of(each).model_dump(mode="json") for each in entries])
        else:
            text = (await get_plan(backend, plan_id)).model_dump_json()
    except PlanNotFound as error:
        raise MCPError(INVALID_PARAMS, str(error)) from None
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=JSON, text=text)])
