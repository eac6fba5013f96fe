"""Direct connections from dispatchers to plan hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from plancast_actors.plan_actors.protocol import HostLost, Inbound, Outcome
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.server import RpcServer

Exchange = Callable[[str, list[Inbound], bool], Awaitable[list[Outcome]]]


class HostConnection(Connection):
    """Connection of a dispatcher to one incarnation of a host."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.incarnation = endpoint.incarnation
        self._name = name

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

    async def open(self, name: str, endpoint: Endpoint) -> HostConnection:
        """Connect to a host; raises what :meth:`Connection.connect` raises."""
        connection = await HostConnection(name, endpoint).connect()
        self._connections = {other: each for other, each in self._connections.items() if not each.lost}
        self._connections[name] = connection
        return connection


def host_server(exchange: Exchange, incarnation: str) -> RpcServer:
    """Make the server of a plan host. Outcomes of calls that are cancelled by a disconnect go to the next call.

    Args:
        exchange: See :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange`.
        incarnation: The host's.
    """

    async def serve(dispatcher: str, batch: list[Any], wait: bool) -> list[Outcome]:
        return await exchange(dispatcher, [Inbound(*each) for each in batch], wait)

    return RpcServer({"exchange": serve}, incarnation, cancel_on_disconnect=True)
