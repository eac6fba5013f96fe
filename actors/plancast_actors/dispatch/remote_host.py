"""RayHost: a plan host in another process. Ray finds and starts it; events go over a direct connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from plancast_actors.dispatch.terms import Introduction
from plancast_actors.hosting.connection import HostConnection, HostConnections
from plancast_actors.liveness.crash_record import CrashRecord
from plancast_actors.plan_actors.protocol import HostLost, HostPort, Inbound, Outcome
from plancast_actors.ray.endpoint import FALLBACK_SECONDS
from plancast_actors.ray.remote_actor import ActorLost, unless_restarting
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.framing import pack, unpack

logger = logging.getLogger(__name__)


class RayHost(HostPort):
    """A plan host in another process; implements :class:`plancast_actors.plan_actors.protocol.HostPort`.

    Args:
        name: The actor's name.
        find: Finds its Ray actor, or starts it, and blocks.
        connections: Of this dispatcher; None: everything goes through Ray.
        is_restarting: Asks Ray whether the process has ended, and blocks; None for a host whose plans no other takes.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Any],
        connections: HostConnections | None,
        is_restarting: Callable[[], bool] | None = None,
    ) -> None:
        self.introduction: Introduction | None = None
        """Sent to the host when it is connected to."""
        self.by_ray = False
        """True if events go through Ray because there is no direct connection."""
        self._name = name
        self._find = find
        self._connections = connections
        self._is_restarting = is_restarting
        self._is_known = False
        """True if it was connected to before."""
        self._connection: HostConnection | None = None
        """Kept when it is lost, until :meth:`incarnation` shows whether the host was restarted."""
        self._fallback_until = float("-inf")
        self._actor: Any = None
        self._connecting = asyncio.Lock()

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Implement :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange`."""
        if self._connection is not None:
            return await self._connection.exchange(dispatcher, batch, wait)
        with self._errors_as_lost():
            actor = await self._actor_handle()
            packed: bytes = await actor.exchange.remote(dispatcher, pack(batch), wait)
            return [Outcome(*each) for each in unpack(packed)]

    async def incarnation(self) -> str:
        """Return the id of the host's current process, and connect to it."""
        async with self._connecting:
            with self._errors_as_lost():
                actor = await self._actor_handle()
                incarnation = str(await self._answer(actor.incarnation.remote()))
                self._is_known = True
                if self._connections is None:
                    return incarnation
                return await self._connect(actor, incarnation, self._connections)

    async def introduce(self) -> None:
        """Have the host watch the process that sends it events."""
        if self.introduction is None or self._connection is None:
            return
        try:
            actor = await self._actor_handle()
            if hasattr(actor, "attend"):  # not so in a host of an earlier release
                await actor.attend.remote(self.introduction)
        except (RayError, ValueError) as error:
            logger.info("%s does not watch its dispatcher: %s", self._name, type(error).__name__)

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """Wait for an answer of a host; one that was never connected to counts as lost while Ray restarts it."""
        if self._is_known or self._is_restarting is None:
            return await call
        try:
            return await unless_restarting(call, self._is_restarting)
        except ActorLost as error:
            raise HostLost(f"{self._name}: {error}") from None

    async def watch(self) -> bool:
        """Implement :meth:`plancast_actors.plan_actors.protocol.HostPort.watch`."""
        if self._connection is None:
            await asyncio.Event().wait()
            return False
        return await self._connection.watch()

    async def recycle(self) -> None:
        """Kill a process that does not answer; Ray restarts it."""
        logger.error("%s does not answer, its process is ended", self._name)
        actor, self._actor = self._actor, None
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor, no_restart=False)

    async def crash_record(self, incarnation: str) -> CrashRecord | None:
        """Read the crash record of an earlier process of this host on its machine; None if there is none."""
        with self._errors_as_lost():
            actor = await self._actor_handle()
            # A host of an earlier release, as an upgrade finds it, has no such method.
            plain = await actor.crash_record.remote(incarnation) if hasattr(actor, "crash_record") else None
        return None if plain is None else CrashRecord.of(plain)

    async def _connect(self, actor: Any, incarnation: str, connections: HostConnections) -> str:
        """Connect to this incarnation if possible; returns the incarnation at the other end."""
        connection = connections.find(self._name)
        if connection is not None and connection.incarnation == incarnation:
            if not connection.lost:
                self._connection = connection
                return incarnation
            if connection is self._connection and not connection.silent:
                self._fall_back("its connection was lost although it is alive")
        elif connection is not None:
            connection.abort()
            self._fallback_until = float("-inf")
        self._connection = None
        if asyncio.get_running_loop().time() < self._fallback_until:
            return incarnation
        # A host of an earlier release, as an upgrade finds it, has no such method.
        endpoint: Endpoint | None = await actor.endpoint.remote() if hasattr(actor, "endpoint") else None
        if endpoint is None:
            self._fall_back("it offers no endpoint")
            return incarnation
        beats: Endpoint | None = await actor.beats.remote() if hasattr(actor, "beats") else None
        try:
            self._connection = await connections.open(self._name, endpoint, beats)
        except OSError as error:
            reason = str(error) or type(error).__name__
            self._fall_back(f"it cannot be reached at {endpoint} ({reason}); is there a firewall between the nodes?")
            return incarnation
        self.by_ray = False
        await self.introduce()
        return self._connection.incarnation

    def _fall_back(self, reason: str) -> None:
        if not self.by_ray:
            logger.warning("events for %s go through Ray for now, which costs more: %s", self._name, reason)
        self.by_ray = True
        self._fallback_until = asyncio.get_running_loop().time() + FALLBACK_SECONDS

    async def _actor_handle(self) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._find)
        return self._actor

    @contextlib.contextmanager
    def _errors_as_lost(self) -> Iterator[None]:
        try:
            yield
        except (RayError, ValueError) as error:
            self._actor = None
            raise HostLost(f"{self._name}: {type(error).__name__}") from error
