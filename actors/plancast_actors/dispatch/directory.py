"""Finds plan hosts by their actor names, and starts dedicated ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import ray

from plancast.settings import Settings
from plancast_actors.dispatch.remote_host import RayHost
from plancast_actors.hosting.actor import start_host
from plancast_actors.hosting.connection import HostConnections
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.ray.process import DEDICATED_PREFIX, Blueprint
from plancast_bus.subjects import encode_token


class RayDirectory:
    """Finds plan hosts by name; see :class:`plancast_actors.dispatch.dispatcher.HostDirectory`."""

    def __init__(self, blueprint: Blueprint, settings: Settings) -> None:
        self._blueprint = blueprint
        self._namespace = settings.ray.namespace
        self._connections = HostConnections() if settings.hosts.direct_lines else None
        self._hosts: WeakSet[RayHost] = WeakSet()

    @property
    def shared(self) -> list[HostPort]:
        names = self._blueprint.shared_hosts
        return [self._host(name, partial(ray.get_actor, name, namespace=self._namespace)) for name in names]

    def dedicated(self, plan: str) -> HostPort:
        """The dedicated host of a plan, which is started at its first event."""
        name = dedicated_name(plan)
        return self._host(name, partial(start_host, self._blueprint, name, self._namespace, plan))

    @property
    def line(self) -> Literal["direct", "ray"]:
        """The way events take to hosts: ``ray`` if any of them has no direct connection."""
        return "ray" if self._connections is None or any(host.by_ray for host in self._hosts) else "direct"

    def _host(self, name: str, find: Callable[[], Any]) -> HostPort:
        host = RayHost(name, find, self._connections)
        self._hosts.add(host)
        return host


def dedicated_name(plan: str) -> str:
    return f"{DEDICATED_PREFIX}{encode_token(plan)}"
