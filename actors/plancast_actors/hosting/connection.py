"""Direct connections from dispatchers to plan hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self

from plancast_actors.liveness.beats import wait_for_silence
from plancast_actors.plan_actors.protocol import HostLost, Inbound, Outcome
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.server import RpcServer

logger = logging.getLogger(__name__)
Exchange = Callable[[str, list[Inbound], bool], Awaitable[list[Outcome]]]


class HostConnection(Connection):
    """Connection of a dispatcher to one incarnation of a host, and another one to the thread that answers its beats.

    Args:
        name: The host's.
        endpoint: Where it takes events.
        beats: Where it answers beats; None does not watch it.
    """

    def __init__(self, name: str, endpoint: Endpoint, beats: Endpoint | None = None) -> None:
        super().__init__(endpoint)
        self.incarnation = endpoint.incarnation
        self.silent = False
        """True if it was closed because the host's process answered no beats."""
        self._name = name
        self._beats = Connection(beats) if beats is not None else None

    async def connect(self) -> Self:
        await super().connect()
        if self._beats is not None:
            try:
                await self._beats.connect()
            except OSError as error:
                logger.warning("beats of %s cannot be heard: %s", self._name, error)
                self._beats = None
        return self

    async def watch(self) -> bool:
        """Wait until the host's process has ended, or is silent (True), and close the connection then."""
        if self._beats is None:
            await asyncio.Event().wait()
        else:
            self.silent = await wait_for_silence(self._beats)
            self.abort()
        return self.silent

    def abort(self, reason: str = "") -> None:
        super().abort(reason)
        if self._beats is not None:
            self._beats.abort()

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Implement :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange`."""
        try:
            outcomes = await self.call("exchange", dispatcher, batch, wait)
        except ConnectionLost:
            raise HostLost(f"{self._name}: the connection is lost") from None
        try:
            return [Outcome(*each) for each in outcomes]
        except TypeError:
            self.abort("a host has sent something else than outcomes")
            raise HostLost(f"{self._name}: its reply cannot be read") from None


class HostConnections:
    """The connections of a dispatcher, one to each host for as long as that host lives.

    Links to dedicated hosts come and go; a host that is linked to again still has its connection. It ends with the
    host, which ends itself when its plan has been idle.
    """

    def __init__(self) -> None:
        self._connections: dict[str, HostConnection] = {}

    def find(self, name: str) -> HostConnection | None:
        """The connection to a host, or None; it may have been lost."""
        return self._connections.get(name)

    async def open(self, name: str, endpoint: Endpoint, beats: Endpoint | None = None) -> HostConnection:
        """Connect to a host; raises what :meth:`Connection.connect` raises."""
        connection = await HostConnection(name, endpoint, beats).connect()
        self._connections = {other: each for other, each in self._connections.items() if not each.lost}
        self._connections[name] = connection
        return connection

    def close(self) -> None:
        """Close all of them."""
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()


def host_server(exchange: Exchange, incarnation: str) -> RpcServer:
    """Make the server of a plan host. Outcomes of calls that are cancelled by a disconnect go to the next call.

    Args:
        exchange: See :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange`.
        incarnation: The host's.
    """

    async def serve(dispatcher: str, batch: list[Any], wait: bool) -> list[Outcome]:
        return await exchange(dispatcher, [Inbound(*each) for each in batch], wait)

    return RpcServer({"exchange": serve}, incarnation, cancel_on_disconnect=True)
