"""RayHost: a plan host in another process. Ray finds it, starts it, vouches for it; events go by a line to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from plancast_actors.hosting.connection import HostLine, Lines
from plancast_actors.hosting.protocol import HostLost, Inbound, Outcome
from plancast_actors.ray.endpoint import DETOUR_SECONDS
from plancast_actors.rpc.client import LineOffer
from plancast_actors.rpc.framing import pack, unpack

logger = logging.getLogger(__name__)


class RayHost:
    """A plan host in another process; see :class:`plancast_actors.hosting.protocol.HostPort`.

    Args:
        name: Of its Ray actor.
        find: Finds the actor, or starts it; blocks.
        lines: Where its line is kept; None has everything go through Ray.
    """

    def __init__(self, name: str, find: Callable[[], Any], lines: Lines | None) -> None:
        self.by_ray = False
        """Whether events go through Ray although they should not."""
        self._name = name
        self._find = find
        self._lines = lines
        self._line: HostLine | None = None
        """Stays when it is lost, until the host is met again: it may be another life then."""
        self._detour_until = float("-inf")
        self._actor: Any = None
        self._meeting = asyncio.Lock()

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Hand events over; see the protocol."""
        if self._line is not None:
            return await self._line.exchange(dispatcher, batch, wait)
        with self._reaching():
            actor = await self._found()
            packed: bytes = await actor.exchange.remote(dispatcher, pack(batch), wait)
            return [Outcome(*each) for each in unpack(packed)]

    async def incarnation(self) -> str:
        """Tells one life of the host's process from the next, and sees to the line to it; see the protocol."""
        async with self._meeting:
            with self._reaching():
                actor = await self._found()
                life = str(await actor.incarnation.remote())
                return life if self._lines is None else await self._meet(actor, life, self._lines)

    async def recycle(self) -> None:
        """End a process that does not answer; Ray restarts it."""
        logger.error("%s does not answer, its process is ended", self._name)
        actor, self._actor = self._actor, None
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor, no_restart=False)

    async def _meet(self, actor: Any, life: str, lines: Lines) -> str:
        """Have a line to this life of the host, if there can be one; returns the life that is at its other end."""
        line = lines.find(self._name)
        if line is not None and line.life == life:
            if not line.lost:
                self._line = line
                return life
            if line is self._line:
                self._make_detour("its line was cut, and it lives on")
        elif line is not None:
            line.abort()
            self._detour_until = float("-inf")
        self._line = None
        if asyncio.get_running_loop().time() < self._detour_until:
            return life
        # A host of an earlier version, which an upgrade has found, has no lines.
        offer: LineOffer | None = await actor.line.remote() if hasattr(actor, "line") else None
        if offer is None:
            self._make_detour("it offers no line")
            return life
        try:
            self._line = await lines.open(self._name, offer)
        except OSError as error:
            reason = str(error) or type(error).__name__
            self._make_detour(f"it cannot be reached at {offer} ({reason}); is there a firewall between the nodes?")
            return life
        self.by_ray = False
        return self._line.life

    def _make_detour(self, why: str) -> None:
        if not self.by_ray:
            logger.warning("events for %s go through Ray for now, which costs more: %s", self._name, why)
        self.by_ray = True
        self._detour_until = asyncio.get_running_loop().time() + DETOUR_SECONDS

    async def _found(self) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._find)
        return self._actor

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (RayError, ValueError) as error:
            self._actor = None
            raise HostLost(f"{self._name}: {type(error).__name__}") from error
