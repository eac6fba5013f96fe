"""A2aEndpoint: serves A2A over JSON-RPC; the SDK is imported with the first request."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plancast.console.service.auth import A2A
from plancast.console.service.backend import Backend
from plancast.console.service.errors import problem

if TYPE_CHECKING:
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

CARD: Final = "/.well-known/agent-card.json"
"""Path of the agent's card, which clients read before they have a token."""


class A2aEndpoint:
    """Endpoint behind the console's `Guard`, which has authenticated each request.

    Args:
        backend: The deployment.
        own_user: There is but the user of this process, whose machine alone reaches the endpoint: the card shows the
            skills without a token, too.
    """

    def __init__(self, backend: Backend, *, own_user: bool) -> None:
        self._backend = backend
        self._own_user = own_user
        self._dispatcher: JsonRpcDispatcher | None = None

    async def answer(self, request: Request) -> Response:
        """Answer a request of JSON-RPC."""
        if find_spec("a2a") is None:
            return _missing()
        if self._dispatcher is None:
            self._dispatcher = self._dispatcher_of()
        return await self._dispatcher.handle_requests(request)

    async def card(self, request: Request) -> Response:
        """The agent's card: with the skills for users with a token."""
        if find_spec("a2a") is None:
            return _missing()
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict

        from plancast.console.a2a_server.card import card_of

        with_skills = self._own_user or request.state.user is not None
        tenant = self._backend.settings.console.a2a_tenant
        card = await card_of(self._backend, self._url(request), tenant, with_skills=with_skills)
        return JSONResponse(agent_card_to_dict(card), headers={"Cache-Control": "no-store"})

    def _url(self, request: Any) -> str:
        base = self._backend.settings.console.public_url or str(request.base_url)
        return f"{base.rstrip('/')}{A2A}"

    def _dispatcher_of(self) -> JsonRpcDispatcher:
        from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

        from plancast.console.a2a_server.handler import PlanRequests, RequestContexts

        return JsonRpcDispatcher(PlanRequests(self._backend), RequestContexts(self._url))


def _missing() -> Response:
    return problem(501, "A2A needs `pip install 'plancast[a2a]'`")
