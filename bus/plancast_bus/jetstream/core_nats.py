"""Plain NATS, for bridges: subjects of other systems, told once, with nothing kept and nothing acknowledged."""

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
"""Takes (subject, payload, headers) of a message; the next one waits until it has returned."""
MAX_PENDING = 100_000
"""Messages of a subscription that wait here to be received; beyond it the client drops them, and says so."""
MAX_PENDING_BYTES = 256 * 1024 * 1024


class CoreNats:
    """A connection to NATS of any version, with or without JetStream. Made by :func:`connect_core`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subscriptions: list[Subscription] = []

    async def subscribe(self, subject: str, receive: Receive, *, queue: str = "") -> None:
        """Receive what is published on a subject from now on; of those who name the same queue one receives it.

        Raises:
            BusUnavailable: the connection is closed.
        """

        async def take(message: Msg) -> None:
            try:
                await receive(message.subject, message.data, message.headers or {})
            except Exception:
                logger.exception("a message could not be received", extra={"subject": message.subject[:200]})

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
        """Publish a message; it may be on its way still when this returns.

        Raises:
            BusUnavailable: it was not sent. What is buffered while the connection is down may be sent later, or never.
            PayloadTooLarge: it is over the server's limit.
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
        """Have a callback called with the reason when the connection ended for good, other than by :meth:`close`."""
        self._connection.on_lost(callback)

    async def flush(self) -> None:
        """Wait until the server has taken what was published.

        Raises:
            BusUnavailable: it does not say so in time.
        """
        try:
            await self._connection.client.flush(max(1, round(self._connection.timeout)))
        except (nats_errors.Error, TimeoutError) as error:
            raise self._connection.unavailable("what was published may not have arrived") from error

    async def stop_listening(self) -> None:
        """Receive no more."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            with suppress(nats_errors.Error):
                await subscription.unsubscribe()

    async def close(self) -> None:
        """End the connection, after what waits to be sent."""
        await self._connection.close()


async def connect_core(settings: NatsSettings) -> CoreNats:
    """Connect to a nats-server that need not have what plancast itself needs.

    Raises:
        BusUnavailable: no connection in time, or refused credentials.
    """
    connection = Connection(settings, minimum_version=(0, 0))
    await connection.open()
    return CoreNats(connection)
