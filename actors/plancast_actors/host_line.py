"""HostLine: a dispatcher's direct connection to a plan host. Ray says where the host is, and vouches for it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

from plancast_actors.frames import Frames
from plancast_actors.inbound import HostLost, Inbound, Outcome

CONNECT_SECONDS = 2.0
"""Seconds in which a host that answers through Ray has to answer on its line too."""


@dataclass(frozen=True)
class LineOffer:
    """What a host tells, through Ray, whoever may connect to it."""

    life: str
    """See :meth:`plancast_actors.inbound.HostPort.incarnation`."""
    address: str
    port: int
    secret: bytes = field(repr=False)
    """Of this life. Who has it was let into the Ray cluster."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class HostLine(Frames):
    """Calls of one dispatcher to one life of a host, as many at once as there are.

    The first frame has the secret and is answered by one that says nothing. Then ``[number, dispatcher, batch,
    wait]`` is answered by ``[number, outcomes]``, in any order.
    """

    def __init__(self, name: str, offer: LineOffer) -> None:
        super().__init__()
        self.life = offer.life
        self._name = name
        self._offer = offer
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[list[Outcome]]] = {}
        self._numbers = itertools.count()

    @classmethod
    async def open(cls, name: str, offer: LineOffer) -> HostLine:
        """Connect to a host.

        Raises:
            OSError: it cannot be reached (TimeoutError: within :data:`CONNECT_SECONDS`), or does not let us in.
        """
        line = cls(name, offer)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(lambda: line, offer.address, offer.port)
                await line._accepted
        except BaseException:
            line._accepted.cancel()
            line.abort()
            raise
        return line

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Hand events over; see :class:`plancast_actors.inbound.HostPort`."""
        await self.room()
        if self.lost:
            raise self._gone()
        number = next(self._numbers)
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self.send((number, dispatcher, batch, wait))
            return await answer
        finally:
            self._calls.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Show the secret."""
        super().connection_made(transport)
        self.send(self._offer.secret)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing is known of what was handed over and not answered."""
        super().connection_lost(error)
        if not self._accepted.done():
            self._accepted.set_exception(error or ConnectionResetError("the host has hung up"))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self._gone())

    def received(self, message: Any) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        if not self._accepted.done():
            self._accepted.set_result(None)
            return
        number, outcomes = message
        answer = self._calls.get(number)
        if answer is not None and not answer.done():
            answer.set_result([Outcome(*each) for each in outcomes])

    def _gone(self) -> HostLost:
        return HostLost(f"{self._name}: its line is cut")


class Lines:
    """The lines of a dispatcher: one to each host, for as long as that host lives.

    They belong to no link to a host: links to hosts of one plan's own are made and forgotten, and a host that is met
    again has its line still. It ends with the host, which ends itself when its plan has been silent.
    """

    def __init__(self) -> None:
        self._lines: dict[str, HostLine] = {}

    def find(self, name: str) -> HostLine | None:
        """The line to a host, if there is one; it may have been lost."""
        return self._lines.get(name)

    async def open(self, name: str, offer: LineOffer) -> HostLine:
        """Connect to a host; raises what :meth:`HostLine.open` raises."""
        line = await HostLine.open(name, offer)
        self._lines = {other: each for other, each in self._lines.items() if not each.lost}
        self._lines[name] = line
        return line
