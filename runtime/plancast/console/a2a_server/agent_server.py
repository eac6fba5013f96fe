"""AgentServer: what of A2A needs its SDK, put together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from plancast.console.a2a_server.card import card_of
from plancast.console.a2a_server.handler import PlanRequests, RequestContexts
from plancast.console.a2a_server.plans import TaskPlans
from plancast.console.a2a_server.push_configs import PushConfigs
from plancast.console.a2a_server.push_sender import PushSender
from plancast.console.routes.event_streams import HeldStream
from plancast.console.service.backend import Backend


class AgentServer:
    """A deployment as an agent.

    Args:
        backend: The deployment.
        url_of: Where the agent takes requests, as the client of a request names it.
    """

    def __init__(self, backend: Backend, url_of: Callable[[Request], str]) -> None:
        self._backend = backend
        self._configs = PushConfigs(backend.bus.registry)
        plans = TaskPlans(backend)
        self._requests = JsonRpcDispatcher(PlanRequests(backend, plans, self._configs), RequestContexts(url_of))
        self.sender = PushSender(backend, plans, self._configs)

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        response: Response = await self._requests.handle_requests(request)
        if isinstance(response, EventSourceResponse):  # the SDK waits for ever for a client that does not read
            return HeldStream(response.body_iterator, nullcontext())
        return response

    async def card(self, url: str, *, with_skills: bool) -> dict[str, Any]:
        """The agent's card as JSON."""
        tenant, pushes = self._backend.settings.console.a2a_tenant, await self._configs.is_allowed()
        return agent_card_to_dict(await card_of(self._backend, url, tenant, with_skills=with_skills, pushes=pushes))
