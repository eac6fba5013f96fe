"""Starts the measured systems, each with a nats-server of its own on an empty folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.reports.rows import Row, Sync
from benchmarks.systems.baseline import Processes
from benchmarks.systems.processes import OTHER, started_here
from benchmarks.systems.scratch import ROOT, scratch
from benchmarks.systems.script import W1, Words, record
from plancast.settings import Settings
from plancast_actors.deployment.deployment import Deployment, host_count
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer, ServerOptions

SystemName = Literal["shared", "dedicated", "baseline"]
NAMESPACE = "plancast-benchmarks"


@dataclass
class Running:
    """A running system."""

    settings: Settings
    """Settings with the URL of its nats-server, and ``data_dir``, where that stores its files."""
    server_pid: int
    deployment: Deployment | None = None
    baseline: dict[str, list[int]] = field(default_factory=dict)
    """The baseline's processes by kind."""

    async def pids(self) -> dict[str, list[int]]:
        """Return its process ids by kind: ``nats-server``, and ``plans``, ``workers``, or the kinds of a deployment.

        ``plans`` of the baseline replace dispatchers and hosts; dedicated hosts are ``hosts`` too, and
        the pool of reasoners counts as one of the ``reasoners``. ``ray`` are Ray's own processes, including idle
        workers.
        """
        found = {"nats-server": [self.server_pid], **self.baseline}
        if self.deployment is not None:
            status = await self.deployment.status()
            for kind in ("dispatchers", "hosts", "pools", "dedicated", "workers", "reasoners"):
                pids = [report["pid"] for report in status.get(kind, ()) if report["alive"]]
                found.setdefault("hosts" if kind == "dedicated" else kind, []).extend(pids)
            known = {pid for pids in found.values() for pid in pids}
            below = {kind: pids for kind, pids in started_here().items() if kind != OTHER}
            found["ray"] = [pid for pids in below.values() for pid in pids if pid not in known]
        return found

    async def live_plans(self) -> int:
        """Return the number of plan actors in memory; 0 for the baseline."""
        if self.deployment is None:
            return 0
        status = await self.deployment.status()
        return sum(report.get("live_plans", 0) for kind in ("hosts", "dedicated") for report in status[kind])


Start = Callable[[Sync], AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def plancast(
    placement: Literal["shared", "dedicated"],
    sync: Sync,
    address: str = "benchmarks.apps.w1:app",
    *,
    settings: Settings | None = None,
    import_paths: Sequence[str] = (),
) -> AsyncIterator[Running]:
    """Run an app, by default W1's, as ``plancast run`` does: Ray on this machine, one worker process.

    Args:
        placement: Placement of plans.
        sync: When its nats-server syncs to disk.
        address: Address of the app.
        settings: Other settings than the environment's; server, Ray and folder are always its own.
        import_paths: Folders with the app's modules, besides the repository.
    """
    with scratch() as folder:
        settings = _own(settings, folder)
        settings.hosts.placement = placement
        paths = [str(ROOT), *import_paths]
        runtime = LocalRuntime(address, settings, import_paths=paths, sync_interval=_interval(sync))
        async with runtime:
            yield Running(runtime.settings, _pid(runtime.server), runtime.deployment)


@asynccontextmanager
async def baseline(sync: Sync, words: Words = W1) -> AsyncIterator[Running]:
    """Run the baseline of a workload; see :mod:`benchmarks.systems.baseline`."""
    with scratch() as folder:
        settings = _own(None, folder)
        if sync == "always":  # as :class:`LocalRuntime` sets it for our systems
            settings.bus.group_commit = "always"
        recorded = await record(words)
        async with NatsServer(folder / "nats", ServerOptions(sync_interval=_interval(sync) or None)) as server:
            settings.nats.url = server.url
            bus = await connect(settings.nats, settings.bus)
            await bus.ensure_streams()
            await bus.close()
            await asyncio.to_thread(server.stage_in_memory)
            count = settings.dispatchers.count + host_count(settings)
            processes = Processes(settings.nats, settings.bus, recorded, count)
            try:
                await asyncio.to_thread(processes.start)
                yield Running(settings, _pid(server), baseline=processes.pids)
            finally:
                await asyncio.to_thread(processes.stop)


SYSTEMS: dict[SystemName, Start] = {
    "shared": partial(plancast, "shared"),
    "dedicated": partial(plancast, "dedicated"),
    "baseline": baseline,
}


def durability(sync: Sync) -> Row:
    """Return the durability fields of our rows."""
    interval = "always" if sync == "always" else "2m, the default"
    return {"sync": sync, "durability": f"nats-server with sync_interval: {interval}", "is_default": sync == "default"}


def _own(settings: Settings | None, folder: Path) -> Settings:
    """Return a copy of the settings, by default the environment's, with its own server and Ray."""
    settings = Settings() if settings is None else settings.model_copy(deep=True)
    settings.nats.url = settings.ray.address = ""
    settings.ray.namespace = NAMESPACE
    settings.data_dir = folder
    return settings


def _pid(server: NatsServer | None) -> int:
    if server is None or server.pid is None:
        raise RuntimeError("the nats-server is not running")
    return server.pid


def _interval(sync: Sync) -> str:
    return "always" if sync == "always" else ""
