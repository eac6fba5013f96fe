"""The Ray actor that runs a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
from ray.exceptions import RayError

from plancast_actors.dispatch.directory import RayDirectory
from plancast_actors.dispatch.dispatcher import Dispatcher
from plancast_actors.dispatch.terms import Introduction, Terms
from plancast_actors.dispatcher_options import delete_other_consumers
from plancast_actors.liveness.beats import BeatServer
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.ray import placement
from plancast_actors.ray.endpoint import open_endpoint
from plancast_actors.ray.process import Blueprint, Process, is_spare, open_bus, starter
from plancast_actors.scale import Scale, read_record
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)
FOLLOW_SECONDS = 10.0
"""Pause between two looks at the deployment's record. A change is announced; this finds those that were interrupted."""
SHARE_SECONDS = 2.0
"""Longest wait for events in flight before shards are divided anew; those that are left are redelivered."""
TERM_SECONDS = 2.0
"""Pause between two looks at whether a host stands in for this dispatcher. A frozen one looks as soon as it goes on."""
RELEASE_SECONDS = 3.0
"""Longest wait for a host that stands in to stop."""
LEAVE_SECONDS = 2.0
"""Seconds for which an ending dispatcher tries to end its term."""


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
        self._beats = await BeatServer().open(lambda server: open_endpoint(server, settings, self.name, "beats"))
        self._term = 0
        await self._begin_term()
        if not self.blueprint.options.stands_by:
            await self.dispatcher.start()
        self._following = asyncio.create_task(self._follow_always())
        self._keeping = asyncio.create_task(self._keep_term())
        self.sweeper = Sweeper(self.bus, settings.plans)
        if self.blueprint.options.index == 0:
            self.sweeper.start()
        self.scheduler = Scheduler(self.bus)
        self.scheduler.samples = self.samples
        await self._share_schedules()

    # Terms. A spare has none: it reads beside the dispatcher that it stands in for.

    @property
    def _terms(self) -> Terms:
        assert self.bus is not None
        return Terms(self.bus.registry, self.blueprint.settings.ray.namespace, self.blueprint.options.name, self.name)

    async def _begin_term(self) -> None:
        """Have the hosts watch this process, and the one that stands in for it stop."""
        if is_spare(self.name):
            return
        self._term, holder = await retrying(self._terms.begin, logger, retried=BusUnavailable)
        if self._beats is not None:
            self.directory.introduce(Introduction(self.blueprint.options, self._term, self.name, self._beats))
        if holder not in ("", self.name):
            logger.info("%s stands in for this dispatcher, which goes on from here", holder)
            with contextlib.suppress(RayError, ValueError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    host = await asyncio.to_thread(ray.get_actor, holder, self.blueprint.settings.ray.namespace)
                    await host.release.remote(self.blueprint.options.index)

    async def _keep_term(self) -> None:
        """Begin a new term when a host stands in for this process although it lives."""
        while not is_spare(self.name):
            await asyncio.sleep(TERM_SECONDS)
            with contextlib.suppress(BusError):
                async with self._changing:
                    if (await self._terms.newest())[0] != self._term:
                        logger.warning("%s was taken for dead, and is not: it goes on", self.name)
                        await self._begin_term()

    async def _end_term(self) -> None:
        """Have nobody stand in when this process ends."""
        self._keeping.cancel()
        if not is_spare(self.name):
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._terms.begin()

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
                await self._begin_term()
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
        await self._end_term()
        await self.sweeper.stop()
        await self.scheduler.stop()
        drained = await self.dispatcher.drain(timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


start_dispatcher = starter(DispatcherProcess, lambda of: of.settings.dispatchers.cpus)
