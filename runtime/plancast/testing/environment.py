"""PlancastTest: an app deployed in memory, with the same plan hosts, dispatcher and workers as on Ray."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from plancast.app import App
from plancast.client import Client
from plancast.handle import PlanHandle
from plancast.registry import TTL_SECONDS
from plancast.settings import Settings
from plancast_actors.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.inbound import HostLost, HostPort, Inbound, Outcome
from plancast_actors.plan_host import PlanHost
from plancast_actors.presence import register_app
from plancast_actors.task_runner import TaskRunner
from plancast_bus.clock import Clock, ManualClock, SystemClock
from plancast_bus.memory import MemoryBus, MemoryWorld


class LocalHost:
    """A plan host in this process, which can be crashed and comes back empty."""

    def __init__(self, environment: PlancastTest, name: str) -> None:
        self._environment = environment
        self._name = name
        self.host: PlanHost | None = None

    def start(self) -> PlanHost:
        """Come to life, unless it lives."""
        if self.host is None:
            self.host = self._environment.new_host(self._name)
            self.host.start()
        return self.host

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """See :class:`plancast_actors.inbound.HostPort`."""
        host = self.start()
        outcomes = await host.exchange(dispatcher, batch, wait)
        if host is not self.host:
            raise HostLost(self._name)
        return outcomes

    async def crash(self) -> None:
        """End as a killed process does: everything in memory is gone, nothing is said to anyone."""
        host, self.host = self.host, None
        if host is not None:
            await host.stop()


class PlancastTest:
    """``async with PlancastTest(app) as env``: submit goals to ``env.client``, move ``env.clock``.

    Args:
        app: What is deployed.
        settings: As in a deployment; ``bus.ack_wait`` and the like count by ``clock``.
        clock: The machine's, unless a :class:`~plancast_bus.clock.ManualClock` is given.
        hosts: Number of shared plan hosts.
        workers: Whether the app's workers run.
        world: Where events and checkpoints are; several environments may share one, or follow each other on it.
    """

    def __init__(
        self,
        app: App,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        hosts: int = 1,
        workers: bool = True,
        world: MemoryWorld | None = None,
    ) -> None:
        app.validate()
        self.app = app
        self.settings = settings or app.settings or Settings()
        self.world = world or MemoryWorld(self.settings.bus, clock=clock or SystemClock())
        self.clock: Clock = self.world.clock
        self.hosts = [LocalHost(self, f"host-{index}") for index in range(hosts)]
        self.bus = MemoryBus(self.world)
        self.client: Client
        self._dedicated: dict[str, LocalHost] = {}
        self._workers = workers
        self._runner: TaskRunner | None = None
        self._dispatcher: Dispatcher | None = None

    async def __aenter__(self) -> Self:
        await self.bus.ensure_streams()
        await register_app(self.bus.registry, self.app, TTL_SECONDS)
        for host in self.hosts:
            host.start()
        self.client = Client(self.bus)
        if self._workers and self.app.workers:
            self._runner = TaskRunner(
                self.app,
                MemoryBus(self.world),
                self.settings.workers,
                max_event_bytes=self.settings.bus.max_event_bytes,
                clock=self.clock,
            )
            await self._runner.start()
        await self.start_dispatcher()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_dispatcher()
        if self._runner is not None:
            await self._runner.stop(drain_seconds=0)
        for host in [*self.hosts, *self._dedicated.values()]:
            await host.crash()
        await self.client.close()

    async def submit(self, event_type: str, data: dict[str, Any] | None = None, **options: Any) -> PlanHandle:
        """Submit a goal; see :meth:`plancast.Client.submit`."""
        return await self.client.submit(event_type, data or {}, **options)

    async def advance(self, seconds: float) -> None:
        """Move the clock on.

        Raises:
            TypeError: the environment has a clock that moves by itself.
        """
        if not isinstance(self.clock, ManualClock):
            raise TypeError("give PlancastTest a ManualClock to move it")
        await self.clock.advance(seconds)

    # Faults.

    async def crash_host(self, index: int = 0) -> None:
        """Have a plan host lose everything that it has in memory, at once."""
        await self.hosts[index].crash()

    async def start_dispatcher(self) -> None:
        """Start a dispatcher, as after a crash."""
        default = self.settings.hosts.placement
        goals = self.app.goals
        options = DispatcherOptions(
            shards=self.settings.bus.shards,
            ack_wait=self.settings.dispatchers.ack_wait,
            max_outstanding=self.settings.dispatchers.max_outstanding,
            max_batch=self.settings.dispatchers.max_batch,
            goals=tuple(sorted(goals)),
            dedicated_goals=frozenset(
                goal for goal, planner in goals.items() if (planner.config.placement or default) == "dedicated"
            ),
        )
        self._dispatcher = Dispatcher(MemoryBus(self.world), self, options)
        await self._dispatcher.start()

    async def stop_dispatcher(self) -> None:
        """Stop the dispatcher at once; what it had in hand is delivered again after its ``ack_wait``."""
        if self._dispatcher is not None:
            await self._dispatcher.stop()
            self._dispatcher = None

    # What the dispatcher finds its hosts by.

    @property
    def shared(self) -> list[HostPort]:
        """The shared hosts."""
        return list(self.hosts)

    def dedicated(self, plan: str) -> HostPort:
        """The host of one plan's own."""
        return self._dedicated.setdefault(plan, LocalHost(self, f"plan-{plan}"))

    def new_host(self, name: str) -> PlanHost:
        """A plan host with a connection of its own, empty as after a restart."""
        return PlanHost(self.app, MemoryBus(self.world), self.settings, name=name, clock=self.clock)
