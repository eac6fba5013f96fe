"""Answers of remote agents that would fill the memory."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from plancast.a2a_client.bounds import MAX_BYTES
from plancast.a2a_client.options import AgentOptions
from plancast.a2a_client.remote import RemoteAgent, Report
from plancast.errors import RetryableError, TerminalError

pytestmark = pytest.mark.asyncio(loop_scope="session")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
PIECE = b" " * (1 << 20)


async def endless(request: web.Request) -> web.StreamResponse:
    """More than is read; not without end, for the sake of the machine on which the bound is gone."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(MAX_BYTES // len(PIECE) + 2):
            await response.write(PIECE)
    return response


async def bomb(_request: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    return web.Response(body=gzip.compress(PIECE), headers=headers)


async def card(request: web.Request) -> web.StreamResponse:
    interface = {"url": f"http://{request.host}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return web.json_response({
        "name": "liar", "description": "", "version": "1", "supportedInterfaces": [interface], "capabilities": {},
        "defaultInputModes": [], "defaultOutputModes": [], "skills": [],
    })  # fmt: skip


@contextlib.asynccontextmanager
async def lying(get_card: Answer, answer: Answer) -> AsyncIterator[AgentOptions]:
    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", get_card)
    app.router.add_post("/a2a", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield AgentOptions("liar", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("get_card", "reason"), [(endless, "more than"), (bomb, "compressed")])
async def test_a_card_that_is_too_large_or_compressed_is_none(get_card: Answer, reason: str) -> None:
    async with lying(get_card, endless) as options:
        with pytest.raises(TerminalError, match=reason):
            async with RemoteAgent.connected(options):
                pass


@pytest.mark.parametrize(("answer", "reason"), [(endless, "more than"), (bomb, "compressed")])
async def test_an_answer_that_is_too_large_or_compressed_ends_the_task(answer: Answer, reason: str) -> None:
    async def report(_event: Report) -> None: ...

    async with lying(card, answer) as options, RemoteAgent.connected(options) as agent:
        with pytest.raises(TerminalError, match=reason) as refused:
            await agent.send({"a": 1}, "m-1", again=False)
        assert not isinstance(refused.value, RetryableError)
        with pytest.raises(TerminalError, match=reason):
            await agent.follow("t-1", report)
