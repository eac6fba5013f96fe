"""The connection of a backup or a restoration, which has to last: what is published meanwhile is followed on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.jetstream.client.api import NO_JETSTREAM, STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects

Report = Callable[[str, int, int], None]
"""Called with the stream that is copied, its bytes so far, and those of all (0: not known)."""
SILENCE = 60.0
"""Seconds without anything from the server after which a transfer has failed."""
_T = TypeVar("_T")


class Link:
    """A connection to the server of a deployment."""

    def __init__(self, connection: Connection, requester: Requester, settings: BusSettings) -> None:
        self.connection = connection
        self.client = connection.client
        self.requester = requester
        self.api = JetStreamApi(requester)
        self.settings = settings
        self.subjects = Subjects(settings.prefix)
        self.names = StreamNames.of(settings.prefix)
        self.restricted = False
        """The login's account has no JetStream: it reads what the runtime's account lets it read."""
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.on_reconnect(lambda: self._break("was interrupted"))
        connection.on_closed(lambda: self._break("was closed"))

    def _break(self, how: str) -> None:
        if not self._lost.done():
            self._lost.set_exception(BusError(f"the connection to NATS at {self.connection.where} {how}: begin again"))
            self._lost.exception()

    async def lasting(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do something that has to end on the same connection as it has begun.

        Raises:
            BusError: the connection was interrupted.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                self._lost.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def info(self, stream: str) -> dict[str, Any] | None:
        """Return configuration and state of a stream; None when there is none."""
        operation = f"STREAM.INFO.{stream}"
        try:
            if not self.restricted:
                return await self.api.call(operation)
            reply = await self.requester.send(self.subjects.snapshot_request(stream), b"")
            return await self.api.settle(operation, reply)
        except BusUnavailable as error:
            if not self.restricted or isinstance(error, AccessDenied):
                raise
            raise BusUnavailable(
                f"no dispatcher answers at {self.connection.where}, which a login for backups needs: start the "
                "deployment, or use the runtime's login"
            ) from error
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return None

    @property
    def server_version(self) -> str:
        version = self.client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    def streams(self) -> list[str]:
        """The names of all streams of a deployment."""
        return [*self.names.all(), self.names.keys]


@asynccontextmanager
async def open_link(nats: NatsSettings, settings: BusSettings) -> AsyncIterator[Link]:
    """Connect to NATS.

    Raises:
        BusUnavailable, UnsupportedServer: as :func:`plancast_bus.jetstream.bus.connect`.
    """
    connection = Connection(nats)
    await connection.open()
    try:
        requester = Requester(connection)
        await requester.open()
        link = Link(connection, requester, settings)
        try:
            await link.api.call("INFO")
        except ApiError as error:
            if error.code != NO_JETSTREAM:
                raise
            link.restricted = True
        yield link
    finally:
        await connection.close()
