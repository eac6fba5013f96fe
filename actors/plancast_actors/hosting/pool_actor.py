"""The Ray actor of the pool of dedicated hosts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from plancast.settings import HostSettings
from plancast_actors.hosting.leased_actor import start_leased_host
from plancast_actors.hosting.plan_pool import DEDICATED_PREFIX, STARTS, HostGone, PlanPool, PoolRefuses
from plancast_actors.ray.pool import PoolProcess
from plancast_actors.ray.process import (
    Blueprint,
    NumberedActors,
    is_spare,
    open_bus,
    spare_of,
    start_ready,
    starter,
)
from plancast_actors.ray.remote_actor import ActorLost, CallableMethods, RemoteActor
from plancast_actors.rpc.client import Endpoint
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

POOL = "dedicated-0"
"""Name of the pool's Ray actor."""
MAX_CALLS = 200_000
"""Concurrent calls to the pool: a plan that waits for a host is one."""
END_SECONDS = 0.05
"""Seconds between two looks whether Ray has ended a process."""


class PlanPoolProcess(PoolProcess):
    """The pool of dedicated hosts in a Ray actor."""

    role = "dedicated_pool"
    pool: PlanPool
    starts_at_once = STARTS
    methods: CallableMethods

    async def _start(self) -> None:
        settings = self.blueprint.settings
        self.bus = await open_bus(settings)  # for its heartbeat
        self.pool = PlanPool(RayStarter(self.blueprint, spare=is_spare(self.name)), settings.hosts)
        await self.pool.start()
        self.methods = CallableMethods({"acquire": self._acquire})
        await self.methods.open(settings, self.name, "requests for hosts")

    async def _acquire(self, plan: str, tenant: str, begun: bool, refused: str) -> list[Any] | None:
        try:
            grant = await self.pool.acquire(plan, tenant, begun, refused)
        except PoolRefuses:
            return None
        where = grant.endpoint
        return [grant.host, grant.lease, where and [where.incarnation, where.address, where.port, where.secret]]

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_plan_pool(self.pool):
            yield reading

    async def invoke(self, method: str, packed: bytes) -> bytes:
        """Execute a call of a dispatcher that comes through Ray."""
        await self.ready()
        return await self.methods.invoke(method, packed)

    async def endpoint(self) -> Endpoint | None:
        """Return where dispatchers connect; None when they are to call through Ray."""
        await self.ready()
        return self.methods.endpoint

    async def host_of(self, plan: str) -> str | None:
        """The name of the host that a plan has; None if it has none now."""
        await self.ready()
        return self.pool.host_of(plan)

    def _layout(self) -> HostSettings:
        return self.blueprint.settings.hosts

    async def refuse(self) -> list[Any]:
        """Grant no more hosts; see :meth:`plancast_actors.ray.pool.PoolProcess.refuse`. No request outlasts it."""
        await self.ready()
        self.pool.refuse()
        return []

    async def take_over(self, keys: Sequence[Any]) -> None:
        """Grant hosts."""
        await self.ready()
        self.pool.refuse(False)

    async def drain(self, timeout: float) -> bool:
        """Return at once: plans that wait for a host are in flight in dispatchers."""
        await self.ready()
        await self._report_now()
        return True


class RayLeased:
    """A dedicated host in another process; implements :class:`plancast_actors.hosting.plan_pool.LeasedPort`."""

    def __init__(self, host: RemoteActor) -> None:
        self._host = host
        self.endpoint = host.endpoint if host.connection is not None else None

    async def adopt(self) -> tuple[str, str]:
        """Report the lease and the plan to a new pool."""
        lease, plan = await self._call("adopt")
        return lease, plan

    async def grant(self, lease: str, plan: str, contended: bool) -> bool:
        """Give the host to a plan."""
        return bool(await self._call("grant", lease, plan, contended))

    async def contend(self, contended: bool) -> None:
        """Note whether plans wait for a host."""
        await self._call("contend", contended)

    async def released(self, lease: str) -> tuple[str, bool]:
        """Wait until a lease has ended."""
        following, worn = await self._call("released", lease)
        return following, worn

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._host.call(method, *arguments)
        except ActorLost as error:
            raise HostGone(str(error)) from None


class RayStarter(NumberedActors):
    """Starts dedicated hosts as Ray actors; implements :class:`plancast_actors.hosting.plan_pool.HostStarter`."""

    def __init__(self, blueprint: Blueprint, *, spare: bool = False) -> None:
        super().__init__(DEDICATED_PREFIX, blueprint, spare=spare)

    async def start(self, number: int) -> RayLeased:
        """Start a host or find it; waits while Ray starts its process. One of another release is replaced."""
        name = self.name_of(number)
        actor = await start_ready(start_leased_host, self._blueprint, name, self._namespace)
        try:
            while (await actor.made_from.remote()).release != self._blueprint.release:
                await self.stop(number)
                await asyncio.sleep(END_SECONDS)
                actor = await start_ready(start_leased_host, self._blueprint, name, self._namespace)
            return RayLeased(await RemoteActor(name, actor, await actor.endpoint.remote()).connect())
        except RayError as error:
            raise HostGone(f"{name}: {type(error).__name__}") from None

    async def replace(self, number: int) -> None:
        """End a host's process, and wait until it has ended; Ray starts the next one."""
        with contextlib.suppress(RayError, ValueError):
            actor = await asyncio.to_thread(ray.get_actor, self.name_of(number), self._namespace)
            pid = await actor.pid.remote()
            await asyncio.to_thread(ray.kill, actor, no_restart=False)
            while await actor.pid.remote() == pid:  # noqa: ASYNC110 - Ray has no event for it
                await asyncio.sleep(END_SECONDS)


start_plan_pool = starter(PlanPoolProcess, lambda of: of.settings.hosts.dedicated_cpus, max_concurrency=MAX_CALLS)


def find_plan_host(plan: str, namespace: str) -> Any:
    """Return the Ray actor that a plan has now, or None. Blocks; for people and tests, not for hot paths."""
    for pool in (POOL, spare_of(POOL)):
        with contextlib.suppress(RayError, ValueError):
            name: Any = ray.get(ray.get_actor(pool, namespace=namespace).host_of.remote(plan))
            if name:
                return ray.get_actor(name, namespace=namespace)
    return None
