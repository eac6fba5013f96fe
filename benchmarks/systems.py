"""The systems that are measured, each with a nats-server of its own on an empty folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks import script
from benchmarks.baseline import Processes
from benchmarks.rows import Row
from plancast.settings import ReasonerSettings, Settings
from plancast_actors.deployment import Deployment, host_count
from plancast_actors.local import LocalRuntime
from plancast_bus.jetstream import connect
from plancast_bus.server import NatsServer, ServerOptions

SystemName = Literal["shared", "dedicated", "baseline"]
Sync = Literal["default", "always"]

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "benchmarks" / ".scratch"
"""Data of the nats-servers: on the disk that the repository is on, and gone after each run."""
NAMESPACE = "plancast-benchmarks"


@dataclass
class Running:
    """A system that runs."""

    settings: Settings
    """With the URL of its nats-server."""
    server_pid: int
    deployment: Deployment | None = None
    baseline: dict[str, list[int]] = field(default_factory=dict)
    """The baseline's processes by kind."""

    async def pids(self) -> dict[str, list[int]]:
        """Its processes by kind: ``nats-server``, and ``plans``, ``workers``, or what a deployment has.

        ``plans`` of the baseline stand for dispatchers and hosts; dedicated hosts are ``hosts`` too, and
        the pool of reasoners is one of the ``reasoners``. ``ray`` are Ray's own processes, and those of its workers
        that have nothing to do.
        """
        found = {"nats-server": [self.server_pid], **self.baseline}
        if self.deployment is not None:
            status = await self.deployment.status()
            for kind in ("dispatchers", "hosts", "dedicated", "workers", "reasoners"):
                pids = [report["pid"] for report in status.get(kind, ()) if report["alive"]]
                found.setdefault("hosts" if kind == "dedicated" else kind, []).extend(pids)
            known = {pid for pids in found.values() for pid in pids}
            found["ray"] = [pid for pid in _ray_processes() if pid not in known]
        return found

    async def live_plans(self) -> int:
        """Plan actors that are in memory; 0 for the baseline, which has none."""
        if self.deployment is None:
            return 0
        status = await self.deployment.status()
        return sum(report.get("live_plans", 0) for kind in ("hosts", "dedicated") for report in status[kind])


Start = Callable[[Sync], AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def plancast(
    placement: Literal["shared", "dedicated"],
    sync: Sync,
    address: str = "benchmarks.w1:app",
    import_paths: Sequence[str] = (),
    reasoners: ReasonerSettings | None = None,
) -> AsyncIterator[Running]:
    """An app, that of W1, as ``plancast run`` would run it: Ray on this machine, one worker process."""
    with scratch() as folder:
        settings = _settings(folder)
        settings.hosts.placement = placement
        settings.reasoners = reasoners or settings.reasoners
        runtime = LocalRuntime(
            address,
            settings,
            workers=True,
            import_paths=[str(ROOT), *import_paths],
            sync_interval=_interval(sync),
        )
        async with runtime:
            yield Running(runtime.settings, _pid(runtime.server), runtime.deployment)


@asynccontextmanager
async def baseline(sync: Sync) -> AsyncIterator[Running]:
    """What W1 does on JetStream, without plans; see :mod:`benchmarks.baseline`."""
    with scratch() as folder:
        settings = _settings(folder)
        recorded = await script.record()
        async with NatsServer(folder / "nats", ServerOptions(sync_interval=_interval(sync) or None)) as server:
            settings.nats.url = server.url
            bus = await connect(settings.nats, settings.bus)
            await bus.ensure_streams()
            await bus.close()
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


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder that is removed afterwards."""
    SCRATCH.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def durability(sync: Sync) -> Row:
    """What a row of ours says of its durability."""
    interval = "always" if sync == "always" else "2m, the default"
    return {"sync": sync, "durability": f"nats-server with sync_interval: {interval}", "is_default": sync == "default"}


def _ray_processes() -> list[int]:
    """Processes of the Ray that this process has started, with its actors."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, generation = [], {os.getpid()}
    while generation := {pid for pid, parent in parents.items() if parent in generation}:
        found += [pid for pid in generation if _is_ray(pid)]
    return found


def _is_ray(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command.startswith(b"ray::") or b"/ray/" in command
    return False


def _settings(folder: Path) -> Settings:
    """Settings of the environment, but with a server and a Ray of their own."""
    settings = Settings()
    settings.nats.url = settings.ray.address = ""
    settings.ray.namespace = NAMESPACE
    settings.data_dir = folder
    return settings


def _pid(server: NatsServer | None) -> int:
    if server is None or server.pid is None:
        raise RuntimeError("the nats-server does not run")
    return server.pid


def _interval(sync: Sync) -> str:
    return "always" if sync == "always" else ""
