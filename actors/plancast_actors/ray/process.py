"""The Ray actors. Plain classes, each around a part that knows nothing of Ray; wrapped in one place."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal
from weakref import WeakSet

import ray
import ray._private.state as ray_state
from ray.exceptions import RayError

from plancast.app import App, load_app
from plancast.settings import Settings
from plancast.telemetry import trace_export
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.dispatch.remote_host import RayHost, listen_where_ray_does
from plancast_actors.hosting.connection import Lines
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.hosting.protocol import HostPort, Inbound
from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_actors.liveness.watchdog import Watchdog, end_process
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.reasoning.client import RayReasoner, wants_reasoners
from plancast_actors.release import Abilities, Release, plancast_version
from plancast_actors.rpc.client import LineOffer
from plancast_actors.rpc.framing import pack, unpack
from plancast_actors.rpc.server import LineServer
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry import logging as actor_logs
from plancast_actors.telemetry.collectors import Reading
from plancast_actors.telemetry.ray_sink import RaySink
from plancast_actors.telemetry.reporter import Reporter
from plancast_actors.telemetry.samples import Samples
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.errors import BusUnavailable
from plancast_bus.ports.bus import Bus
from plancast_bus.subjects import encode_token

logger = logging.getLogger(__name__)
MAX_CONCURRENCY = 10_000
DEDICATED_PREFIX = "plan-"
"""Names of hosts of one plan's own begin so."""
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


class HostProcess(Process):
    """A plan host in a Ray actor."""

    role = "host"
    host: PlanHost
    lines: LineServer

    def __init__(self, blueprint: Blueprint, name: str, dedicated_to: str | None = None) -> None:
        self.dedicated_to = dedicated_to
        self._offer: LineOffer | None = None
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
        self.host.start()
        await self._open_lines(settings)
        if self.dedicated_to is not None:
            self._leaver = asyncio.ensure_future(self._leave_when_idle(settings.hosts.dedicated_idle_seconds))

    @property
    def _label(self) -> str:
        return self.name if self.dedicated_to is None else "dedicated"

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_host(self.host):
            yield reading

    async def exchange(self, dispatcher: str, packed: bytes, wait: bool) -> bytes:
        """Implement :class:`~plancast_actors.hosting.protocol.HostPort` on bytes: pickling tuples costs more."""
        if not self._ready.done():
            await asyncio.shield(self._ready)
        batch = [Inbound(*each) for each in unpack(packed)]
        return pack(await self.host.exchange(dispatcher, batch, wait))

    async def _open_lines(self, settings: Settings) -> None:
        """Listen for dispatchers."""
        self.lines = LineServer(self.host.exchange, await self.host.incarnation())
        self._offer = await listen_where_ray_does(self.lines, settings, self.name, "events")

    async def abilities(self) -> Abilities:
        """What plans the host can go on with."""
        await self.ready()
        return Abilities.of(self.host.app)

    async def line(self) -> LineOffer | None:
        """Where, and with which secret, dispatchers connect; None when they are to call through Ray."""
        await self.ready()
        return self._offer

    async def incarnation(self) -> str:
        """See :class:`plancast_actors.hosting.protocol.HostPort`."""
        await self.ready()
        return await self.host.incarnation()

    async def status(self) -> dict[str, Any]:
        """What the host does."""
        await self.ready()
        return {**self._about(), **await self.host.status()}

    async def drain(self, timeout: float) -> bool:
        """Wait until no event is in hand; then there is no further use of lines."""
        await self.ready()
        drained = await self.host.drain(timeout)
        await self._report_now()
        if drained:
            self._close_lines()
        return drained

    def _close_lines(self) -> None:
        self._offer = None
        self.lines.close()

    async def _leave_when_idle(self, idle_seconds: float) -> None:
        """A host of one plan ends itself when the plan has been silent; the next event brings it back."""
        turns, since = -1, time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, idle_seconds / 4))
            if self.host.turns != turns or not await self.host.drain(0):
                turns, since = self.host.turns, time.monotonic()
            elif time.monotonic() - since > idle_seconds:
                self._close_lines()
                await self.host.stop()
                await self._report_now()
                if self.bus is not None:
                    await self.bus.close()
                with contextlib.suppress(RayError):
                    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
                return


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
        self.stalls: Counter[str] = Counter()
        self.sweeper = Sweeper(self.bus, settings.plans, note=self._note_stall)
        if self.blueprint.options.index == 0:
            self.sweeper.start()

    def _note_stall(self, kind: str) -> None:
        self.stalls[kind] += 1

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_dispatcher(self.dispatcher):
            yield reading
        if self.blueprint.options.index == 0 and self.bus is not None:  # one is enough for what all share
            for reading in collectors.of_sweeper(self.sweeper, self.stalls):
                yield reading
            for reading in collectors.of_streams((await self.bus.health())["streams"]):
                yield reading

    async def status(self) -> dict[str, Any]:
        """What the dispatcher does."""
        await self.ready()
        line = {"line": self.directory.line}
        return {**self._about(), **await self.dispatcher.status(), **self.sweeper.status(), **line}

    async def layout(self) -> tuple[DispatcherOptions, tuple[str, ...]]:
        """How it was set up, and the names of its hosts."""
        return self.blueprint.options, self.blueprint.shared_hosts

    async def drain(self, timeout: float) -> bool:
        """Stop reading, and wait until nothing is outstanding."""
        await self.ready()
        await self.sweeper.stop()
        drained = await self.dispatcher.drain(timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


class WorkerProcess(Process):
    """The app's workers in a Ray actor."""

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
        await self.runner.start()

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_runner(self.runner):
            yield reading

    async def status(self) -> dict[str, Any]:
        """What the workers do."""
        await self.ready()
        return {
            **self._about(),
            "tasks": sorted(task for worker in self.runner.workers for task in worker.tasks),
        }

    async def drain(self, timeout: float) -> bool:
        """Stop taking tasks, and wait for those that run."""
        await self.ready()
        drained = await self.runner.stop(drain_seconds=timeout)
        await self.heartbeat.leave()
        await self._report_now()
        return drained


# Found again by name, in the namespace of the deployment.


class RayDirectory:
    """Finds plan hosts by name; see :class:`plancast_actors.dispatch.dispatcher.HostDirectory`."""

    def __init__(self, blueprint: Blueprint, settings: Settings) -> None:
        self._blueprint = blueprint
        self._namespace = settings.ray.namespace
        self._lines = Lines() if settings.hosts.direct_lines else None
        self._made: WeakSet[RayHost] = WeakSet()

    @property
    def shared(self) -> list[HostPort]:
        """The shared hosts."""
        names = self._blueprint.shared_hosts
        return [self._host(name, partial(ray.get_actor, name, namespace=self._namespace)) for name in names]

    def dedicated(self, plan: str) -> HostPort:
        """The host of one plan's own; it is started at the first event."""
        name = dedicated_name(plan)
        return self._host(name, partial(start_host, self._blueprint, name, self._namespace, plan))

    @property
    def line(self) -> Literal["direct", "ray"]:
        """How events get to hosts: ``ray`` when it is so for any of them."""
        return "ray" if self._lines is None or any(host.by_ray for host in self._made) else "direct"

    def _host(self, name: str, find: Callable[[], Any]) -> HostPort:
        host = RayHost(name, find, self._lines)
        self._made.add(host)
        return host


def dedicated_name(plan: str) -> str:
    """The name of the Ray actor of one plan's own."""
    return f"{DEDICATED_PREFIX}{encode_token(plan)}"


_Host = ray.remote(HostProcess)
_Dispatcher = ray.remote(DispatcherProcess)
_Worker = ray.remote(WorkerProcess)


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


def start_host(blueprint: Blueprint, name: str, namespace: str, dedicated_to: str | None = None) -> Any:
    """Start a plan host, or find the one of this name."""
    cpus = 0.0 if dedicated_to is not None else blueprint.settings.hosts.cpus
    options = actor_options(name, namespace, cpus, blueprint.runtime_env)
    return _Host.options(**options).remote(blueprint, name, dedicated_to)


def start_dispatcher(blueprint: Blueprint, name: str, namespace: str) -> Any:
    """Start a dispatcher, or find it."""
    options = actor_options(name, namespace, runtime_env=blueprint.runtime_env)
    return _Dispatcher.options(**options).remote(blueprint, name)


def start_worker(blueprint: Blueprint, name: str, namespace: str) -> Any:
    """Start the app's workers, or find them."""
    options = actor_options(name, namespace, runtime_env=blueprint.runtime_env)
    return _Worker.options(**options).remote(blueprint, name)


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
