"""The Ray actor of a dedicated host: it has one plan at a time, which the pool of dedicated hosts gives it."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

from plancast.app import App
from plancast.telemetry import trace_export
from plancast_actors.hosting.app_modules import AppModules
from plancast_actors.hosting.leased_host import LeasedHost
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import Inbound, Outcome
from plancast_actors.ray.process import Process, open_bus, starter
from plancast_actors.ray.remote_actor import CallableMethods
from plancast_actors.reasoning.client import RayReasoner, wants_reasoners
from plancast_actors.rpc.client import Endpoint
from plancast_actors.telemetry import collectors
from plancast_actors.telemetry.collectors import Reading

logger = logging.getLogger(__name__)
GC_PLANS = 20
"""Plans after which modules and objects of earlier plans are collected."""


class LeasedHostProcess(Process):
    """A dedicated host in a Ray actor."""

    role = "host"
    is_registered = False
    leased: LeasedHost
    methods: CallableMethods

    async def _start(self) -> None:
        blueprint, settings = self.blueprint, self.blueprint.settings
        self._modules = AppModules(blueprint.app_address, blueprint.import_paths)
        self._app: App = self._modules.load()
        self.bus = await open_bus(settings)
        namespace, patience = settings.ray.namespace, settings.reasoners.timeout
        self._reasoner = RayReasoner(namespace, patience=patience) if wants_reasoners(self._app, settings) else None
        self._tracing = trace_export.open_tracing(settings, self.name)
        self.leased = LeasedHost(self._make, settings.hosts.dedicated_idle_seconds, self._is_worn)
        methods = {name: getattr(self.leased, name) for name in ("adopt", "grant", "contend", "released")}
        self.methods = CallableMethods({**methods, "exchange": self._exchange})
        await self.methods.open(settings, self.name, "events")

    async def _begin(self) -> None:
        await super()._begin()
        self._modules.note_threads()

    def _make(self, before: PlanHost | None) -> PlanHost:
        """Make a plan host for the next plan."""
        assert self.bus is not None
        app = self._app if before is None else self._modules.load()
        host = PlanHost(
            app,
            self.bus,
            self.blueprint.settings,
            name=self.name,
            reasoner=self._reasoner,
            tracing=self._tracing,
            resident=False,
        )
        host.samples = self.samples
        if before is not None:
            host.continue_counts(before)
        return host

    def _is_worn(self) -> bool:
        settings = self.blueprint.settings.hosts
        if self.leased.plans >= settings.dedicated_plans or collectors.resident_bytes() > settings.dedicated_max_bytes:
            return True
        if (left := self._modules.left()) is not None:
            logger.warning("%s is replaced: a plan has left %s running", self.name, left)
            return True
        if self.leased.plans % GC_PLANS == 0:
            gc.collect()
        return False

    @property
    def _label(self) -> str:
        return "dedicated"

    async def _readings(self) -> AsyncIterator[Reading]:
        async for reading in super()._readings():
            yield reading
        for reading in collectors.of_host(self.leased.host):
            yield reading

    async def _exchange(
        self, lease: str, plan: str, dispatcher: str, batch: list[Any], wait: bool
    ) -> list[Outcome] | None:
        return await self.leased.exchange(lease, plan, dispatcher, [Inbound(*each) for each in batch], wait)

    async def invoke(self, method: str, packed: bytes) -> bytes:
        """Execute a call of the pool or of a dispatcher that comes through Ray."""
        await self.ready()
        return await self.methods.invoke(method, packed)

    async def endpoint(self) -> Endpoint | None:
        """Return where the pool and dispatchers connect; None when they are to call through Ray."""
        await self.ready()
        return self.methods.endpoint

    async def status(self) -> dict[str, Any]:
        """Report the state for ``plancast status``."""
        await self.ready()
        about = {"plan": self.leased.plan, "plans": self.leased.plans, "memory_mb": collectors.own_megabytes()}
        return {**self._about(), **await self.leased.host.status(), **about}

    async def retire(self) -> None:
        """Take no plan any more: another pool has hosts for them."""
        await self.ready()
        self.leased.retire()

    async def drain(self, timeout: float) -> bool:
        """Wait until no event is in flight."""
        await self.ready()
        drained = await self.leased.host.drain(timeout)
        await self._report_now()
        return drained


start_leased_host = starter(LeasedHostProcess, lambda of: of.settings.hosts.dedicated_cpus)
