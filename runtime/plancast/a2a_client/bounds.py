"""Bounds of what a remote agent may answer: a lying one shall not fill the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

MAX_BYTES: Final = 64 << 20
"""Longest answer, and the most of a stream that is read in one connection."""


class Unreadable(httpx.RequestError):
    """Raised when an answer is longer than allowed, or compressed, so that its length is not known."""


async def bound(response: httpx.Response) -> None:
    """Bound the body of a response, as a hook of the HTTP client.

    Raises:
        Unreadable: it is compressed, which was not asked for.
    """
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().casefold() not in ("", "identity"):
        raise Unreadable("the answer is compressed", request=response.request)
    response.stream = _Bounded(response.stream, response.request)


class _Bounded(httpx.AsyncByteStream):
    def __init__(self, stream: Any, request: httpx.Request) -> None:
        self._stream = stream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > MAX_BYTES:
                raise Unreadable(f"the answer has more than {MAX_BYTES} bytes", request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
