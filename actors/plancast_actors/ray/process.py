"""Process: the base class of all Ray actors."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import ray
import ray._private.state as ray_state
from ray.exceptions import RayError, RayTaskError

from plancast.app import App, load_app
from plancast.settings import Settings
from plancast.telemetry import trace_export
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_actors.liveness.watchdog import Watchdog, end_process
from plancast_actors.ray import connection, placement
from plancast_actors.ray.allocator import return_large_blocks
from plancast_actors.release import Release, plancast_version
from plancast_actors.scale import Scale
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry import logging as actor_logs
from plancast_actors.telemetry.collectors import Reading
from plancast_actors.telemetry.ray_sink import RaySink
from plancast_actors.telemetry.reporter import Reporter
from plancast_actors.telemetry.samples import Samples
from plancast_bus import outage_log
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.bus import Bus

logger = logging.getLogger(__name__)
MAX_CONCURRENCY = 10_000
RESTART_PAUSE = 0.2
"""Seconds between two attempts to reach an actor that Ray restarts."""
REPORT_LOOKS, REPORT_PAUSE = 50, 0.02
"""Looks of a starting process at whether Ray has reported it, and seconds between them."""
SPARE = "spare"
"""Stands for the number in the names of actors that do the work of one of their role while it is replaced."""
SPARE_CPUS = 0.01
"""Share of a core that a spare requests: it fits on nodes that its role has filled."""
GC_THRESHOLD = (50_000, 50, 100)
"""Python's default thresholds would scan all live plans many times a second."""


@dataclass(frozen=True)
class Blueprint:
    """Arguments of an actor, also used when Ray restarts it."""

    app_address: str
    settings: Settings
    """Read by the deploying process; the actor's environment is ignored."""
    import_paths: tuple[str, ...] = ()
    """Searched first for the user's app."""
    options: DispatcherOptions = field(default_factory=DispatcherOptions)
    shared_hosts: tuple[str, ...] = ()
    release: Release = field(default_factory=Release)
    runtime_env: dict[str, Any] | None = None
    """Ray's, with the user's code; None if every node has the code."""
    unscaled: Scale | None = None
    """The numbers of the settings that the deployment was made with; None if these are unchanged."""

    @property
    def configured(self) -> Scale:
        """The numbers of the settings that the deployment was made with."""
        if self.unscaled is not None:
            return self.unscaled
        reasoners = self.settings.reasoners
        return Scale(len(self.shared_hosts), self.options.count, (reasoners.min, reasoners.max))

    def scaled(self, scale: Scale) -> Blueprint:
        """The blueprint with other numbers of actors."""
        settings = scale.applied(self.settings)
        count = scale.hosts if scale.hosts is not None else len(self.shared_hosts)
        return dataclasses.replace(
            self,
            settings=settings,
            options=dataclasses.replace(self.options, count=settings.dispatchers.count),
            shared_hosts=host_names(count),
            unscaled=self.configured,
        )

    def load_app(self) -> App:
        return load_app(self.app_address, self.import_paths)


def host_names(count: int) -> tuple[str, ...]:
    """Names of the shared hosts."""
    return tuple(f"host-{index}" for index in range(count))


async def open_bus(settings: Settings) -> Bus:
    """Connect to NATS, waiting as long as necessary. The process ends when the connection is closed for good."""
    from plancast_bus.jetstream import connect

    while True:
        try:
            bus = await connect(settings.nats, settings.bus)
            bus.on_lost(end_process)
            return bus
        except BusUnavailable as error:
            outage_log.warn(logger, "waiting for NATS: %s", error)
            await asyncio.sleep(0.5)


class Process(abc.ABC):
    """An actor's process: starts in the background, reports metrics, writes heartbeats, and is watched."""

    role: ClassVar[str]
    """The actor's role in metrics."""
    is_registered: ClassVar[bool] = True
    """It registers in NATS with its heartbeats. False for processes of which there are many, which a pool watches."""

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
        return_large_blocks()
        if self.is_registered:
            await self._until_reported()
        await self._start()
        self._report()
        # What is loaded now stays, and a turn leaves almost nothing to the garbage collector.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        if self._stall_seconds:
            Watchdog(self.name, self._stall_seconds).start()
        bus = self.bus if self.is_registered else None
        self._node = connection.own_node() if connection.is_connected() else ""
        namespace, code = self.blueprint.settings.ray.namespace, self.blueprint.release.code
        self.heartbeat = Heartbeat(namespace, self.name, bus, code, self._details(), self._beat)

    async def _until_reported(self) -> None:
        """Let Ray report that the process runs, before an import that hangs can block the event loop."""
        namespace = self.blueprint.settings.ray.namespace
        for _ in range(REPORT_LOOKS if ray.is_initialized() else 0):
            if await asyncio.to_thread(is_created, self.name, namespace):
                return
            await asyncio.sleep(REPORT_PAUSE)

    def _report(self) -> None:
        settings = self.blueprint.settings
        if self.samples is not None:
            common = {"deployment": settings.ray.namespace, "role": self.role, "actor": self._label}
            interval = settings.telemetry.metrics_interval
            self._reporter = Reporter(self._readings, self.samples, RaySink(common), interval)
            self._reporter.start()

    @property
    def _label(self) -> str:
        return self.name

    async def _readings(self) -> AsyncIterator[Reading]:
        for reading in chain(collectors.of_process(), self._own_readings()):
            yield reading

    def _details(self) -> dict[str, Any] | None:
        """Return the fields that the process registers once, beside its heartbeats; None: no fields."""
        return None

    def _beat(self) -> dict[str, Any]:
        """Return the fields of each heartbeat that are particular to an actor."""
        return {"node": self._node, **self._load()}

    def _load(self) -> dict[str, Any]:
        """Return further fields of each heartbeat."""
        return {}

    def _own_readings(self) -> Iterable[Reading]:
        """Readings of what this kind of process does."""
        return ()

    async def _report_now(self) -> None:
        """Report metrics and spans before the process ends."""
        await asyncio.to_thread(trace_export.flush)
        if self._reporter is not None:
            await self._reporter.report()

    @property
    def _stall_seconds(self) -> float:
        """Seconds without progress after which the process ends itself."""
        return self.blueprint.settings.hosts.stall_seconds

    @abc.abstractmethod
    async def _start(self) -> None:
        """Start; :meth:`ready` raises what this raises."""

    async def ready(self) -> str:
        """Wait until the actor has started; returns its name. Raises the error of a failed start."""
        await asyncio.shield(self._ready)
        return self.name

    async def pid(self) -> int:
        """The process id on the actor's node."""
        return os.getpid()

    async def made_from(self) -> Blueprint:
        """The blueprint, to start another actor of this kind."""
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


def actor_options(
    name: str, namespace: str, cpus: float = 0.0, runtime_env: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Ray's options of every actor: detached, restarted, with a name, and apart from others of its role. Blocks."""
    return {
        **({"runtime_env": runtime_env} if runtime_env else {}),
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": MAX_CONCURRENCY,
        **placement.spread(namespace, name, cpus),
        "get_if_exists": True,
    }


def starter(
    process: type[Process], share: Callable[[Any], float], **options: Any
) -> Callable[[Blueprint, str, str], Any]:
    """Return a function that starts an actor of this class by blueprint, name and namespace, or finds it.

    ``share``: CPUs of the actor, by the blueprint.
    """
    remote = ray.remote(process)

    def start(blueprint: Blueprint, name: str, namespace: str) -> Any:
        cpus = min(share(blueprint), SPARE_CPUS) if is_spare(name) else share(blueprint)
        common = actor_options(name, namespace, cpus, blueprint.runtime_env)
        return remote.options(**{**common, **options}).remote(blueprint, name)

    return start


async def start_ready(start: Callable[..., Any], *arguments: Any) -> Any:
    """Start an actor, or find it, and wait until it is ready, also while Ray restarts it on another node.

    Raises:
        RayTaskError: its own start has failed.
    """
    while True:
        try:
            actor = await asyncio.to_thread(start, *arguments)
            await actor.ready.remote()
            return actor
        except RayTaskError:
            raise
        except RayError:
            await asyncio.sleep(RESTART_PAUSE)


def is_spare(name: str) -> bool:
    """True if this is the name of a spare."""
    return name.endswith(f"-{SPARE}")


def spare_of(role: str) -> str:
    """The name of the spare of a role, by the name of its only actor or the prefix of their names."""
    return f"{role.rstrip('-0123456789')}-{SPARE}"


def is_created(name: str, namespace: str) -> bool:
    """True if an actor's process runs, with its code set up; False also if Ray does not tell (to a Ray client)."""
    return incarnation_of(name, namespace) is not None


class Incarnation(NamedTuple):
    """One of the processes that an actor has in turn."""

    restarts: int
    """Ray's restarts of the actor until then."""
    node: str
    """Id of its node."""


def incarnation_of(name: str, namespace: str) -> Incarnation | None:
    """The process of an actor that runs, with its code set up; None as :func:`is_created`."""
    try:
        actor = ray.get_actor(name, namespace=namespace)
        found = ray_state.actors(actor._actor_id.hex())
        return Incarnation(int(found["NumRestarts"]), found["Address"]["NodeID"]) if found["State"] == "ALIVE" else None
    except Exception as error:  # then only the longer timeout holds
        logger.debug("the state of %s cannot be read from Ray: %s", name, error)
        return None


def is_restarting(name: str, namespace: str) -> bool:
    """True if Ray says that an actor's process has ended, and the next one does not run yet. Blocks."""
    try:
        actor = ray.get_actor(name, namespace=namespace)
        return bool(ray_state.actors(actor._actor_id.hex())["State"] == "RESTARTING")
    except Exception as error:  # then a call to it tells
        logger.debug("the state of %s cannot be read from Ray: %s", name, error)
        return False


def names_of(namespace: str, prefixes: Sequence[str]) -> list[str]:
    """Names of a deployment's actors. Lists all actors of the cluster, so not for hot paths."""
    everywhere = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in everywhere if actor["namespace"] == namespace]
    return sorted(name for name in names if name.startswith(tuple(prefixes)))


class NumberedActors:
    """The Ray actors of a role: a prefix and a number are their names; those of a spare pool end like its own."""

    def __init__(self, prefix: str, blueprint: Blueprint, *, spare: bool = False) -> None:
        self._prefix = prefix
        self._ending = f"-{SPARE}" if spare else ""
        self._blueprint = blueprint
        self._namespace = blueprint.settings.ray.namespace

    async def found(self) -> list[int]:
        """Numbers of the running actors."""
        names = await asyncio.to_thread(names_of, self._namespace, [self._prefix])
        numbers = [name.removeprefix(self._prefix).removesuffix(self._ending) for name in names]
        return sorted(int(each) for each in numbers if each.isdigit() and self.name_of(int(each)) in names)

    def name_of(self, number: int) -> str:
        """The name of an actor."""
        return f"{self._prefix}{number}{self._ending}"

    async def stop(self, number: int) -> None:
        """End an actor for good."""
        with contextlib.suppress(RayError, ValueError):
            actor = await asyncio.to_thread(ray.get_actor, self.name_of(number), self._namespace)
            await asyncio.to_thread(ray.kill, actor, no_restart=True)
        await asyncio.to_thread(placement.release, self._namespace, [f"{self._prefix}{number}"])


def restarts_of(namespace: str, names: Iterable[str]) -> dict[str, int]:
    """Ray's restarts of each actor, by name; empty if Ray does not tell (to a Ray client)."""
    try:
        table = ray_state.actors()
        ids = {name: ray.get_actor(name, namespace=namespace)._actor_id.hex() for name in names}
        return {name: int(table[each]["NumRestarts"]) for name, each in ids.items() if each in table}
    except Exception as error:  # only displayed; not worth failing for
        logger.debug("restarts cannot be read from Ray: %s", error)
        return {}
