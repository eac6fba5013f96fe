"""GrantedHost: the dedicated host that a plan has for a time, as the pool grants it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError

from plancast_actors.hosting.plan_pool import Grant
from plancast_actors.hosting.pool_actor import POOL
from plancast_actors.plan_actors.protocol import HostLost, HostPort, HostReleased, Inbound, Outcome
from plancast_actors.ray.pool import PoolNames
from plancast_actors.ray.remote_actor import ActorLost, RemoteActor
from plancast_actors.rpc.client import Endpoint

logger = logging.getLogger(__name__)


class PoolClient:
    """Asks the pool for dedicated hosts, and keeps a connection to each of them, for all plans.

    Args:
        namespace: The Ray namespace of the deployment.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._names = PoolNames(POOL, namespace)
        self._pool: RemoteActor | None = None
        self._hosts: dict[str, RemoteActor] = {}
        self._opening = asyncio.Lock()

    @property
    def by_ray(self) -> bool:
        """True if events for a dedicated host go through Ray."""
        return any(host.connection is None for host in self._hosts.values())

    async def acquire(self, plan: str, tenant: str, begun: bool, refused: str) -> Grant:
        """Get a host for a plan; see :meth:`plancast_actors.hosting.plan_pool.PlanPool.acquire`.

        Raises:
            HostLost: the pool is gone, or is being replaced.
        """
        pool = await self._find_pool()
        try:
            granted = await pool.call("acquire", plan, tenant, begun, refused)
            if granted is None:
                raise ActorLost(f"{pool.name} is being replaced")
        except ActorLost as error:
            if self._pool is pool:
                self._names.turn_from(pool.name)
                self._pool = None
            raise HostLost(str(error)) from None
        host, lease, endpoint = granted
        return Grant(host, lease, endpoint and Endpoint(*endpoint))

    async def connect(self, grant: Grant) -> RemoteActor:
        """The host of a grant. Raises HostLost if it is gone."""
        async with self._opening:
            host = self._hosts.get(grant.host)
            if host is None or host.lost or host.endpoint != grant.endpoint:
                host = await RemoteActor(grant.host, await self._actor(grant.host), grant.endpoint).connect()
                if host.connection is None and await self._endpoint(host.actor, grant.host) != grant.endpoint:
                    raise HostLost(f"{grant.host} has ended")
                self._hosts[grant.host] = host
        return host

    async def kill(self, name: str) -> None:
        """Kill the process of a host; Ray restarts it."""
        await asyncio.to_thread(ray.kill, await self._actor(name), no_restart=False)

    async def _find_pool(self) -> RemoteActor:
        async with self._opening:
            if self._pool is None or self._pool.lost:
                try:
                    name, actor = await self._names.find()
                except ActorLost as error:
                    raise HostLost(str(error)) from None
                self._pool = await RemoteActor(name, actor, await self._endpoint(actor, name)).connect()
        return self._pool

    async def _endpoint(self, actor: Any, name: str) -> Endpoint | None:
        try:
            found: Endpoint | None = await actor.endpoint.remote()
        except RayError as error:
            raise HostLost(f"{name}: {type(error).__name__}") from None
        return found

    async def _actor(self, name: str) -> Any:
        try:
            return await asyncio.to_thread(ray.get_actor, name, self._namespace)
        except (RayError, ValueError) as error:
            raise HostLost(f"{name}: {type(error).__name__}") from None


class GrantedHost(HostPort):
    """The host of one dedicated plan; implements :class:`plancast_actors.plan_actors.protocol.HostPort`.

    Its incarnation is the lease: :meth:`incarnation` waits until the plan has a host.

    Args:
        pool: Grants hosts.
        plan: The plan's correlation id.
        tenant: The plan's.
        begun: Whether the plan has begun.
    """

    def __init__(self, pool: PoolClient, plan: str, tenant: str, begun: bool) -> None:
        self._pool = pool
        self._plan = plan
        self._tenant = tenant
        self._begun = begun
        self._grant: Grant | None = None
        self._host: RemoteActor | None = None
        self._refused = ""

    async def incarnation(self) -> str:
        """Wait until the plan has a host, and connect to it; returns the lease."""
        grant = await self._pool.acquire(self._plan, self._tenant, self._begun, self._refused)
        self._host = await self._pool.connect(grant)
        self._grant = grant
        return grant.lease

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """Implement :meth:`plancast_actors.plan_actors.protocol.HostPort.exchange`.

        Raises:
            HostReleased: the plan has the host no more, and has had none of these events.
        """
        grant, host = self._grant, self._host
        assert grant is not None
        assert host is not None
        try:
            outcomes = await host.call("exchange", grant.lease, self._plan, dispatcher, batch, wait)
        except ActorLost as error:
            raise HostLost(str(error)) from None
        if outcomes is None:
            if grant is not self._grant:  # a late reply: the plan has another host by now
                return []
            self._refused, self._begun = grant.lease, True
            raise HostReleased(f"{grant.host} has another plan")
        return [Outcome(*each) for each in outcomes]

    async def recycle(self) -> None:
        """Kill the process of a host that does not answer; Ray restarts it."""
        if self._grant is not None:
            logger.error("%s does not answer, its process is ended", self._grant.host)
            await self._pool.kill(self._grant.host)
