"""The Ray actor that runs a plan host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from plancast.replay.fingerprint import Fingerprint
from plancast.settings import Settings
from plancast.telemetry import trace_export
from plancast_actors.hosting.connection import host_server
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.beats import BeatServer
from plancast_actors.liveness.crash_record import Marks, clear_crash_records, read_crash_record
from plancast_actors.liveness.watchdog import BlockWatch, own_marks
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.ray.endpoint import open_endpoint
from plancast_actors.ray.process import SPARE_CPUS, Blueprint, Process, open_bus, starter
from plancast_actors.reasoning.client import RayReasoner, wants_reasoners
from plancast_actors.release import Abilities
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.framing import pack, unpack
from plancast_actors.rpc.server import RpcServer
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

logger = logging.getLogger(__name__)
QUARANTINE = "plan-quarantine"
"""Name of the host in which events run that may have ended another one. Started when there is one."""


class HostProcess(Process):
    """A plan host in a Ray actor."""

    role = "host"
    host: PlanHost
    server: RpcServer

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        self._endpoint: Endpoint | None = None
        self._beats: Endpoint | None = None
        super().__init__(blueprint, name)

    async def _start(self) -> None:
        settings = self.blueprint.settings
        app = self.blueprint.load_app()
        self.bus = await open_bus(settings)
        namespace, patience = settings.ray.namespace, settings.reasoners.timeout
        reasoner = RayReasoner(namespace, patience=patience) if wants_reasoners(app, settings) else None
        tracing = trace_export.open_tracing(settings, self.name)
        self.host = PlanHost(app, self.bus, settings, name=self.name, reasoner=reasoner, tracing=tracing)
        self.host.samples = self.samples
        self._keep_marks(settings)
        self.host.start()
        await self._open_endpoint(settings)

    def _keep_marks(self, settings: Settings) -> None:
        """Name the events for which code of the app runs, in a file that outlives the process."""
        namespace, seconds = settings.ray.namespace, settings.hosts.block_seconds
        try:
            marks = self.host.marks = Marks(namespace, self.host.incarnation_id)
            marks.note_exits()
        except OSError as error:
            logger.warning("%s keeps no marks: which event has crashed it is found by trial: %s", self.name, error)
            return
        own_marks.append(marks)
        clear_crash_records(namespace)
        if seconds and self.name != QUARANTINE:
            BlockWatch(self.name, marks, seconds).start()

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_host(self.host):
            yield reading

    def _details(self) -> dict[str, Any]:
        return Fingerprint.of(self.host.app, self.blueprint.settings.plans).to_record()

    async def exchange(self, dispatcher: str, packed: bytes, wait: bool) -> bytes:
        """Implement :class:`~plancast_actors.plan_actors.protocol.HostPort` on bytes: pickling tuples costs more."""
        if not self._ready.done():
            await asyncio.shield(self._ready)
        batch = [Inbound(*each) for each in unpack(packed)]
        return pack(await self.host.exchange(dispatcher, batch, wait))

    async def _open_endpoint(self, settings: Settings) -> None:
        self.server = host_server(self.host.exchange, await self.host.incarnation())
        self._endpoint = await open_endpoint(self.server, settings, self.name, "events")
        if self._endpoint is not None:
            self._beats = await BeatServer().open(lambda server: open_endpoint(server, settings, self.name, "beats"))

    async def abilities(self) -> Abilities:
        """The goals and planners of the host's app."""
        await self.ready()
        return Abilities.of(self.host.app)

    async def endpoint(self) -> Endpoint | None:
        """Return where dispatchers connect; None when they are to call through Ray."""
        await self.ready()
        return self._endpoint

    async def beats(self) -> Endpoint | None:
        """Return where a thread answers dispatchers that watch this process; None if it does not."""
        await self.ready()
        return self._beats

    async def incarnation(self) -> str:
        await self.ready()
        return await self.host.incarnation()

    async def crash_record(self, incarnation: str) -> list[Any] | None:
        """Return the crash record of a process that has ended on this machine, as plain values; None: there is none."""
        record = read_crash_record(self.blueprint.settings.ray.namespace, incarnation)
        return None if record is None else record.plain()

    async def status(self) -> dict[str, Any]:
        await self.ready()
        return {**self._about(), **await self.host.status()}

    async def drain(self, timeout: float) -> bool:
        """Wait until no event is in flight, then close direct connections."""
        await self.ready()
        drained = await self.host.drain(timeout)
        await self._report_now()
        if drained:
            self._close_endpoint()
        if self.name not in self.blueprint.shared_hosts:  # it is surplus
            await self.heartbeat.leave()
        return drained

    async def passivate(self, timeout: float = 0.0) -> bool:
        """Wait until no event is in flight, then drop idle plans from memory: other hosts may have their events now.

        Returns:
            True if no event was in flight in the end.
        """
        await self.ready()
        drained = await self.host.drain(timeout)
        self.host.passivate(0.0)
        return drained

    def _close_endpoint(self) -> None:
        self._endpoint = None
        self.server.close()


start_quarantine = starter(HostProcess, lambda of: min(SPARE_CPUS, of.settings.hosts.cpus))
