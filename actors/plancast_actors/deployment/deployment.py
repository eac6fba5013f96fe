"""Deployment: starts, watches, drains and stops the actors of an app."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from plancast.agents.registry import TTL_SECONDS
from plancast.app import App, load_app
from plancast.errors import InvalidApp
from plancast.settings import Settings
from plancast_actors.deployment.actor_start import START_SECONDS, start_actors
from plancast_actors.dispatch.actor import start_dispatcher
from plancast_actors.dispatch.standby_host import start_host
from plancast_actors.dispatcher_options import DispatcherOptions, delete_other_consumers
from plancast_actors.hosting.plan_pool import DEDICATED_PREFIX
from plancast_actors.hosting.pool_actor import POOL as PLAN_POOL
from plancast_actors.hosting.pool_actor import find_plan_host, start_plan_pool
from plancast_actors.liveness.registration import deregister_app, register_app
from plancast_actors.ray import placement
from plancast_actors.ray.pool import members_of, outdated
from plancast_actors.ray.process import (
    Blueprint,
    host_names,
    names_of,
    restarts_of,
    spare_of,
    start_ready,
)
from plancast_actors.reasoning import actors
from plancast_actors.reasoning.client import POOL, wants_reasoners
from plancast_actors.release import RECORD, Release
from plancast_actors.scale import CONFIGURED, Scale, read_record
from plancast_actors.workers.actor import start_worker
from plancast_actors.workers.runner import task_consumers
from plancast_bus.errors import BusError
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus
from plancast_bus.subjects import Subjects

KINDS = {
    "dispatchers": "dispatcher-",
    "hosts": "host-",
    "pools": "dedicated-",
    "dedicated": "plan-",
    "workers": "worker-",
    "reasoners": "reasoner",
}
MEMBERS = {POOL: actors.REASONER_PREFIX, PLAN_POOL: DEDICATED_PREFIX}
"""Prefixes of the names of a pool's members, by the name of the pool."""
_POOLS = frozenset(name for pool in MEMBERS for name in (pool, spare_of(pool)))
START_POOL = {POOL: actors.start_pool, PLAN_POOL: start_plan_pool}
READY_SECONDS = 20.0
"""Timeout for an actor to import the app and start, from when its process runs with the code that it needs."""
CALL_SECONDS = 5.0
RETIRE_SECONDS = 10.0
UNREACHABLE = (RayError, ValueError, TimeoutError)
"""Errors of calls to an actor that is gone, unknown or too slow."""


class Deployment:
    """The actors of one app in one Ray namespace. The process must be connected to Ray."""

    def __init__(self, app_name: str, settings: Settings) -> None:
        self.app_name = app_name
        self.settings = settings
        self.namespace = settings.ray.namespace

    @classmethod
    async def up(
        cls,
        app_address: str,
        settings: Settings,
        *,
        workers: bool = True,
        import_paths: Sequence[str] = (),
        release: Release | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> Deployment:
        """Deploy an app: streams, hosts, dispatchers, workers. Existing ones are kept.

        Running hosts and workers keep their code; :class:`~plancast_actors.deployment.upgrade.Upgrade` replaces it.

        Args:
            app_address: ``module:attribute``, importable on every node.
            settings: Passed to every actor.
            workers: Whether to run the app's workers in the cluster.
            import_paths: Folders with the app's modules.
            release: The code's version, for status.
            runtime_env: Ray's, with the shipped code.

        Raises:
            InvalidApp: the app is invalid; names every fault.
            BusUnavailable: NATS does not answer, or Ray lacks resources for an actor; names the actors.
        """
        app = load_app(app_address, import_paths)
        app.validate()
        deployment = cls(app.name, settings)
        blueprint = dataclasses.replace(
            blueprint_of(app, app_address, settings, import_paths),
            release=release or Release(deployed_at=time.time()),
            runtime_env=runtime_env,
        )
        bus = await connect(settings.nats, settings.bus)
        try:
            await bus.ensure_streams()
            blueprint = blueprint.scaled(Scale.wanted(await read_record(bus, deployment.namespace)))
            await deployment.converge(bus, app, blueprint, workers=workers)
        finally:
            await bus.close()
        return deployment

    @classmethod
    async def find(cls, settings: Settings) -> Deployment | None:
        """The deployment in the settings' namespace, or None."""
        deployment = cls("", settings)
        return deployment if await deployment.names() else None

    async def converge(
        self, bus: Bus, app: App, blueprint: Blueprint, *, workers: bool, ready_seconds: float = 0
    ) -> None:
        """Start, replace and stop actors to match a blueprint, and register its release. Raises what `start` raises."""
        settings = blueprint.settings
        await bus.ensure_streams()
        for consumer in task_consumers(app, settings.workers, bus.subjects):
            await bus.ensure_consumer(consumer)
        pooled, dedicated = wants_reasoners(app, settings), bool(blueprint.options.dedicated_goals)
        pools: dict[str, Any] = {
            POOL: settings.reasoners if pooled else None,
            PLAN_POOL: settings.hosts if dedicated else None,
        }
        for pool, layout in pools.items():
            await self.retire(await outdated(self.namespace, pool, MEMBERS[pool], layout))
            if layout is not None:  # it starts its members itself
                await self.start([(START_POOL[pool], blueprint, pool)], ready_seconds=ready_seconds)
                await self._end_spares(pool)
        processes = settings.workers.processes if workers and app.workers else 0
        await self.converge_numbers(bus, blueprint, processes, ready_seconds=ready_seconds)
        await register_app(bus.registry, app, TTL_SECONDS)  # its hosts renew it
        record = blueprint.release.to_record(app.name, blueprint.app_address)
        record |= {CONFIGURED: blueprint.configured.to_record(), "workers": processes, "pools": int(dedicated)}
        await self.record(bus, blueprint, **record)

    async def _end_spares(self, pool: str) -> None:
        """End the spare of a pool, and its members, which a killed upgrade has left."""
        spare, names = spare_of(pool), await self.names()
        left = [name for name in (spare, *members_of(spare, MEMBERS[pool], names)) if name in names]
        if left:
            await self.told(pool, "take_over", [])
            await self.retire(left)

    async def converge_numbers(
        self,
        bus: Bus,
        blueprint: Blueprint,
        workers: int,
        *,
        ready_seconds: float = 0,
        drain_seconds: float = RETIRE_SECONDS,
    ) -> bool:
        """Start missing actors, replace dispatchers with other settings, and stop surplus ones.

        New actors are ready before they get events. Hosts that are stopped get no more plans, and may finish their
        events for ``drain_seconds``; returns False if some were not drained. Raises what `start` raises.
        """
        dispatchers = [
            dataclasses.replace(blueprint, options=dataclasses.replace(blueprint.options, index=index))
            for index in range(blueprint.options.count)
        ]
        names = [each.options.name for each in dispatchers]
        worker_names = [f"worker-{index}" for index in range(workers)]
        await self.start(
            [(start_host, blueprint, name) for name in blueprint.shared_hosts]
            + [(start_worker, blueprint, name) for name in worker_names],
            ready_seconds=ready_seconds,
        )
        await self.retire(await self._outdated(dispatchers))
        if not await self.names("dispatchers"):
            await delete_stale_consumers(bus, dispatchers)
            if await bus.registry.get(RECORD, self.namespace) is not None:  # else they have it from the blueprint
                await self.record(bus, blueprint)
        wanted = [(start_dispatcher, each, each.options.name) for each in dispatchers]
        await self.start(wanted, ready_seconds=ready_seconds)
        moved = await self._divide(bus, dispatchers, drain_seconds)
        drained = [
            await self._retire_surplus("dispatchers", names),
            await self._retire_surplus("hosts", blueprint.shared_hosts),
            await self._retire_surplus("workers", worker_names, drain_seconds),
        ]
        return moved and all(drained)

    async def _divide(self, bus: Bus, dispatchers: Sequence[Blueprint], seconds: float) -> bool:
        """Divide shards among dispatchers, and plans among hosts; False if events were left at surplus hosts."""
        running = await self.names("dispatchers")
        found = await asyncio.gather(*(self.made_from(name) for name in running))
        await self.record(bus, dispatchers[0])
        hosts = [name for name in await self.names("hosts") if name in dispatchers[0].shared_hosts]
        if any(each is not None and each.options.count != dispatchers[0].options.count for each in found):
            # Consumers of a work queue may not overlap: all stop reading before any begins with other shards.
            await asyncio.gather(*(self.told(name, "pause") for name in running))
            await delete_stale_consumers(bus, dispatchers)
        moved = await asyncio.gather(*(self.told(name, "follow", seconds, wait=seconds) for name in running))
        if any(each is not None and each.shared_hosts != dispatchers[0].shared_hosts for each in found):
            await asyncio.gather(*(self.told(name, "passivate") for name in hosts))  # plans have moved
        return all(moved)

    async def told(self, name: str, method: str, *arguments: Any, wait: float = 0.0) -> bool:
        """Call a dispatcher or host; one that is unreachable does the same by itself when it is back."""
        try:
            return await self.call(name, method, *arguments, seconds=wait + READY_SECONDS) is not False
        except UNREACHABLE:
            return False

    async def record(self, bus: Bus, blueprint: Blueprint, **fields: Any) -> None:
        """Change fields of the deployment's record: those given, and the numbers of hosts and dispatchers."""
        record = await bus.registry.get(RECORD, self.namespace) or {}
        numbers = {"dispatchers": blueprint.options.count, "hosts": len(blueprint.shared_hosts)}
        await bus.registry.put(RECORD, self.namespace, {**record, **fields, **numbers})

    async def start(self, wanted: list[tuple[Callable[..., Any], Blueprint, str]], *, ready_seconds: float = 0) -> None:
        """Start actors, or find them, and wait until they are ready; not longer than ``ready_seconds``, unless 0.

        Raises:
            StartHangs: an actor whose process runs is not ready in that time.
            StartLost: the same, since that process has ended, or a second node was lost.
            BusUnavailable: Ray lacks resources for an actor; names the actors.
        """
        await start_actors(wanted, self.settings, ready_seconds)

    async def free_cpus(self) -> float:
        """CPUs of the cluster that no actor has requested."""
        resources: Any = ray
        return float((await asyncio.to_thread(resources.available_resources)).get("CPU", 0.0))

    async def _outdated(self, wanted: Sequence[Blueprint]) -> list[str]:
        """Names of the dispatchers that differ in more than what they take from the deployment's record."""
        names = await self.names("dispatchers")
        found = await asyncio.gather(*(self.made_from(name) for name in names))
        same = _layout(wanted[0])
        return [name for name, each in zip(names, found, strict=True) if each is None or _layout(each) != same]

    async def made_from(self, name: str) -> Blueprint | None:
        """The blueprint of an actor; None if it is unreachable."""
        try:
            found: Blueprint = await self.call(name, "made_from", seconds=READY_SECONDS)
        except UNREACHABLE:
            return None
        return found

    async def _retire_surplus(self, kind: str, wanted: Sequence[str], drain_seconds: float = RETIRE_SECONDS) -> bool:
        names = [name for name in await self.names(kind) if name not in wanted]
        drained = await self.retire(names, drain_seconds)
        if names:
            await asyncio.to_thread(placement.release, self.namespace, names)
        return drained

    async def retire(self, names: Sequence[str], drain_seconds: float = RETIRE_SECONDS) -> bool:
        """Drain and stop actors; False when some were not drained. Their successors repeat the rest."""
        drained = await asyncio.gather(*(self._drain(name, drain_seconds) for name in names))
        await asyncio.to_thread(self.end, names)
        return all(drained)

    async def names(self, *kinds: str) -> list[str]:
        """Names of the running actors, of some kinds or of all."""
        return await asyncio.to_thread(names_of, self.namespace, [KINDS[kind] for kind in kinds or KINDS])

    async def call(self, name: str, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of an actor. Raises one of :data:`UNREACHABLE`."""
        async with asyncio.timeout(seconds):
            called = getattr(ray.get_actor(name, namespace=self.namespace), method)
            try:
                reply = called.remote(*arguments)
            except TypeError as error:  # Ray's stand-in for a class of another plancast, with methods without arguments
                raise ValueError(f"{name} of another release cannot be asked to {method} here: {error}") from error
            return await reply

    async def status(self) -> dict[str, Any]:
        """Return ``app``, ``namespace``, and by kind of actor the list of their status reports."""
        names = await self.names()
        reports = await asyncio.gather(*(self._ask(name) for name in names))
        restarts = await asyncio.to_thread(restarts_of, self.namespace, names)
        for report in reports:
            report["restarts"] = restarts.get(report["name"])
        found: dict[str, Any] = {"app": self.app_name, "namespace": self.namespace}
        for kind, prefix in KINDS.items():
            found[kind] = [report for report in reports if report["name"].startswith(prefix)]
        return found

    async def _ask(self, name: str) -> dict[str, Any]:
        try:
            return dict(await self.call(name, "status", seconds=CALL_SECONDS))
        except UNREACHABLE as error:
            return {"name": name, "alive": False, "error": type(error).__name__}

    async def plan_host(self, plan_id: str) -> Any:
        """The Ray actor that a dedicated plan has now, as ``ray.get_actor`` finds it; None if it has none."""
        return await asyncio.to_thread(find_plan_host, plan_id, self.namespace)

    async def quiesce(self, timeout: float) -> bool:
        """Drain and stop dispatchers and workers; False when some were not drained.

        Plans stay in NATS, hosts and reasoners running. A new deployment resumes.
        """
        drained = await self.retire(await self.names("dispatchers"), timeout)
        return await self.retire(await self.names("workers"), timeout) and drained

    async def drain(self, timeout: float = 10.0) -> bool:
        """Stop fetching events, and wait until those in flight are committed; False when that takes too long."""
        for kinds in (("dispatchers",), ("hosts", "dedicated"), ("pools", "workers", "reasoners")):
            names = await self.names(*kinds)
            await asyncio.gather(*(self._until_started(name, timeout) for name in names))
            done = await asyncio.gather(*(self._drain(name, timeout) for name in names))
            if not all(done):
                return False
        return True

    async def _until_started(self, name: str, timeout: float) -> None:
        """Wait for an actor that is being started, maybe again after a crash: its time to drain begins then."""
        with contextlib.suppress(TimeoutError, ValueError, RayTaskError):
            async with asyncio.timeout(max(timeout, READY_SECONDS)):
                await start_ready(ray.get_actor, name, self.namespace)

    async def _drain(self, name: str, timeout: float) -> bool:
        try:
            return bool(await self.call(name, "drain", timeout, seconds=timeout + CALL_SECONDS))
        except UNREACHABLE:
            return False

    async def down(self) -> None:
        """Stop all actors. Plans resume when the app is deployed again."""
        names = await self.names()
        app = self.app_name or await self._app_of(names)
        await asyncio.to_thread(self.end, names)
        await asyncio.to_thread(placement.release, self.namespace)
        if app and self.settings.nats.url:
            await self._deregister(app)

    async def _app_of(self, names: Sequence[str]) -> str:
        """The app's name as reported by a host; empty when none answers."""
        hosts = [name for name in names if name.startswith(KINDS["hosts"])]
        reports = await asyncio.gather(*(self._ask(name) for name in hosts))
        return next((report["app"] for report in reports if "app" in report), "")

    async def _deregister(self, app: str) -> None:
        """Delete the registrations, which would expire otherwise."""
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                bus = await connect(self.settings.nats, self.settings.bus)
                try:
                    await deregister_app(bus.registry, app)
                    await bus.registry.delete(RECORD, self.namespace)
                finally:
                    await bus.close()

    def end(self, names: Iterable[str]) -> None:
        """Kill actors without restart; blocks."""
        for name in sorted(names, key=lambda name: name not in _POOLS):  # they would replace their actors
            try:
                ray.kill(ray.get_actor(name, namespace=self.namespace), no_restart=True)
            except (RayError, ValueError):
                continue

    async def kill(self, name: str) -> int:
        """Kill an actor's process on this machine with SIGKILL and return its pid; Ray restarts it.

        Waits for an actor that is being restarted.
        """
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    pid = int(await ray.get_actor(name, namespace=self.namespace).pid.remote())
                    break
                except RayError:
                    await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        return pid

    async def kill_host(self, index: int) -> str:
        """Kill the process of a shared plan host; returns the actor's name."""
        name = f"host-{index}"
        await self.kill(name)
        return name


def _layout(blueprint: Blueprint) -> tuple[Any, ...]:
    """All of a dispatcher's blueprint that a running one does not change by itself."""
    release = blueprint.release
    return dataclasses.replace(blueprint.options, index=0, count=1), release.code, release.plancast


def host_count(settings: Settings) -> int:
    """Number of shared hosts: as configured, or one per core but one."""
    return settings.hosts.count or max(1, (os.cpu_count() or 1) - 1)


def blueprint_of(app: App, app_address: str, settings: Settings, import_paths: Sequence[str]) -> Blueprint:
    """Make the blueprint of an app's actors.

    Raises:
        InvalidApp: more dispatchers than shards.
    """
    if settings.dispatchers.count > settings.bus.shards:
        raise InvalidApp(
            f"{settings.dispatchers.count} dispatchers cannot share {settings.bus.shards} shards (PLANCAST_BUS__SHARDS)"
        )
    return Blueprint(
        app_address=app_address,
        settings=settings,
        import_paths=tuple(import_paths),
        options=dataclasses.replace(
            DispatcherOptions.of(app, settings),
            tasks=tuple(task_consumers(app, settings.workers, Subjects(settings.bus.prefix))),
        ),
        shared_hosts=host_names(host_count(settings)),
    )


async def delete_stale_consumers(bus: Bus, dispatchers: Sequence[Blueprint]) -> None:
    """Delete the consumers of other dispatchers than these, which are of one number."""
    for each in dispatchers[:1]:
        await delete_other_consumers(bus, each.options)
