"""A2aEndpoint: serves A2A over JSON-RPC; the SDK is imported when it is first needed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plancast.console.service.auth import A2A
from plancast.console.service.backend import Backend
from plancast.console.service.errors import problem
from plancast_bus.errors import AccessDenied, BusError

if TYPE_CHECKING:
    from plancast.console.a2a_server.agent_server import AgentServer

logger = logging.getLogger(__name__)
CARD: Final = "/.well-known/agent-card.json"
"""Path of the agent's card, which clients read before they have a token."""
PUSHES: Final = "a2a-push"
"""Kind of the registrations of push configurations, one for each plan; only logins of the runtime may read them."""
LOOK_SECONDS: Final = 15.0
"""Seconds between two looks for push configurations that another process has stored."""


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
        self._made: AgentServer | None = None
        self._needed = asyncio.Event()
        """Set when the SDK was needed."""
        self._pushing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send the events that push configurations ask for."""
        if find_spec("a2a") is not None:
            self._pushing = asyncio.get_running_loop().create_task(self._push())

    async def stop(self) -> None:
        """Stop sending, once the backend closes."""
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.wait((self._pushing,))

    async def answer(self, request: Request) -> Response:
        """Answer a request of JSON-RPC."""
        if find_spec("a2a") is None:
            return _missing()
        return await self._agent.answer(request)

    async def card(self, request: Request) -> Response:
        """The agent's card: with the skills for users with a token."""
        if find_spec("a2a") is None:
            return _missing()
        with_skills = self._own_user or request.state.user is not None
        card = await self._agent.card(self._url(request), with_skills=with_skills)
        return JSONResponse(card, headers={"Cache-Control": "no-store"})

    @property
    def _agent(self) -> AgentServer:
        if self._made is None:
            from plancast.console.a2a_server.agent_server import AgentServer

            self._made = AgentServer(self._backend, self._url)
            self._needed.set()
        return self._made

    def _url(self, request: Any) -> str:
        base = self._backend.settings.console.public_url or str(request.base_url)
        return f"{base.rstrip('/')}{A2A}"

    async def _push(self) -> None:
        """Send what is stored to be sent, once there is something, or may be."""
        while not self._needed.is_set():
            try:
                if await self._backend.bus.registry.list(PUSHES):
                    break
            except AccessDenied:
                return
            except BusError as error:
                logger.debug("push configurations cannot be read yet: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._needed.wait(), LOOK_SECONDS)
        await self._agent.sender.run()


def _missing() -> Response:
    return problem(501, "A2A needs `pip install 'plancast[a2a]'`")
