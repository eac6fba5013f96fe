"""McpEndpoint: serves MCP's streamable HTTP; the SDK is imported with the first request."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from plancast.console.service.backend import Backend
from plancast.console.service.errors import problem

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Receive, Scope, Send

MAX_SESSIONS: Final = 1_000
"""Most sessions of clients of the protocol before 2026-07-28; a session that rests for half an hour is ended."""


class McpEndpoint:
    """ASGI endpoint behind the console's `Guard`, which has authenticated each request.

    Args:
        backend: The deployment.
        max_bytes: Most bytes of a request.
    """

    def __init__(self, backend: Backend, max_bytes: int) -> None:
        self._backend = backend
        self._max_bytes = max_bytes
        self._starting = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._manager: StreamableHTTPSessionManager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if find_spec("mcp") is None:
            await problem(501, "MCP needs `pip install 'plancast[mcp]'`")(scope, receive, send)
            return
        async with self._starting:
            if self._running is None:
                await self._start()
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        # By it the SDK keeps a session from other users who know its id.
        user = AuthenticatedUser(AccessToken(token="", client_id=scope["state"]["user"], scopes=[]))
        await self._manager.handle_request({**scope, "user": user}, receive, send)

    async def _start(self) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from plancast.console.mcp_server.server import PlanServer

        server = PlanServer(self._backend, _user_of, self._backend.settings.console.mcp_tenant)
        self._manager = StreamableHTTPSessionManager(
            server.sdk, max_request_body_size=self._max_bytes, max_sessions=MAX_SESSIONS
        )
        started = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(started))
        await started.wait()

    async def _run(self, started: asyncio.Event) -> None:
        async with self._manager.run():
            started.set()
            await self._backend.closing.wait()

    async def stop(self) -> None:
        """End all sessions, once the backend closes."""
        if self._running is not None:
            await asyncio.wait((self._running,))


def _user_of(context: Any) -> str:
    user: str = context.request.scope["state"]["user"]
    return user
