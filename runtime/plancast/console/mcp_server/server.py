"""PlanServer: the protocol's methods over a deployment."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from plancast.console.mcp_server import plans
from plancast.console.mcp_server.calls import Caller, Context, Outcome, PlanCalls
from plancast.console.mcp_server.goals import tools_page
from plancast.console.service.backend import Backend
from plancast.console.service.errors import Refused
from plancast_bus.errors import BusError

INSTRUCTIONS: Final = (
    "Each tool but plan_result, plan_answer and plan_cancel runs a durable plan, and returns its result. A plan "
    "outlives its call: its id is in the result's _meta as plancast/plan_id, and plan://ID shows it. Calls with the "
    "same plancast/idempotency_key in _meta are one plan."
)
_CANCELLED: Final = "notifications/cancelled"


class PlanServer:
    """Serves a deployment to the clients of one transport.

    Args:
        backend: The deployment.
        user_of: The user of a request.
        tenant_id: Tenant of all plans that are begun and seen; empty for all tenants.
    """

    def __init__(self, backend: Backend, user_of: Callable[[Context], str], tenant_id: str = "") -> None:
        self._backend = backend
        self._user_of = user_of
        self._tenant_id = tenant_id
        self._calls = PlanCalls(backend, tenant_id)
        self.sdk: Server[Any] = Server(
            "plancast",
            version=version("plancast"),
            instructions=INSTRUCTIONS,
            get_tool_input_schema=lambda _: None,  # no argument is mirrored in a header
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )
        self.sdk.middleware.append(self._observe)

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await tools_page(self._backend, params.cursor if params is not None else None)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> Outcome:
        return await self._calls.call(Caller(context, self._user_of(context)), params)

    async def _list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await plans.plans_page(self._backend, self._tenant_id, params.cursor if params is not None else None)

    async def _list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return plans.TEMPLATES

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await plans.read_plan(self._backend, self._tenant_id, params.uri)

    async def _observe(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Cancel the plans of calls that clients cancel, and name the reason where NATS does not answer."""
        if ctx.method == _CANCELLED and ctx.params is not None:
            await self._calls.cancel(Caller(ctx, self._user_of(ctx)), ctx.params.get("requestId"))
        try:
            return await call_next(ctx)
        except (BusError, Refused) as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
