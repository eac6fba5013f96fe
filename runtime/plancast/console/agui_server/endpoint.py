"""AguiEndpoint: serves ``POST /agui``; the SDK is imported with the first request."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.requests import Request

from plancast.console.service.backend import Backend
from plancast.console.service.errors import problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class AguiEndpoint:
    """ASGI endpoint behind the console's `Guard`, which has authenticated each request.

    Args:
        backend: The deployment.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            refusal = problem(405, "a run is a POST of a RunAgentInput", headers={"Allow": "POST"})
            await refusal(scope, receive, send)
            return
        if find_spec("ag_ui") is None:
            await problem(501, "AG-UI needs `pip install 'plancast[agui]'`")(scope, receive, send)
            return
        from plancast.console.agui_server.run_stream import respond

        response = await respond(self._backend, Request(scope, receive))
        await response(scope, receive, send)
