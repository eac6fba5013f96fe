"""Hints: what is published to a subject makes its readers look into the stream, which costs the server no consumer.

A hint may come before its message is stored, or though it is never stored, and it may be lost. So a reader looks again
until it has found what was published, and looks from time to time without a hint.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Self

from nats import errors as nats_errors
from nats.aio.subscription import Subscription

from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.parser import Tap

SOON: Final = 0.002
"""Seconds until the first look that repeats one which came too early; the pause doubles with each."""
LONGEST_PAUSE: Final = 0.5
GIVE_UP: Final = 10.0
"""Seconds after which a message that was not found counts as refused."""
UNHINTED: Final = 30.0
"""Seconds between looks without a hint."""
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


class Hints:
    """Hints of one subject, as an async context manager."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self._connection = connection
        self._subject = subject
        self._event = asyncio.Event()
        self._subscription: Subscription | None = None
        self._pause = SOON
        self._hinted_at = 0.0
        self.received = 0
        """Number of hints."""
        self.expected = -1
        """The sequence that the newest message of the subject has to exceed, for all hints to be found."""

    async def __aenter__(self) -> Self:
        try:
            self._subscription = await self._connection.client.subscribe(self._subject, future=Tap(self._receive))
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"cannot listen to {self._subject[:200]}") from error
        self._forget = (
            self._connection.on_reconnect(self._event.set),
            self._connection.on_closed(self._event.set),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._forget:
            each()
        if self._subscription is not None:
            with suppress(nats_errors.Error):
                await self._subscription.unsubscribe()

    def clear(self) -> None:
        """Called before each look: later hints cause another one."""
        self._event.clear()

    async def wait(self, *, found: bool) -> bool:
        """Wait for the next look.

        Args:
            found: What all hints so far were about was found.

        Returns:
            False once it is given up.
        """
        now = asyncio.get_running_loop().time()
        given_up = not found and now >= self._hinted_at + GIVE_UP
        if found or given_up:
            self._pause = SOON
            timeout = UNHINTED
        else:
            timeout, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        return not given_up

    def _receive(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.received += 1
        expected = (headers or {}).get(_EXPECTED, "")
        if expected.isascii() and expected.isdecimal() and len(expected) < 20:
            self.expected = max(self.expected, int(expected))
        self._hinted_at = asyncio.get_running_loop().time()
        self._pause = SOON
        self._event.set()
