"""Line: the calling end of a direct connection between two processes of a deployment."""

from __future__ import annotations

import abc
import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any, Self

from plancast_actors.rpc.framing import Frames

CONNECT_SECONDS = 2.0
"""Seconds in which an actor that answers through Ray has to answer on its line too."""


@dataclass(frozen=True)
class LineOffer:
    """What an actor tells, through Ray, whoever may connect to it."""

    life: str
    """See :meth:`plancast_actors.hosting.protocol.HostPort.incarnation`; empty where nothing is owed across calls."""
    address: str
    port: int
    secret: bytes = field(repr=False)
    """Of this life. Who has it was let into the Ray cluster."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class Line(Frames):
    """Calls to one life of an actor, as many at once as there are.

    The first frame has the secret and is answered by one that says nothing. What calls and answers are, the kind of
    line says; they are told apart by number, and answered in any order.
    """

    def __init__(self, offer: LineOffer) -> None:
        super().__init__()
        self._offer = offer
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()

    async def connect(self) -> Self:
        """Connect, and be let in.

        Raises:
            OSError: nobody is there (TimeoutError: within :data:`CONNECT_SECONDS`), or we are not let in.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(lambda: self, self._offer.address, self._offer.port)
                await self._accepted
        except BaseException:
            self._accepted.cancel()
            self.abort()
            raise
        return self

    @abc.abstractmethod
    def answered(self, message: Any) -> None:
        """Take an answer."""

    @abc.abstractmethod
    def gone(self) -> Exception:
        """What a call fails with when the line ends before its answer: nothing is known of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Show the secret."""
        super().connection_made(transport)
        self.send(self._offer.secret)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what was not answered."""
        super().connection_lost(error)
        if not self._accepted.done():
            self._accepted.set_exception(error or ConnectionResetError("the other end has hung up"))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self.gone())

    def received(self, message: Any) -> None:
        """Take an answer, the first one as being let in."""
        if self._accepted.done():
            self.answered(message)
        else:
            self._accepted.set_result(None)
