"""HostLine: a dispatcher's direct connection to a plan host. Ray says where the host is, and vouches for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from plancast_actors.hosting.protocol import HostLost, Inbound, Outcome
from plancast_actors.rpc.client import Line, LineOffer
from plancast_actors.rpc.server import Caller, Listener

logger = logging.getLogger(__name__)


class HostLine(Line):
    """Calls of one dispatcher to one life of a host.

    ``[number, dispatcher, batch, wait]`` is answered by ``[number, outcomes]``.
    """

    def __init__(self, name: str, offer: LineOffer) -> None:
        super().__init__(offer)
        self.life = offer.life
        self._name = name

    @classmethod
    async def open(cls, name: str, offer: LineOffer) -> HostLine:
        """Connect to a host; raises what :meth:`Line.connect` raises."""
        return await cls(name, offer).connect()

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Hand events over; see :class:`plancast_actors.hosting.protocol.HostPort`."""
        await self.room()
        if self.lost:
            raise self.gone()
        number = next(self._numbers)
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self.send((number, dispatcher, batch, wait))
            return await answer
        finally:
            self._calls.pop(number, None)

    def answered(self, message: Any) -> None:
        """Take outcomes; those that nobody waits for any more are dropped."""
        number, outcomes = message
        answer = self._calls.get(number)
        if answer is not None and not answer.done():
            answer.set_result([Outcome(*each) for each in outcomes])

    def gone(self) -> HostLost:
        """What was handed over may be done, or not."""
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


class LineServer(Listener):
    """Listens for dispatchers, and hands their calls to a plan host.

    Args:
        exchange: See :meth:`plancast_actors.hosting.protocol.HostPort.exchange`.
        life: The host's incarnation.
    """

    def __init__(self, exchange: Exchange, life: str) -> None:
        super().__init__(life)
        self.exchange = exchange

    def caller(self) -> Caller:
        """A dispatcher."""
        return _Dispatcher(self, self.exchange)


class _Dispatcher(Caller):
    """A dispatcher that is connected."""

    def __init__(self, server: Listener, exchange: Exchange) -> None:
        super().__init__(server)
        self._exchange = exchange
        self._calls: set[asyncio.Task[None]] = set()

    def called(self, message: Any) -> None:
        number, dispatcher, batch, wait = message
        events = [Inbound(*each) for each in batch]
        call = asyncio.get_running_loop().create_task(self._answer(number, dispatcher, events, wait))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _answer(self, number: int, dispatcher: str, events: list[Inbound], wait: bool) -> None:
        try:
            outcomes = await self._exchange(dispatcher, events, wait)
        except Exception:  # as when the process ends: nothing is known of the events
            logger.exception("a call of %s has failed", dispatcher)
            self.abort()
            return
        self.send((number, outcomes))

    def connection_lost(self, error: Exception | None) -> None:
        """What was reported in calls that nobody waits for is kept for the next one."""
        super().connection_lost(error)
        for call in self._calls:
            call.cancel()


Exchange = Callable[[str, list[Inbound], bool], Awaitable[list[Outcome]]]
