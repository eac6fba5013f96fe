"""Rate limits of a model: requests and tokens in any 60 seconds. Requests over the limit wait; none is dropped."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from plancast_bus.clock import Clock

WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Ticket:
    """Permission for one request, counted from `at`."""

    at: float
    tokens: int

    def spent(self, tokens: int) -> None:
        """Replace the estimate by the tokens that were used."""
        self.tokens = max(tokens, 0)


class MonotonicClock:
    """A clock that never goes back, also when the machine's time is set."""

    def time(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))


class RateLimit:
    """At most `rpm` requests and `tpm` tokens in any 60 seconds, first come first served.

    Args:
        rpm: Requests a minute; None sets no limit.
        tpm: Tokens a minute; None sets no limit. A request over it goes when it is the only one in its minute.
        clock: Time and sleep; monotonic by default.
    """

    def __init__(self, rpm: int | None = None, tpm: int | None = None, *, clock: Clock | None = None) -> None:
        for name, limit in (("rpm", rpm), ("tpm", tpm)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")
        self.rpm = rpm
        self.tpm = tpm
        self._clock: Clock = clock or MonotonicClock()
        self._given: deque[Ticket] = deque()
        self._paused_until = 0.0
        self._turn = asyncio.Lock()  # first in, first out
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._waiting

    async def acquire(self, tokens: int = 0) -> Ticket:
        """Wait until a request of about `tokens` may go. A cancelled call takes nothing."""
        self._waiting += 1
        try:
            async with self._turn:
                while (seconds := self.wait_seconds(self._clock.time(), tokens)) > 0:
                    await self._clock.sleep(seconds)
                ticket = Ticket(self._clock.time(), tokens)
                if self.rpm is not None or self.tpm is not None:
                    self._given.append(ticket)
                return ticket
        finally:
            self._waiting -= 1

    def pause(self, seconds: float) -> None:
        """Hold back all requests: a server's ``Retry-After`` is meant for all of them."""
        self._paused_until = max(self._paused_until, self._clock.time() + seconds)

    def wait_seconds(self, now: float, tokens: int) -> float:
        """Seconds until a request of about `tokens` may go; 0 or less: now."""
        while self._given and self._given[0].at + WINDOW_SECONDS <= now:
            self._given.popleft()
        free = max(now, self._paused_until)
        if self.rpm is not None and len(self._given) >= self.rpm:
            free = max(free, self._given[len(self._given) - self.rpm].at + WINDOW_SECONDS)
        if self.tpm is not None:
            # Estimates are corrected later, so the sum is made anew each time.
            over = sum(ticket.tokens for ticket in self._given) + min(tokens, self.tpm) - self.tpm
            for ticket in self._given:
                if over <= 0:
                    break
                over -= ticket.tokens
                free = max(free, ticket.at + WINDOW_SECONDS)
        return free - now
