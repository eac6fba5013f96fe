"""Finds plan hosts: shared ones by their actor names, dedicated ones by the pool."""

from __future__ import annotations

from functools import partial
from typing import Literal
from weakref import WeakSet

import ray

from plancast.settings import Settings
from plancast_actors.dispatch.granted_host import GrantedHost, PoolClient
from plancast_actors.dispatch.remote_host import RayHost
from plancast_actors.hosting.connection import HostConnections
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.ray.process import Blueprint


class RayDirectory:
    """Finds plan hosts by name; see :class:`plancast_actors.dispatch.dispatcher.HostDirectory`."""

    def __init__(self, blueprint: Blueprint, settings: Settings) -> None:
        self.names = blueprint.shared_hosts
        """Names of the shared hosts."""
        self._namespace = settings.ray.namespace
        self._connections = HostConnections() if settings.hosts.direct_lines else None
        self._hosts: WeakSet[RayHost] = WeakSet()
        self._pool = PoolClient(settings.ray.namespace)

    @property
    def shared(self) -> list[HostPort]:
        return [self._host(name) for name in self.names]

    def dedicated(self, plan: str, tenant: str, begun: bool) -> HostPort:
        """The host that the pool grants to a plan, when it has an event."""
        return GrantedHost(self._pool, plan, tenant, begun)

    @property
    def line(self) -> Literal["direct", "ray"]:
        """The way events take to hosts: ``ray`` if any of them has no direct connection."""
        by_ray = self._connections is None or self._pool.by_ray or any(host.by_ray for host in self._hosts)
        return "ray" if by_ray else "direct"

    def _host(self, name: str) -> HostPort:
        host = RayHost(name, partial(ray.get_actor, name, namespace=self._namespace), self._connections)
        self._hosts.add(host)
        return host
