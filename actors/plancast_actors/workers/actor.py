"""The Ray actor that runs an app's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from plancast.telemetry import trace_export
from plancast_actors.ray.process import Process, incarnation_of, open_bus, starter
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading
from plancast_actors.workers.runner import TaskRunner


class WorkerProcess(Process):
    """Runs the app's workers in a Ray actor."""

    role = "worker"
    runner: TaskRunner

    @property
    def _stall_seconds(self) -> float:
        return self.blueprint.settings.workers.stall_seconds

    async def _start(self) -> None:
        settings = self.blueprint.settings
        app = self.blueprint.load_app()
        self.bus = await open_bus(settings)
        self.runner = TaskRunner(
            app,
            self.bus,
            settings.workers,
            max_event_bytes=settings.bus.max_event_bytes,
            tracing=trace_export.open_tracing(settings, self.name),
        )
        self.runner.samples = self.samples
        await self.runner.start(patient=await self._is_restarted())

    async def _is_restarted(self) -> bool:
        """True for a process that Ray has started again: it waits for servers of tools, which a deployment needs."""
        if all(worker.tools is None for worker in self.runner.workers):
            return False
        found = await asyncio.to_thread(incarnation_of, self.name, self.blueprint.settings.ray.namespace)
        return found is not None and found.restarts > 0

    def _own_readings(self) -> Iterable[Reading]:
        return collectors.of_runner(self.runner)

    async def status(self) -> dict[str, Any]:
        await self.ready()
        return {**self._about(), "tasks": sorted(task for worker in self.runner.workers for task in worker.offered)}

    async def drain(self, timeout: float) -> bool:
        """Stop fetching tasks, and wait for those in flight."""
        await self.ready()
        drained = await self.runner.stop(drain_seconds=timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


start_worker = starter(WorkerProcess, lambda of: of.settings.workers.cpus)
