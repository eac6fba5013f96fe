"""The text of a model's reply, passed on while it is written."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import TypeAlias

from plancast.models.port import ReasonRequest
from plancast.telemetry.redaction import without

TextSink: TypeAlias = Callable[[ReasonRequest, int, int, str], Awaitable[None]]
"""Receives a piece of a reply: the request, the attempt at it from 1, the piece's place from 0, and the text."""
SINK: ContextVar[TextSink | None] = ContextVar("SINK", default=None)
"""Where a reasoner in this process sends what its caller wants streamed; None: nowhere."""
REST_SECONDS = 0.1
"""Least seconds between two pieces."""


class TextStream:
    """Passes the text of one attempt on, in pieces, without secrets.

    Args:
        sink: Receives the pieces.
        request: The request.
        attempt: The attempt at it, from 1.
        secrets: Redacted; what may be the beginning of one is held back until it is known.
    """

    def __init__(self, sink: TextSink, request: ReasonRequest, attempt: int, secrets: Collection[str]) -> None:
        self._sink = sink
        self._request = request
        self._attempt = attempt
        self._secrets = [secret for secret in secrets if secret]
        self._text = ""
        self._pieces = 0
        self._sent_at = time.monotonic()

    async def add(self, text: str) -> None:
        """Add text; sends what has gathered, if the last piece is old enough."""
        self._text += text
        if time.monotonic() - self._sent_at >= REST_SECONDS:
            clean = without(self._text, self._secrets)
            await self._send(clean, len(clean) - self._held_back(clean))

    async def end(self) -> None:
        """Send the rest."""
        clean = without(self._text, self._secrets)
        await self._send(clean, len(clean))

    def _held_back(self, text: str) -> int:
        """Characters at the end of a text that may be the beginning of a secret."""
        return max(
            (
                length
                for secret in self._secrets
                for length in range(1, min(len(secret), len(text) + 1))
                if text.endswith(secret[:length])
            ),
            default=0,
        )

    async def _send(self, text: str, length: int) -> None:
        self._text = text[length:]
        if length:
            self._sent_at = time.monotonic()
            await self._sink(self._request, self._attempt, self._pieces, text[:length])
            self._pieces += 1
