"""As much of HTTP/1.1 as a test server needs: keep-alive, bodies, and seeing at once that a client went away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    close: bool
    """Whether the client wants the connection closed after the answer."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Send half of the body, then cut the connection."""


class BadRequest(Exception):
    """Raised for bytes that are no request; the connection is closed after an answer that says so."""


class HttpProtocol(asyncio.Protocol):
    """One connection. Requests are answered one after the other; a client that goes away cancels its answer."""

    def __init__(
        self, respond: Callable[[HttpRequest], Awaitable[HttpResponse]], connections: set[HttpProtocol]
    ) -> None:
        self._respond = respond
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._said_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next()

    def abort(self) -> asyncio.Task[None] | None:
        """Close the connection at once; the task that was answering is cancelled and returned."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _next(self) -> None:
        """Begin to answer the next request, if it is there in full and none is being answered."""
        if self._task is not None or self._transport is None:
            return
        try:
            request = self._parse()
        except BadRequest as error:
            self._send(HttpResponse(str(error).encode(), 400, "text/plain"), close=True)
            return
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: HttpRequest) -> None:
        try:
            try:
                response = await self._respond(request)
            except Exception as error:
                response = HttpResponse(f"the server failed: {error!r}".encode(), 500, "text/plain")
            self._send(response, close=request.close)
        finally:
            self._task = None
        self._next()

    def _send(self, response: HttpResponse, *, close: bool) -> None:
        if self._transport is None:
            return
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = "Unknown"
        head = [f"HTTP/1.1 {response.status} {phrase}", f"Content-Type: {response.content_type}"]
        head += [f"{name}: {value}" for name, value in response.headers.items()]
        head += [f"Content-Length: {len(response.body)}", f"Connection: {'close' if close else 'keep-alive'}"]
        body = response.body[: len(response.body) // 2] if response.cut else response.body
        self._transport.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        if close or response.cut:
            self._transport.close()

    def _parse(self) -> HttpRequest | None:
        """Take one request off what was received; None when it is not all there yet."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _MAX_HEAD:
                raise BadRequest("the head is too long")
            return None
        first, *lines = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise BadRequest("no HTTP/1.1 request")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        taken = self._body(headers, end + 4)
        if taken is None:
            if headers.get("expect", "").lower() == "100-continue" and not self._said_continue and self._transport:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._said_continue = True
            return None
        body, rest = taken
        del self._received[:rest]
        self._said_continue = False
        wish = headers.get("connection", "").lower()
        close = wish == "close" or (parts[2] == "HTTP/1.0" and wish != "keep-alive")
        return HttpRequest(parts[0], parts[1].partition("?")[0], headers, body, close)

    def _body(self, headers: dict[str, str], start: int) -> tuple[bytes, int] | None:
        """The body, and where in what was received it ends; None when it is not all there yet."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(start)
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            raise BadRequest("Content-Length is no number") from None
        if not 0 <= length <= _MAX_BODY:
            raise BadRequest("the body is too long")
        end = start + length
        return (bytes(self._received[start:end]), end) if len(self._received) >= end else None

    def _chunks(self, start: int) -> tuple[bytes, int] | None:
        body = bytearray()
        while (line := self._received.find(b"\r\n", start)) >= 0:
            try:
                size = int(bytes(self._received[start:line]).partition(b";")[0], 16)
            except ValueError:
                raise BadRequest("a chunk has no size") from None
            if size < 0 or len(body) + size > _MAX_BODY:
                raise BadRequest("the body is too long")
            end = line + 2 + size
            if len(self._received) < end + 2:
                return None
            if size == 0:
                return bytes(body), end + 2
            body += self._received[line + 2 : end]
            start = end + 2
        return None
