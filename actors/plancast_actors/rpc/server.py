"""RpcServer: accepts direct connections from other processes of the deployment and executes their calls."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.framing import MAX_FRAME, FramedProtocol

logger = logging.getLogger(__name__)
SECRET_BYTES = 32
HELLO_BYTES = 64
"""Largest first frame: an unauthenticated peer gets no more memory."""
HELLO_SECONDS = 3.0
"""Seconds within which a peer has to send the secret."""
MAX_UNAUTHENTICATED = 64
"""Unauthenticated connections at a time; further ones are closed."""
LOG_SECONDS = 60.0
"""Seconds between two log entries about refused connections."""

Method = Callable[..., Awaitable[Any]]


class RpcServer:
    """Executes calls of peers that know its secret.

    An exception of a method closes the connection: the caller cannot know how far the call came.

    Args:
        methods: Methods by name. Arguments and results are msgpack values.
        incarnation: Id of the process that the endpoint names.
        cancel_on_disconnect: Whether calls in flight are cancelled when their connection ends.
    """

    def __init__(self, methods: Mapping[str, Method], incarnation: str, *, cancel_on_disconnect: bool) -> None:
        self.methods = methods
        self.cancel_on_disconnect = cancel_on_disconnect
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.peers: set[Peer] = set()
        """Open connections."""
        self._incarnation = incarnation
        self._server: asyncio.Server | None = None
        self._refused = 0
        self._logged_at = float("-inf")

    async def open(self, address: str) -> Endpoint:
        """Listen on a free port of this address only.

        Raises:
            OSError: the address is not one of this machine's.
        """
        self._server = await asyncio.get_running_loop().create_server(lambda: Peer(self), address, 0)
        port = self._server.sockets[0].getsockname()[1]
        return Endpoint(self._incarnation, address, port, self.secret)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for peer in list(self.peers):
            peer.abort()

    def refused(self, reason: str) -> None:
        """Count a refused connection, and log it at most once a minute."""
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_at > LOG_SECONDS:
            logger.warning("%d connections were refused, the last one because %s", self._refused, reason)
            self._logged_at, self._refused = now, 0


class Peer(FramedProtocol):
    """The server's end of a connection."""

    def __init__(self, server: RpcServer) -> None:
        super().__init__(HELLO_BYTES)
        self.authenticated = False
        self._server = server
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, message: Any) -> None:
        if not self.authenticated:
            self._authenticate(message)
            return
        number, name, *arguments = message
        method = self._server.methods[name]
        task = asyncio.get_running_loop().create_task(self._execute(method, number, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, method: Method, number: int | None, arguments: list[Any]) -> None:
        try:
            result = await method(*arguments)
            if number is not None:
                self.send((number, result))
        except Exception:
            logger.exception("a call from another process has failed")
            self.abort()

    def _authenticate(self, secret: Any) -> None:
        if not isinstance(secret, bytes) or not hmac.compare_digest(secret, self._server.secret):
            self.abort("the secret is wrong")
            return
        self.authenticated = True
        self._max_frame = MAX_FRAME
        self.send(None)

    def report(self, reason: str) -> None:
        if self.authenticated:
            super().report(reason)
        else:
            self._server.refused(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.peers.add(self)
        if sum(not peer.authenticated for peer in self._server.peers) > MAX_UNAUTHENTICATED:
            self.abort("there are too many unauthenticated connections")
        self._deadline = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._refuse_silent)

    def _refuse_silent(self) -> None:
        if not self.authenticated:
            self.abort("the peer has not sent the secret")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.peers.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._server.cancel_on_disconnect:
            for task in self._tasks:
                task.cancel()

    def pause_writing(self) -> None:
        """Read no further calls from a peer that does not read its results."""
        super().pause_writing()
        if self._transport is not None and not self.lost:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None and not self.lost:
            self._transport.resume_reading()
