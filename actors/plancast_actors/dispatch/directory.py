"""Finds plan hosts: shared ones by their actor names, dedicated ones by the pool."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import ray

from plancast.settings import Settings
from plancast_actors.dispatch.granted_host import GrantedHost, PoolClient
from plancast_actors.dispatch.remote_host import RayHost
from plancast_actors.dispatch.terms import Introduction
from plancast_actors.hosting.actor import QUARANTINE, start_quarantine
from plancast_actors.hosting.connection import HostConnections
from plancast_actors.liveness.crash_record import CrashRecord, has_ended, read_crash_record
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.ray.process import Blueprint, is_restarting

ENDING_LOOKS, ENDING_PAUSE = 20, 0.01
"""Looks at whether a process has ended, and seconds between two of them."""


class RayDirectory:
    """Finds plan hosts by name; see :class:`plancast_actors.dispatch.dispatcher.HostDirectory`."""

    def __init__(self, blueprint: Blueprint, settings: Settings) -> None:
        self.names = blueprint.shared_hosts
        """Names of the shared hosts."""
        self._namespace = settings.ray.namespace
        self._blueprint = blueprint
        self._connections = HostConnections() if settings.hosts.direct_lines else None
        self._hosts: WeakSet[RayHost] = WeakSet()
        self._introduction: Introduction | None = None
        self._introducing: set[asyncio.Task[None]] = set()
        self._pool = PoolClient(settings.ray.namespace)

    def introduce(self, introduction: Introduction) -> None:
        """Have the shared hosts watch the process that sends them events, also those that are connected to later."""
        self._introduction = introduction
        for host in self._hosts:
            host.introduction = introduction
            task = asyncio.get_running_loop().create_task(host.introduce())
            self._introducing.add(task)
            task.add_done_callback(self._introducing.discard)

    def close(self) -> None:
        """Introduce nobody any more, and close the connections to hosts, whose processes live on."""
        for task in self._introducing:
            task.cancel()
        if self._connections is not None:
            self._connections.close()

    @property
    def shared(self) -> list[HostPort]:
        return [self._host(name) for name in self.names]

    def stand_in(self, name: str, other: str) -> HostPort:
        """The host that takes the plans of a shared host; that host itself when the other one is gone."""
        return self._host(other, name)

    def dedicated(self, plan: str, tenant: str, begun: bool) -> HostPort:
        """The host that the pool grants to a plan, when it has an event."""
        return GrantedHost(self._pool, plan, tenant, begun)

    @property
    def quarantine(self) -> HostPort:
        """The host for suspects. It starts when it is called first, and stays."""
        host = RayHost(
            QUARANTINE, partial(start_quarantine, self._blueprint, QUARANTINE, self._namespace), self._connections
        )
        self._hosts.add(host)
        return host

    async def crash_record(self, host: HostPort, incarnation: str) -> CrashRecord | None:
        """Read what a process has left on this machine, or have its successor read it on another one."""
        record = read_crash_record(self._namespace, incarnation)
        if record is None and isinstance(host, RayHost):
            record = await host.crash_record(incarnation)
        return record

    async def crash_record_here(self, incarnation: str) -> CrashRecord | None:
        """Read what a process has left on this machine; its connections are closed shortly before it has ended."""
        for _ in range(ENDING_LOOKS):
            if has_ended(self._namespace, incarnation):
                return read_crash_record(self._namespace, incarnation)
            await asyncio.sleep(ENDING_PAUSE)
        return None

    @property
    def line(self) -> Literal["direct", "ray"]:
        """The way events take to hosts: ``ray`` if any of them has no direct connection."""
        by_ray = self._connections is None or self._pool.by_ray or any(host.by_ray for host in self._hosts)
        return "ray" if by_ray else "direct"

    def _host(self, *names: str) -> HostPort:
        find, is_only = partial(self._find, names), len(self.names) == 1
        others_take = None if is_only else partial(is_restarting, names[0], self._namespace)
        host = RayHost(names[0], find, self._connections, others_take)
        host.introduction = self._introduction
        self._hosts.add(host)
        return host

    def _find(self, names: tuple[str, ...]) -> Any:
        """The first of some actors that there is. Blocks. Raises ValueError if there is none."""
        for name in names[:-1]:
            with contextlib.suppress(ValueError):
                return ray.get_actor(name, namespace=self._namespace)
        return ray.get_actor(names[-1], namespace=self._namespace)
