"""Pools: actors that start further actors and give them work, and how their clients find them."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import ray
from ray.exceptions import RayError

from plancast_actors.ray.process import Process, is_spare, names_of, spare_of
from plancast_actors.ray.remote_actor import ActorLost

FIND_SECONDS = 1.0
"""Timeout for a pool to say that it is ready. While it starts, its spare may be there."""
STAFF_PAUSE = 0.05
"""Seconds between two looks at how many members are ready."""


class Pool(Protocol):
    """What a pool's process needs of it."""

    @property
    def ready(self) -> int:
        """Number of members that have started."""
        ...

    @property
    def needed(self) -> int:
        """Number of members that the requests of this moment need."""
        ...

    def fill(self, count: int) -> None:
        """Start what is missing of a number of members, as far as the settings permit."""
        ...

    def status(self) -> dict[str, Any]: ...


class PoolProcess(Process):
    """A pool in a Ray actor. It refuses requests from when its successor takes over."""

    pool: Pool
    starts_at_once: ClassVar[int]
    """Number of members that may start at the same time while another pool still serves."""

    @abc.abstractmethod
    def _layout(self) -> object:
        """Return the settings with which a pool can be kept."""

    async def layout(self) -> object:
        """Return the pool's settings."""
        await self.ready()
        return self._layout()

    async def status(self) -> dict[str, Any]:
        """Report the state for ``plancast status``."""
        await self.ready()
        return {**self._about(), **self.pool.status()}

    async def needed(self) -> int:
        """Return the number of members that the requests of this moment need."""
        await self.ready()
        return self.pool.needed

    async def staff(self, count: int, seconds: float) -> int:
        """Start members until ``count`` are ready, or for some seconds no further one is; returns how many are."""
        await self.ready()
        loop, ready = asyncio.get_running_loop(), self.pool.ready
        deadline = loop.time() + seconds
        while ready < count and loop.time() < deadline:
            self.pool.fill(min(count, ready + self.starts_at_once))
            await asyncio.sleep(STAFF_PAUSE)
            if self.pool.ready > ready:
                deadline = loop.time() + seconds
            ready = self.pool.ready
        return ready

    @abc.abstractmethod
    async def refuse(self) -> list[Any]:
        """Accept no further requests: clients turn to the next pool. Returns the keys of requests in flight."""

    @abc.abstractmethod
    async def take_over(self, keys: Sequence[Any]) -> None:
        """Accept requests, but for those that another pool still has in flight."""


class PoolNames:
    """The names under which clients look for a pool: its own, and that of its spare."""

    def __init__(self, name: str, namespace: str) -> None:
        self._names = [name, spare_of(name)]
        self._namespace = namespace

    def turn_from(self, name: str) -> None:
        """Look for the other one first, since this one is gone or refuses requests."""
        self._names.sort(key=lambda each: each == name)

    async def find(self) -> tuple[str, Any]:
        """Return name and handle of the first one that is ready.

        Raises:
            ActorLost: there is none.
        """
        failure = ""
        for name in self._names:
            try:
                actor = await asyncio.to_thread(ray.get_actor, name, self._namespace)
                async with asyncio.timeout(FIND_SECONDS):
                    await actor.ready.remote()
                return name, actor
            except (RayError, ValueError, TimeoutError) as error:
                failure = failure or f"{name}: {type(error).__name__}"
        raise ActorLost(failure)


def members_of(pool: str, prefix: str, names: Sequence[str]) -> list[str]:
    """The names of the actors that a pool has started, among others."""
    return [name for name in names if name.startswith(prefix) and is_spare(name) == is_spare(pool)]


async def outdated(namespace: str, pool: str, prefix: str, wanted: object | None) -> list[str]:
    """Names of a pool's actors when they run with other settings, or are not wanted at all."""
    names = await asyncio.to_thread(names_of, namespace, [pool, prefix])
    if not names or wanted is None:
        return names
    try:
        same = bool(await ray.get_actor(pool, namespace=namespace).layout.remote() == wanted)
    except (RayError, ValueError):
        same = False
    return [] if same else names
