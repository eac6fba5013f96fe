"""Bounds on what the console does at a time, in all and for each user; beyond them it says when to come back."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from fastapi import Depends, Request

from plancast.console.service.errors import Refused

RETRY_SECONDS = 5


class Slots:
    """Slots for one kind of work.

    Args:
        what: The work, in the plural.
        total: How many there are.
        each: How many of them a user may hold.
    """

    def __init__(self, what: str, total: int, each: int) -> None:
        self._what = what
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def held_by(self, user: str) -> Iterator[None]:
        """Hold a slot while the context is open.

        Raises:
            Refused: 429, the user holds as many as one may; 503, all are held.
        """
        headers = {"Retry-After": str(RETRY_SECONDS)}
        if self._held[user] >= self._each:
            detail = f"{user} has {self._each} {self._what} under way, and may have no more at a time"
            raise Refused(429, detail, headers=headers)
        if self._held.total() >= self._total:
            raise Refused(503, f"{self._total} {self._what} are under way, and there may be no more", headers=headers)
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
"""Of a route that looks through all plans, or reads many: few may do so at a time."""
