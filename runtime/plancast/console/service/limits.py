"""Limits on concurrent work, in total and per user; beyond them, responses carry Retry-After."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from fastapi import Depends, Request

from plancast.console.service.errors import Refused

RETRY_SECONDS = 5


class Slots:
    """Limits one kind of work."""

    def __init__(self, what: str, total: int, each: int) -> None:
        self._what = what
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def held_by(self, user: str) -> Iterator[None]:
        """Hold a slot while the context is open.

        Raises:
            Refused: 429 when the user holds the maximum; 503 when all slots are held.
        """
        headers = {"Retry-After": str(RETRY_SECONDS)}
        if self._held[user] >= self._each:
            detail = f"{user} has {self._each} {self._what} in flight, which is the maximum"
            raise Refused(429, detail, headers=headers)
        if self._held.total() >= self._total:
            raise Refused(503, f"{self._total} {self._what} are in flight, which is the maximum", headers=headers)
        self._held[user] += 1
        try:
            yield
        finally:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]


async def _looking(request: Request) -> AsyncIterator[None]:
    slots: Slots = request.app.state.backend.looks
    with slots.held_by(request.state.user):
        yield


Looking = Depends(_looking)
"""Limits routes that search all plans or read many."""
