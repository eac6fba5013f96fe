"""The Ray actor that runs a dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from plancast_actors.dispatch.directory import RayDirectory
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.ray.process import Process, open_bus, starter
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading


class DispatcherProcess(Process):
    """A dispatcher in a Ray actor."""

    role = "dispatcher"
    directory: RayDirectory
    dispatcher: Dispatcher
    sweeper: Sweeper

    async def _start(self) -> None:
        settings = self.blueprint.settings
        self.bus = await open_bus(settings)
        self.directory = RayDirectory(self.blueprint, settings)
        self.dispatcher = Dispatcher(self.bus, self.directory, self.blueprint.options)
        self.dispatcher.samples = self.samples
        await self.dispatcher.start()
        self.sweeper = Sweeper(self.bus, settings.plans)
        if self.blueprint.options.index == 0:
            self.sweeper.start()

    def _own_readings(self) -> Iterable[Reading]:
        return collectors.of_dispatcher(self.dispatcher)

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

    async def layout(self) -> tuple[DispatcherOptions, tuple[str, ...]]:
        """The options, and the names of the shared hosts."""
        return self.blueprint.options, self.blueprint.shared_hosts

    async def drain(self, timeout: float) -> bool:
        """Stop reading, and wait until no event is in flight; True if reached in time."""
        await self.ready()
        await self.sweeper.stop()
        drained = await self.dispatcher.drain(timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


start_dispatcher = starter(DispatcherProcess, lambda of: (of.settings.dispatchers.cpus, of.options.count))
