"""An inbox: messages for a subject of one's own, kept in order until they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from plancast_bus.jetstream.client.parser import Received, Tap

Status = Callable[[str, dict[str, str]], None]
"""Receives the status code and headers of what is no message but a word of the server."""


class Inbox:
    """Receives a consumer's messages. Whoever asks for messages bounds how many can wait here."""

    def __init__(self, client: Client, on_status: Status) -> None:
        self.subject = client.new_inbox()
        self.messages: deque[Msg] = deque()
        self._client = client
        self._on_status = on_status
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        """When something last came, by the clock of the event loop."""
        self._waiter: asyncio.Future[None] | None = None
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Start to listen."""
        self._subscription = await self._client.subscribe(self.subject, future=Tap(self._receive))

    async def close(self) -> None:
        """Listen no more; the server forgets what was asked for on this inbox."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(nats_errors.Error):
                await subscription.unsubscribe()

    def wake(self) -> None:
        """End the waiting of whoever waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Wait until there is a message or somebody calls :meth:`wake`, but at most ``timeout`` seconds."""
        if not self.messages:
            await self.wait_for_next(timeout)

    async def wait_for_next(self, timeout: float) -> None:
        """Wait until a further message comes or somebody calls :meth:`wake`, but at most ``timeout`` seconds."""
        self._waiter = self._loop.create_future()
        try:
            await asyncio.wait((self._waiter,), timeout=timeout)
        finally:
            self._waiter = None

    def _receive(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.heard = self._loop.time()
        if headers is not None and "Status" in headers and not _is_stored(reply, headers):
            self._on_status(headers["Status"], headers)
            return
        self.messages.append(Received(subject, reply, data, headers))
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _is_stored(reply: str, headers: dict[str, str]) -> bool:
    """Whether a message is from a stream, and may have any header: the server adds its sequence, or an ack subject."""
    return "Nats-Sequence" in headers or reply.startswith("$JS.ACK.")
