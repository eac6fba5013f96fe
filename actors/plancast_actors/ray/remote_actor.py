"""RemoteActor: calls methods of an actor over a direct connection where there is one, and through Ray otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from ray.exceptions import RayError

from plancast.settings import Settings
from plancast_actors.ray.endpoint import open_endpoint
from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.framing import pack, unpack
from plancast_actors.rpc.server import RpcServer

logger = logging.getLogger(__name__)
T = TypeVar("T")
STATE_SECONDS = 0.25
"""Seconds without an answer after which Ray is asked whether the process runs; they double from look to look."""


class ActorLost(Exception):
    """Raised when an actor cannot be reached: a call in flight may have been executed, or not."""


async def unless_restarting(call: Awaitable[T], is_restarting: Callable[[], bool]) -> T:
    """Wait for a call through Ray, which keeps it back while it restarts the actor's process.

    Args:
        call: The call, which may be executed later nevertheless.
        is_restarting: Asks Ray whether the process has ended, and the next one does not run yet. Blocks.

    Raises:
        ActorLost: it has.
    """
    answer, pause = asyncio.ensure_future(call), STATE_SECONDS
    try:
        while not (await asyncio.wait((answer,), timeout=pause))[0]:
            if await asyncio.to_thread(is_restarting):
                raise ActorLost("its process is being restarted")
            pause *= 2
        return await answer
    finally:
        answer.cancel()


class RemoteActor:
    """One incarnation of an actor that has :class:`CallableMethods`.

    Args:
        name: The actor's.
        actor: Its Ray handle.
        endpoint: Where it accepts direct connections, if it does.
    """

    def __init__(self, name: str, actor: Any, endpoint: Endpoint | None) -> None:
        self.name = name
        self.actor = actor
        self.endpoint = endpoint
        self.connection: Connection | None = None

    async def connect(self) -> Self:
        """Connect to the endpoint; if that fails, calls go through Ray."""
        if self.endpoint is not None:
            try:
                self.connection = await Connection(self.endpoint).connect()
            except OSError as error:
                logger.warning("calls to %s go through Ray: %s cannot be reached: %s", self.name, self.endpoint, error)
        return self

    @property
    def lost(self) -> bool:
        """True if the direct connection has ended, and with it most likely the process."""
        return self.connection is not None and self.connection.lost

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method with plain values; tuples come back as lists.

        Raises:
            ActorLost: the actor is gone.
        """
        try:
            if self.connection is not None:
                return await self.connection.call(method, *arguments)
            return unpack(await self.actor.invoke.remote(method, pack(arguments)))
        except (ConnectionLost, RayError) as error:
            raise ActorLost(f"{self.name}: {type(error).__name__}") from None


class CallableMethods:
    """The methods of an actor that a :class:`RemoteActor` calls.

    Args:
        methods: Methods by name. Arguments and results are msgpack values.
        incarnation: Id of the process.
    """

    def __init__(self, methods: Mapping[str, Callable[..., Awaitable[Any]]], incarnation: str = "") -> None:
        self._methods = methods
        self._server = RpcServer(methods, incarnation, cancel_on_disconnect=True)
        self.endpoint: Endpoint | None = None

    async def open(self, settings: Settings, name: str, calls: str) -> Self:
        """Accept direct connections; see :func:`plancast_actors.ray.endpoint.open_endpoint`."""
        self.endpoint = await open_endpoint(self._server, settings, name, calls)
        return self

    async def invoke(self, method: str, packed: bytes) -> bytes:
        """Execute a call that comes through Ray."""
        return pack(await self._methods[method](*unpack(packed)))

    def close(self) -> None:
        """Close all direct connections."""
        self.endpoint = None
        self._server.close()
