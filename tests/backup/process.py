"""Deployments in the process of a test, on a real nats-server, that end like killed ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Self

from plancast import Settings
from plancast.app import App
from plancast.testing import PlancastTest
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import BusError
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer


class Deployment(PlancastTest):
    """Hosts, dispatcher and workers with connections of their own to a nats-server.

    Args:
        app: The app.
        server: The nats-server; the deployment ends by killing it.
        settings: The settings.
    """

    def __init__(self, app: App, server: NatsServer, settings: Settings) -> None:
        super().__init__(app, settings=settings, hosts=2)
        self._server = server
        self._buses: list[JetStreamBus] = []

    async def _connect(self) -> JetStreamBus:
        bus = await connect(self.settings.nats, self.settings.bus)
        self._buses.append(bus)
        return bus

    async def __aenter__(self) -> Self:
        self.settings.nats.url = self._server.url
        self.bus = await self._connect()  # type: ignore[assignment]
        await self.bus.ensure_streams()
        self.clock = self.bus.clock
        self._host_buses = [await self._connect() for _ in self.hosts]
        return await super().__aenter__()

    async def kill(self) -> None:
        """Kill the nats-server, so that nothing of the deployment can do anything any more."""
        self._server.kill()

    async def __aexit__(self, *_: object) -> None:
        with suppress(BusError):
            await super().__aexit__()
        for bus in self._buses:
            await bus.close()

    async def start_dispatcher(self) -> None:
        options = replace(DispatcherOptions.of(self.app, self.settings), count=1)
        self._dispatcher = Dispatcher(await self._connect(), self, options)
        await self._dispatcher.start()
        self.sweeper = Sweeper(self._dispatcher.bus, self.settings.plans)
        self.sweeper.start()
        self.scheduler = Scheduler(self._dispatcher.bus)
        self.scheduler.start()

    async def _start_worker(self) -> None:
        limit = self.settings.bus.max_event_bytes
        self._runner = TaskRunner(self.app, await self._connect(), self.settings.workers, max_event_bytes=limit)
        await self._runner.start()

    def new_host(self, name: str) -> PlanHost:
        return PlanHost(self.app, self._host_buses.pop(), self.settings, name=name)
