"""An agent of the official SDK, with its tasks in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Role, Task, TaskState, TaskStatus
from starlette.applications import Starlette
from starlette.responses import Response

from plancast.a2a_client.values import part_of


class SdkAgent(AgentExecutor):
    """Does what the first word of a message says."""

    def __init__(self) -> None:
        self.executed = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.executed += 1
        word, _, rest = context.get_user_input().partition(" ")
        if word == "message":
            await event_queue.enqueue_event(new_text_message(rest, role=Role.ROLE_AGENT))
            return
        assert context.task_id is not None
        assert context.context_id is not None
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=status))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        if word == "ask":
            await task.requires_input(task.new_agent_message([Part(text="Where?")]))
        elif word == "fail":
            await task.failed(task.new_agent_message([Part(text=rest)]))
        else:
            await task.add_artifact([part_of({"n": 3} if word == "data" else rest)])
            await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


@contextlib.asynccontextmanager
async def sdk_agent(agent: SdkAgent | None = None, *, loses_first: bool = False) -> AsyncIterator[str]:
    """Serve an agent; yields the address of its host."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    card = AgentCard(
        name="other",
        description="Does what the first word says",
        version="1",
        supported_interfaces=[AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="do", name="do", description="Do it", tags=["all"])],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(agent or SdkAgent(), InMemoryTaskStore(), card)
    app: Any = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
    if loses_first:
        app = _Lossy(app)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        await serving


class _Lossy:
    """Answers the first request by POST with the error of a gateway, after it was done."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lost = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or self._lost:
            await self._app(scope, receive, send)
            return
        self._lost = True

        async def swallow(message: Any) -> None:
            pass

        await self._app(scope, receive, swallow)
        await Response(status_code=504)(scope, receive, send)
