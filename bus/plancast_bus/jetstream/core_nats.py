"""Core NATS for bridges to other systems: at-most-once messages, without streams."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from nats import errors as nats_errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from plancast_bus.errors import PayloadTooLarge
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.settings import NatsSettings

logger = logging.getLogger(__name__)

Receive = Callable[[str, bytes, Mapping[str, str]], Awaitable[None]]
"""Handles a message: subject, payload, headers. Messages are handled one at a time."""
MAX_PENDING = 100_000
"""Maximum buffered messages of a subscription; nats-py drops further ones with an error."""
MAX_PENDING_BYTES = 256 * 1024 * 1024


class CoreNats:
    """A connection to NATS of any version, with or without JetStream; see :func:`connect_core`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subscriptions: list[Subscription] = []

    async def subscribe(self, subject: str, receive: Receive, *, queue: str = "") -> None:
        """Subscribe to messages published from now on; each is delivered to one subscriber of the same ``queue``.

        Raises:
            BusUnavailable: the connection is closed.
        """

        async def take(message: Msg) -> None:
            try:
                await receive(message.subject, message.data, message.headers or {})
            except Exception:
                logger.exception("the handler of a message failed", extra={"subject": message.subject[:200]})

        try:
            subscription = await self._connection.client.subscribe(
                subject,
                queue=queue,
                cb=take,
                pending_msgs_limit=MAX_PENDING,
                pending_bytes_limit=MAX_PENDING_BYTES,
            )
            await self._connection.client.flush(max(1, round(self._connection.timeout)))
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"cannot listen to {subject[:200]}") from error
        self._subscriptions.append(subscription)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Publish a message; it may still be in flight on return.

        Raises:
            BusUnavailable: it was not sent; a buffered message may be sent later, or never.
            PayloadTooLarge: it exceeds the server's limit.
        """
        if not self._connection.alive:
            raise self._connection.unavailable(f"{subject[:200]} cannot be published")
        try:
            await self._connection.client.publish(subject, payload, headers=dict(headers))
        except nats_errors.MaxPayloadError as error:
            raise PayloadTooLarge(
                f"{len(payload)} bytes for {subject[:200]} are over the limit of the nats-server"
            ) from error
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"{subject[:200]} cannot be published") from error

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Register a callback, called with the reason when the connection is lost for good, not by :meth:`close`."""
        self._connection.on_lost(callback)

    async def flush(self) -> None:
        """Wait until the server has received all published messages.

        Raises:
            BusUnavailable: it does not confirm in time.
        """
        try:
            await self._connection.client.flush(max(1, round(self._connection.timeout)))
        except (nats_errors.Error, TimeoutError) as error:
            raise self._connection.unavailable("published messages may not have arrived") from error

    async def stop_listening(self) -> None:
        """End all subscriptions."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            with suppress(nats_errors.Error):
                await subscription.unsubscribe()

    async def close(self) -> None:
        await self._connection.close()


async def connect_core(settings: NatsSettings) -> CoreNats:
    """Connect to any nats-server, without plancast's requirements on version and JetStream.

    Raises:
        BusUnavailable: no connection in time, or the credentials are refused.
    """
    connection = Connection(settings, minimum_version=(0, 0))
    await connection.open()
    return CoreNats(connection)
