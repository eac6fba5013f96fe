"""An inbox: buffers the messages of a unique subject in order."""

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
"""Receives the code and headers of a status message of the server."""

DRAIN_SECONDS = 2.0
"""Timeout for the messages that are on their way when an inbox is drained."""


class Inbox:
    """Receives a consumer's messages. The pulls bound how many are buffered."""

    def __init__(self, client: Client, on_status: Status) -> None:
        self.subject = client.new_inbox()
        self.messages: deque[Msg] = deque()
        self._client = client
        self._on_status = on_status
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        """Time of the last message or status, by the clock of the event loop."""
        self._waiter: asyncio.Future[None] | None = None
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        self._subscription = await self._client.subscribe(self.subject, future=Tap(self._receive))

    async def close(self) -> None:
        """Unsubscribe, which ends the pulls of this inbox."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(nats_errors.Error):
                await subscription.unsubscribe()

    async def drain(self) -> None:
        """Unsubscribe, and wait for the messages that the server has sent until then, if it is connected."""
        if self._subscription is not None and self._client.is_connected:
            with suppress(nats_errors.Error, TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._client._send_unsubscribe(self._subscription._id)
                    await self._client.flush()
        await self.close()

    def wake(self) -> None:
        """End the current :meth:`wait`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until there is a message or :meth:`wake` is called."""
        if not self.messages:
            await self.wait_for_next(timeout)

    async def wait_for_next(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for a further message or :meth:`wake`."""
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
    """Return whether a message is from a stream: the server adds a sequence header or an ack subject."""
    return "Nats-Sequence" in headers or reply.startswith("$JS.ACK.")
