"""Connection: the calling end of a direct TCP connection between two processes of a deployment."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any, Self

from plancast_actors.rpc.framing import FramedProtocol

CONNECT_SECONDS = 2.0
"""Seconds within which a process that answers through Ray has to accept a direct connection too."""


class ConnectionLost(Exception):
    """Raised when a connection has ended: a call in flight may have been executed, or not."""


@dataclass(frozen=True)
class Endpoint:
    """Address and secret of a process that accepts direct connections; sent through Ray."""

    incarnation: str
    """Id of one start of a host (:meth:`plancast_actors.plan_actors.protocol.HostPort.incarnation`); else empty."""
    address: str
    port: int
    secret: bytes = field(repr=False)
    """Made anew by each process. Only members of the Ray cluster get it."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class Connection(FramedProtocol):
    """Concurrent calls to one process.

    The first frame is the endpoint's secret and is answered by nil. After that, ``[number, method, arguments...]`` is
    answered by ``[number, result]``, in any order; ``[nil, method, arguments...]`` is a notification.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()

    async def connect(self) -> Self:
        """Connect and authenticate.

        Raises:
            OSError: the process cannot be reached (TimeoutError: within :data:`CONNECT_SECONDS`) or refuses the secret.
        """
        address, port = self._endpoint.address, self._endpoint.port
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(lambda: self, address, port)
                await self._accepted
        except BaseException:
            self._accepted.cancel()
            self.abort()
            raise
        return self

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and wait for its result. Cancelling drops the result; the call itself goes on.

        Raises:
            ConnectionLost: the connection has ended.
        """
        await self.drain()
        if self.lost:
            raise ConnectionLost(str(self._endpoint))
        number = next(self._numbers)
        result = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self.send((number, method, *arguments))
            return await result
        finally:
            self._calls.pop(number, None)

    def notify(self, method: str, *arguments: Any) -> None:
        """Call a method that returns nothing, without waiting for it."""
        self.send((None, method, *arguments))

    def received(self, message: Any) -> None:
        if not self._accepted.done():
            self._accepted.set_result(None)
            return
        number, value = message
        result = self._calls.get(number)
        if result is not None and not result.done():
            result.set_result(value)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(self._endpoint.secret)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self._accepted.done():
            self._accepted.set_exception(error or ConnectionResetError("the other end has closed the connection"))
        for result in self._calls.values():
            if not result.done():
                result.set_exception(ConnectionLost(str(self._endpoint)))
