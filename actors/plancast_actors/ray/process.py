"""The Ray actors. Plain classes, each around a part that knows nothing of Ray; wrapped in one place."""

from __future__ import annotations

import abc
import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ray
import ray._private.state as ray_state

from plancast.app import App, load_app
from plancast.settings import Settings
from plancast.telemetry import trace_export
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_actors.liveness.watchdog import Watchdog, end_process
from plancast_actors.release import Release, plancast_version
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry import logging as actor_logs
from plancast_actors.telemetry.collectors import Reading
from plancast_actors.telemetry.ray_sink import RaySink
from plancast_actors.telemetry.reporter import Reporter
from plancast_actors.telemetry.samples import Samples
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.bus import Bus

logger = logging.getLogger(__name__)
MAX_CONCURRENCY = 10_000
DEDICATED_PREFIX = "plan-"
"""Prefix of the names of hosts that hold a single plan."""
GC_THRESHOLD = (50_000, 50, 100)
"""Python's defaults would look through all live plans many times a second."""


@dataclass(frozen=True)
class Blueprint:
    """What an actor needs to come to life, also after Ray has restarted it."""

    app_address: str
    settings: Settings
    """As whoever deployed them read them; the actor's environment has no say."""
    import_paths: tuple[str, ...] = ()
    """Searched first for the user's app."""
    options: DispatcherOptions = field(default_factory=DispatcherOptions)
    shared_hosts: tuple[str, ...] = ()
    release: Release = field(default_factory=Release)
    runtime_env: dict[str, Any] | None = None
    """Ray's, in which the user's code was shipped; None where the code is on every node."""

    def load_app(self) -> App:
        """The user's app."""
        return load_app(self.app_address, self.import_paths)


async def open_bus(settings: Settings) -> Bus:
    """A connection to NATS; waits as long as it takes, since an actor without one is of no use.

    The process ends with it: one whose connection is closed for good could do nothing, for ever.
    """
    from plancast_bus.jetstream import connect

    while True:
        try:
            bus = await connect(settings.nats, settings.bus)
            bus.on_lost(end_process)
            return bus
        except BusUnavailable as error:
            logger.warning("waiting for NATS: %s", error)
            await asyncio.sleep(0.5)


class Process(abc.ABC):
    """What the actors have in common: they connect when they are made, and say so when they cannot."""

    role: ClassVar[str]
    """What the actor is, in metrics."""

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        settings = blueprint.settings
        actor_logs.configure(settings.telemetry, settings.ray.namespace, name)
        self.samples = Samples() if settings.telemetry.metrics_interval else None
        self._reporter: Reporter | None = None
        self.blueprint = blueprint
        self.name = name
        self.started_at = time.time()
        self.bus: Bus | None = None
        self._ready: asyncio.Future[None] = asyncio.ensure_future(self._begin())

    async def _begin(self) -> None:
        await self._start()
        self._report()
        # What is loaded now stays; a turn leaves next to nothing behind for the collector to look at.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        if self._stall_seconds:
            Watchdog(self.name, self._stall_seconds).start()
        registry = self.bus.registry if self.bus is not None and not self.name.startswith(DEDICATED_PREFIX) else None
        namespace, code = self.blueprint.settings.ray.namespace, self.blueprint.release.code
        self.heartbeat = Heartbeat(namespace, self.name, registry, code)

    def _report(self) -> None:
        """Report metrics from now on, unless the settings say never."""
        settings = self.blueprint.settings
        if self.samples is not None:
            common = {"deployment": settings.ray.namespace, "role": self.role, "actor": self._label}
            interval = settings.telemetry.metrics_interval
            self._reporter = Reporter(self._readings, self.samples, RaySink(common), interval)
            self._reporter.start()

    @property
    def _label(self) -> str:
        """The actor's name, as metrics have it."""
        return self.name

    async def _readings(self) -> AsyncIterator[Reading]:
        """What there is to report."""
        for reading in collectors.of_process():
            yield reading

    async def _report_now(self) -> None:
        """Report what has come about since the last time, spans too, before the process ends."""
        await asyncio.to_thread(trace_export.flush)
        if self._reporter is not None:
            await self._reporter.report()

    @property
    def _stall_seconds(self) -> float:
        """Seconds without progress after which the process ends itself."""
        return self.blueprint.settings.hosts.stall_seconds

    @abc.abstractmethod
    async def _start(self) -> None:
        """Come to life; what this raises is what :meth:`ready` raises."""

    async def ready(self) -> str:
        """Wait until the actor can work; returns its name. Raises what has kept it from starting."""
        await asyncio.shield(self._ready)
        return self.name

    async def pid(self) -> int:
        """The process id, on the node where the actor is."""
        return os.getpid()

    async def made_from(self) -> Blueprint:
        """What brings another one like it to life."""
        return self.blueprint

    def _about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "alive": True,
            "pid": os.getpid(),
            "up_seconds": time.time() - self.started_at,
            "code": self.blueprint.release.code,
            "plancast": plancast_version(),
        }


# Found again by name, in the namespace of the deployment.


def actor_options(
    name: str, namespace: str, cpus: float = 0.0, runtime_env: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Ray's options of every actor: detached, restarted, found again by name."""
    return {
        **({"runtime_env": runtime_env} if runtime_env else {}),
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": MAX_CONCURRENCY,
        "num_cpus": cpus,
        "get_if_exists": True,
    }


def names_of(namespace: str, prefixes: Sequence[str]) -> list[str]:
    """Names of the actors of a deployment that are there; a look at the whole cluster, not for hot paths."""
    everywhere = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in everywhere if actor["namespace"] == namespace]
    return sorted(name for name in names if name.startswith(tuple(prefixes)))


def restarts_of(namespace: str, names: Iterable[str]) -> dict[str, int]:
    """How often Ray has started each actor anew, by name; empty where Ray does not say (to a Ray client)."""
    try:
        table = ray_state.actors()
        ids = {name: ray.get_actor(name, namespace=namespace)._actor_id.hex() for name in names}
        return {name: int(table[each]["NumRestarts"]) for name, each in ids.items() if each in table}
    except Exception as error:  # it is for people; no status is lost for it
        logger.debug("Ray does not tell restarts: %s", error)
        return {}
