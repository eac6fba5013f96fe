"""LineServer: where dispatchers connect to a plan host directly; and what all such servers have in common."""

from __future__ import annotations

import abc
import asyncio
import hmac
import logging
import secrets
import time
from typing import Any

from plancast_actors.rpc.client import LineOffer
from plancast_actors.rpc.framing import MAX_FRAME, Frames

logger = logging.getLogger(__name__)
SECRET_BYTES = 32
HELLO_BYTES = 64
"""Of a first frame, at most: who has not shown the secret is granted no more memory."""
HELLO_SECONDS = 3.0
"""Seconds within which a caller has to show it."""
MAX_STRANGERS = 64
"""Callers at once that have not shown it yet; further ones are turned away."""
COMPLAINT_SECONDS = 60.0
"""Seconds between two remarks in the log on callers that were turned away."""


class Listener(abc.ABC):
    """Listens on one address, and lets in who shows its secret.

    Args:
        life: The incarnation of the process.
    """

    def __init__(self, life: str) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.callers: set[Caller] = set()
        """Who is connected."""
        self._life = life
        self._server: asyncio.Server | None = None
        self._refused = 0
        self._complained_at = float("-inf")

    @abc.abstractmethod
    def caller(self) -> Caller:
        """The end here of a new connection."""

    async def open(self, address: str) -> LineOffer:
        """Listen on a free port of this address, and of no other; returns what callers have to know.

        Raises:
            OSError: the address is not one of this machine's.
        """
        self._server = await asyncio.get_running_loop().create_server(self.caller, address, 0)
        port = self._server.sockets[0].getsockname()[1]
        return LineOffer(self._life, address, port, self.secret)

    def close(self) -> None:
        """Listen no more, and hang up."""
        if self._server is not None:
            self._server.close()
        for caller in list(self.callers):
            caller.abort()

    @property
    def crowded(self) -> bool:
        """Whether so many callers have not shown the secret that no more are let in."""
        return sum(not caller.known for caller in self.callers) > MAX_STRANGERS

    def refused(self, why: str) -> None:
        """Log that a caller was turned away, now and then."""
        self._refused += 1
        now = time.monotonic()
        if now - self._complained_at > COMPLAINT_SECONDS:
            logger.warning("%d callers that are not ours were turned away, the last one: %s", self._refused, why)
            self._complained_at, self._refused = now, 0


class Caller(Frames):
    """Somebody who is connected, and is listened to once the secret was shown."""

    def __init__(self, server: Listener) -> None:
        super().__init__(HELLO_BYTES)
        self.known = False
        self._server = server
        self._late: asyncio.TimerHandle | None = None

    @abc.abstractmethod
    def called(self, message: Any) -> None:
        """Take a message of who is known."""

    def received(self, message: Any) -> None:
        if self.known:
            self.called(message)
        else:
            self._meet(message)

    def _meet(self, secret: Any) -> None:
        if not isinstance(secret, bytes) or not hmac.compare_digest(secret, self._server.secret):
            self.abort("its secret is wrong")
            return
        self.known = True
        self._max_frame = MAX_FRAME
        self.send(None)

    def report(self, why: str) -> None:
        if self.known:
            super().report(why)
        else:
            self._server.refused(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.callers.add(self)
        if self._server.crowded:
            self.abort("there are too many of them")
        self._late = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._end_stranger)

    def _end_stranger(self) -> None:
        if not self.known:
            self.abort("it has not shown the secret")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.callers.discard(self)
        if self._late is not None:
            self._late.cancel()

    def pause_writing(self) -> None:
        """Who does not take answers is asked for no more calls."""
        super().pause_writing()
        if self._transport is not None and not self.lost:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None and not self.lost:
            self._transport.resume_reading()
