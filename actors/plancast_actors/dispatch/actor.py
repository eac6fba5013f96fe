"""The Ray actor that runs a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from plancast_actors.dispatch.directory import RayDirectory
from plancast_actors.dispatch.dispatcher import Dispatcher
from plancast_actors.dispatcher_options import delete_other_consumers
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.ray import placement
from plancast_actors.ray.process import Blueprint, Process, open_bus, starter
from plancast_actors.scale import Scale, read_record
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

FOLLOW_SECONDS = 10.0
"""Pause between two looks at the deployment's record. A change is announced; this finds those that were interrupted."""
SHARE_SECONDS = 2.0
"""Longest wait for events in flight before shards are divided anew; those that are left are redelivered."""


class DispatcherProcess(Process):
    """A dispatcher in a Ray actor. The numbers of hosts and dispatchers are those of the deployment's record."""

    role = "dispatcher"
    directory: RayDirectory
    dispatcher: Dispatcher
    sweeper: Sweeper
    scheduler: Scheduler

    async def _start(self) -> None:
        settings = self.blueprint.settings
        self.bus = await open_bus(settings)
        self._changing = asyncio.Lock()
        self._paused = False
        self._nodes: list[str] = []
        """Ids of the nodes that take actors, for the deployment's watch."""
        self.blueprint = await self._recorded()
        self.directory = RayDirectory(self.blueprint, settings)
        self.dispatcher = Dispatcher(self.bus, self.directory, self.blueprint.options, self.directory)
        self.dispatcher.samples = self.samples
        if not self.blueprint.options.stands_by:
            await self.dispatcher.start()
        self._following = asyncio.create_task(self._follow_always())
        self.sweeper = Sweeper(self.bus, settings.plans)
        if self.blueprint.options.index == 0:
            self.sweeper.start()
        self.scheduler = Scheduler(self.bus)
        self.scheduler.samples = self.samples
        await self._share_schedules()

    async def _share_schedules(self) -> None:
        options = self.blueprint.options
        await self.scheduler.share(options.index, options.count)

    def _load(self) -> dict[str, Any]:
        in_flight = self.dispatcher.in_flight
        return {"backlog": in_flight.waiting + in_flight.outstanding, "nodes": self._nodes}

    def _own_readings(self) -> Iterable[Reading]:
        yield from collectors.of_dispatcher(self.dispatcher)
        yield from collectors.of_scheduler(self.scheduler)

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        if self.blueprint.options.index == 0 and self.bus is not None:  # shared by all dispatchers, so reported by one
            for reading in collectors.of_sweeper(self.sweeper):
                yield reading
            volume_bytes = self.blueprint.settings.bus.volume_bytes
            for reading in collectors.of_streams((await self.bus.health())["streams"], volume_bytes):
                yield reading

    async def status(self) -> dict[str, Any]:
        await self.ready()
        line = {"line": self.directory.line}
        return {**self._about(), **await self.dispatcher.status(), **self.sweeper.status(), **line}

    async def pause(self) -> None:
        """Stop reading, since shards are about to be divided anew, and let the events in flight be settled."""
        await self.ready()
        async with self._changing:
            self._paused = True
            await self.dispatcher.drain(SHARE_SECONDS, parked=False)

    async def follow(self, seconds: float) -> bool:
        """Take the numbers of hosts and dispatchers from the deployment's record.

        Waits at most ``seconds`` until hosts that get no more plans have no events; returns False if some had.
        """
        await self.ready()
        return await self._follow(seconds)

    async def _follow(self, seconds: float) -> bool:
        assert self.bus is not None
        async with self._changing:
            before, self.blueprint = self.blueprint, await self._recorded()
            self.directory.names = self.blueprint.shared_hosts
            if self._paused or before.options != self.blueprint.options:
                await self.dispatcher.drain(SHARE_SECONDS, parked=False)
                await delete_other_consumers(self.bus, self.blueprint.options)
                await self.dispatcher.share(self.blueprint.options)
                await self._share_schedules()
                self._paused = False
            elif before.shared_hosts != self.blueprint.shared_hosts:
                self.dispatcher.router.reroute()
            return await self.dispatcher.router.left(seconds)

    async def _follow_always(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            await self._follow(FOLLOW_SECONDS)
            with contextlib.suppress(Exception):  # while Ray does not answer, the last ones hold
                self._nodes = sorted(await asyncio.to_thread(placement.open_nodes))

    async def _recorded(self) -> Blueprint:
        assert self.bus is not None
        record = await read_record(self.bus, self.blueprint.settings.ray.namespace)
        return self.blueprint.scaled(Scale.in_force(record))

    async def move(self, name: str, stand_in: str) -> None:
        """Send the events of a shared host's plans to another host, or back, after connecting to it.

        Raises:
            HostLost: neither is there; nothing has changed.
        """
        await self.ready()
        host = self.directory.stand_in(name, stand_in)
        await host.incarnation()
        self.dispatcher.router.move(self.blueprint.shared_hosts.index(name), host)

    async def drain(self, timeout: float) -> bool:
        """Stop reading, and wait until no event is in flight; True if reached in time."""
        await self.ready()
        self._following.cancel()
        await self.sweeper.stop()
        await self.scheduler.stop()
        drained = await self.dispatcher.drain(timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


start_dispatcher = starter(DispatcherProcess, lambda of: of.settings.dispatchers.cpus)
