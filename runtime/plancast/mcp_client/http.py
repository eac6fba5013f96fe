"""HTTP requests to MCP servers: each failure concerns one call, and says whether the request was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from plancast.mcp_client.calls import SENDING, Sending

CONNECT_SECONDS: Final = 30.0
_MAX_PAUSE: Final = 60.0
"""Longest ``Retry-After`` that is honoured, in seconds."""


@asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Streams of messages to and from a server over streamable HTTP."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)  # a call has its own limit
    client = httpx2.AsyncClient(headers=dict(headers), timeout=timeout, transport=NotedTransport())
    # No limit but that of values: a large result is stored apart from its plan.
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams:
        yield streams


class NotedTransport(httpx2.AsyncBaseTransport):
    """Sends requests, and notes in `SENDING` what became of them.

    The SDK lets an error of one request end the connection with all other calls on it, so errors become responses here.
    """

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; an error becomes a response with status 502."""
        sending = _noted(request)
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            sending.unsent = str(error) or type(error).__name__
            return httpx2.Response(502)
        except httpx2.TransportError:
            sending.status = 502
            return httpx2.Response(502)
        sending.status = response.status_code
        sending.retry_after = _seconds(response.headers.get("retry-after"))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _noted(request: httpx2.Request) -> Sending:
    """Where to note what becomes of a request; nowhere for those that do not count."""
    sending = SENDING.get(None)
    if sending is None or request.method != "POST":
        return Sending()
    if sending.is_call and sending.started and not 300 <= sending.status < 400:
        return Sending()
    sending.started = True
    return sending


class _Body(httpx2.AsyncByteStream):
    """The body of a response whose connection may break: the SDK expects a `StreamError` then."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._inner:
                yield part
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the response is cut off: {error}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _seconds(header: str | None) -> float | None:
    """The seconds of a ``Retry-After``; one that names a time counts as no pause of its own."""
    if header is None:
        return None
    return min(float(header), _MAX_PAUSE) if header.strip().isdigit() else 1.0
