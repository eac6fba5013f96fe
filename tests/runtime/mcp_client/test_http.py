"""Tools of an MCP server over streamable HTTP, with a gateway in front of it that fails as gateways do."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Literal

import httpx2
import pytest
import uvicorn
from mcp import MCPError
from mcp.server import MCPServer
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from plancast import TerminalError, Worker
from plancast.errors import NotBegun, RetryableError
from plancast.mcp_client.calls import SENDING, CallLost, Sending, failure_of
from plancast.mcp_client.http import NotedTransport
from plancast_bus.errors import PlancastError

Fault = Literal["before", "after", "cut", "stream"]


class Gateway:
    """Passes requests on to a server whose tool pays, and fails at calls of the tool as it is scripted."""

    def __init__(self, *, has_sessions: bool = False) -> None:
        self.has_sessions = has_sessions
        """Speaks the protocol before 2026-07-28 only."""
        self.paid: list[str] = []
        self.faults: list[tuple[Fault, Response | None]] = []
        """Of the next calls: before or after they reach the server, or by cutting the response or its stream off."""
        self.headers: list[str | None] = []
        self.new_server()

    def new_server(self) -> None:
        server = MCPServer("bank", log_level="CRITICAL")

        @server.tool()
        def pay(invoice: str) -> dict[str, str]:
            """Pay an invoice."""
            self.paid.append(invoice)
            return {"paid": invoice}

        self.app = server.streamable_http_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        is_call = json.loads(body).get("method") == "tools/call"
        if self.has_sessions and headers.get(b"mcp-protocol-version", b"") >= b"2026":
            await Response(status_code=400)(scope, receive, send)
            return
        if is_call:
            self.headers.append(headers.get(b"authorization", b"").decode() or None)
        sent = False

        async def again() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        kind, response = self.faults.pop(0) if is_call and self.faults else (None, None)
        if kind != "before":
            await self.app(scope, again, self._swallow if kind is not None else send)
        if response is not None:
            await response(scope, receive, send)
        elif kind == "stream":
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"id: 1\ndata: \n\n", "more_body": False})
        elif kind == "cut":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            await send({"type": "http.response.body", "body": b'{"json', "more_body": False})

    async def _swallow(self, message: Message) -> None:
        return


@asynccontextmanager
async def served(gateway: Gateway, port: int = 0) -> AsyncIterator[str]:
    """Serve it on a free port, or one that was free before; its URL."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        config = uvicorn.Config(gateway, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving


async def pay(worker: Worker, invoice: str) -> Any:
    return await worker.tasks["bank.pay.requested"].handler(SimpleNamespace(data={"invoice": invoice}), None)


def status(code: int, **headers: str) -> Response:
    return Response(status_code=code, headers=headers)


REFUSED = JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such invoice"}}, 400)


@pytest.mark.parametrize(
    ("fault", "response", "error", "message"),
    [
        # Nothing is done for certain only where the server says so: it may be tried again.
        ("before", status(503, **{"retry-after": "0"}), NotBegun, "overloaded"),
        ("before", status(429), NotBegun, "overloaded"),
        ("before", status(401), TerminalError, "status 401"),
        ("before", status(413), TerminalError, "status 413"),
        ("before", REFUSED, TerminalError, "no such invoice"),
        # What a gateway says of an answer that it has lost proves nothing.
        ("after", status(503), CallLost, "status 503"),
        ("after", status(502), CallLost, "status 502"),
        ("after", status(504), CallLost, "status 504"),
        ("after", status(500), CallLost, "status 500"),
        ("after", status(408), CallLost, "status 408"),
        ("after", status(202), CallLost, "is lost"),
        ("cut", None, CallLost, "is lost"),
        ("stream", None, CallLost, "is lost"),  # that the stream cannot be resumed says nothing of the call
    ],
)
async def test_a_status_says_whether_a_call_may_be_tried_again(
    fault: Fault, response: Response | None, error: type[PlancastError], message: str
) -> None:
    gateway = Gateway()
    async with served(gateway) as url:
        never = Worker.from_mcp("bank", url=url, headers={"Authorization": "Bearer t"})
        await never.open()
        try:
            gateway.faults.append((fault, response))
            with pytest.raises(error, match=message):
                await pay(never, "i1")
            assert gateway.paid == ["i1"] * (fault != "before")
            assert await pay(never, "i2") == {"paid": "i2"}  # one failure is that of one call
            assert gateway.headers == ["Bearer t", "Bearer t"]
        finally:
            await never.close()
        safe = Worker.from_mcp("bank", url=url, repeat="safe", headers={"Authorization": "Bearer t"})
        await safe.open()
        try:
            gateway.faults.append((fault, response))
            expected = RetryableError if error is CallLost else error
            with pytest.raises(expected, match=message):
                await pay(safe, "i3")
        finally:
            await safe.close()


async def test_only_the_request_of_the_call_says_whether_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = NotedTransport()
    outcomes: list[httpx2.Response | Exception] = [
        httpx2.Response(307), httpx2.ReadError("gone"), httpx2.ConnectError("refused"), httpx2.ConnectError("refused"),
    ]  # fmt: skip

    async def send(request: httpx2.Request) -> httpx2.Response:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(transport, "_inner", SimpleNamespace(handle_async_request=send))
    sending = Sending()
    SENDING.set(sending)
    methods = ["POST", "POST", "GET", "POST"]  # the call, where it is redirected, its stream again, its cancellation
    statuses = []
    for method in methods:
        await transport.handle_async_request(httpx2.Request(method, "http://server/mcp"))
        statuses.append(sending.status)
    assert (statuses, sending.unsent) == ([307, 502, 502, 502], "")
    error = MCPError(-32603, "Server returned an error response")
    assert isinstance(failure_of(error, sending, "server", in_session=True), CallLost)


async def test_a_server_that_is_gone_has_begun_nothing_and_is_used_again_when_it_is_back() -> None:
    gateway = Gateway()
    worker: Worker
    async with served(gateway) as url:
        worker = Worker.from_mcp("bank", url=url)
        await worker.open()
    try:
        with pytest.raises(NotBegun, match="cannot be reached"):
            await pay(worker, "i1")
        assert gateway.paid == []
    finally:
        await worker.close()


async def test_a_session_that_the_server_has_forgotten_is_opened_anew() -> None:
    gateway = Gateway(has_sessions=True)
    worker: Worker
    async with served(gateway) as url:
        worker = Worker.from_mcp("bank", url=url)
        await worker.open()
        assert await pay(worker, "i1") == {"paid": "i1"}
    try:
        gateway.new_server()
        async with served(gateway, int(url.rpartition(":")[2].partition("/")[0])):
            with pytest.raises(NotBegun, match="ended the session"):
                await pay(worker, "i2")
            async with asyncio.timeout(120):
                while gateway.paid == ["i1"]:
                    try:
                        await pay(worker, "i2")
                    except NotBegun:
                        await asyncio.sleep(0.05)
            await worker.close()
    finally:
        await asyncio.sleep(0)
    assert gateway.paid == ["i1", "i2"]


async def test_many_calls_at_once_are_answered_each_by_its_own_result() -> None:
    gateway = Gateway()
    async with served(gateway) as url:
        worker = Worker.from_mcp("bank", url=url)
        await worker.open()
        try:
            gateway.faults += [("cut", None)] * 5
            results = await asyncio.gather(*(pay(worker, str(each)) for each in range(40)), return_exceptions=True)
        finally:
            await worker.close()
    lost = [each for each in results if isinstance(each, CallLost)]
    assert len(lost) == 5
    for number, result in enumerate(results):
        assert result == {"paid": str(number)} or result in lost
    assert sorted(gateway.paid, key=int) == [str(each) for each in range(40)]
