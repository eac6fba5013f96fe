"""An app deployed on a real nats-server: dispatcher, plan hosts and workers as in production, without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from plancast import App, Client, Settings
from plancast.agents.registry import TTL_SECONDS
from plancast.testing.environment import LocalHost
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.bus import JetStreamBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.trees import Trees
from plancast_bus.settings import NatsSettings


class OnNats:
    """``async with OnNats(server, app) as env``: goals are submitted by ``env.client``.

    Args:
        server: Where; each deployment has a prefix of its own.
        app: What is deployed.
        hosts: Number of plan hosts, each with a connection of its own.
        settings: By section, such as ``plans={"max_depth": 3}``.
    """

    def __init__(self, server: NatsServer, app: App, *, hosts: int = 1, **settings: dict[str, Any]) -> None:
        self.app = app
        own = {"prefix": f"t{uuid4().hex[:12]}", "shards": 4} | settings.pop("bus", {})
        self.settings = Settings.model_validate({"nats": {"url": server.url}, "bus": own, **settings})
        self.hosts = [LocalHost(self, f"host-{number}") for number in range(hosts)]  # type: ignore[arg-type]
        self._buses: list[JetStreamBus] = []
        self._host_buses: list[JetStreamBus] = []
        self.client: Client
        self.bus: JetStreamBus

    async def connect(self) -> JetStreamBus:
        bus = await connect(NatsSettings(url=self.settings.nats.url, publish_timeout=60.0), self.settings.bus)
        self._buses.append(bus)
        return bus

    async def __aenter__(self) -> Self:
        self.bus = await self.connect()
        await self.bus.ensure_streams()
        await register_app(self.bus.registry, self.app, TTL_SECONDS)
        for host in self.hosts:
            self._host_buses.append(await self.connect())
            host.start()
        self.client = Client(await self.connect())
        self.runner = TaskRunner(self.app, await self.connect(), self.settings.workers)
        await self.runner.start()
        options = replace(DispatcherOptions.of(self.app, self.settings), count=1)
        self.dispatcher = Dispatcher(await self.connect(), self, options)
        await self.dispatcher.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.dispatcher.stop()
        await self.runner.stop(drain_seconds=0)
        for host in self.hosts:
            await host.crash()
        await self.client.close()
        await asyncio.gather(*(bus.close() for bus in self._buses))

    # What the dispatcher finds its hosts by.

    @property
    def shared(self) -> list[HostPort]:
        return list(self.hosts)

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("plans of these tests are placed on shared hosts")

    def new_host(self, name: str) -> PlanHost:
        bus = self._host_buses[int(name.rpartition("-")[2])]
        bus.trees = Trees(bus.registry)  # what a new process remembers: nothing
        return PlanHost(self.app, bus, self.settings, name=name)
