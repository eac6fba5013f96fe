"""PlancastTest: deploys an app in memory, with the plan hosts, dispatcher and workers that also run on Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from plancast.agents.registry import TTL_SECONDS
from plancast.app import App
from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.settings import Settings
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_actors.maintenance.stalled_plans import Sweeper
from plancast_actors.plan_actors.protocol import HostLost, HostPort, Inbound, Outcome
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.clock import Clock, ManualClock, SystemClock
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.topics import Source

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing

QUEUES: tuple[Source, ...] = ("requests", "results")
SETTLE_ROUNDS = 500
"""Turns of the event loop for which :meth:`PlancastTest.advance` waits until the queues are empty."""


class LocalHost(HostPort):
    """A plan host in this process that can crash and restart empty."""

    def __init__(self, environment: PlancastTest, name: str) -> None:
        self._environment = environment
        self._name = name
        self.host: PlanHost | None = None
        self._calls: set[asyncio.Task[list[Outcome]]] = set()

    def start(self) -> PlanHost:
        """Start the host unless it is running."""
        if self.host is None:
            self.host = self._environment.new_host(self._name)
            self.host.start()
        return self.host

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        host = self.host
        if host is None:
            raise HostLost(self._name)
        call = asyncio.get_running_loop().create_task(host.exchange(dispatcher, batch, wait))
        self._calls.add(call)
        try:
            await asyncio.wait((call,))
        finally:
            self._calls.discard(call)
            call.cancel()
        if call.cancelled() or host is not self.host:
            raise HostLost(self._name)
        return call.result()

    async def incarnation(self) -> str:
        return await self.start().incarnation()

    async def recycle(self) -> None:
        await self.crash()

    async def crash(self) -> None:
        """Stop like a killed process: memory is lost and nothing is reported."""
        host = self.give_up()
        if host is not None:
            await host.stop()

    def give_up(self) -> PlanHost | None:
        """Appear dead, as after a broken connection; the host, which is returned, keeps running."""
        host, self.host = self.host, None
        for call in self._calls:
            call.cancel()
        return host


class PlancastTest:
    """``async with PlancastTest(app) as env``: submit goals to ``env.client``, advance ``env.clock``.

    Args:
        app: The app to deploy.
        settings: As in a deployment; timeouts such as ``bus.ack_wait`` use ``clock``.
        clock: The system clock, unless a :class:`~plancast_bus.clock.ManualClock` is given.
        hosts: Number of shared plan hosts.
        workers: Run the app's workers.
        tracing: Makes spans, of all that would be processes of their own too; None makes none, unless the settings say
            that traces are on.
        world: Where events and checkpoints are; several environments may share one, or follow each other on it.
        notify: Send the app's notifications; else nobody is notified.
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
        tracing: Tracing | None = None,
        notify: bool = False,
    ) -> None:
        app.validate()
        self.app = app
        self.settings: Settings = settings or app.settings or Settings()
        self.world: MemoryWorld = world or MemoryWorld(self.settings.bus, clock=clock or SystemClock())
        self.clock: Clock = self.world.clock
        self.hosts: list[LocalHost] = [LocalHost(self, f"host-{index}") for index in range(hosts)]
        self.bus: MemoryBus = MemoryBus(self.world)
        self.client: Client
        self.tracing = tracing
        if tracing is None and self.settings.telemetry.traces == "on":
            from plancast.telemetry.tracing import Tracing

            self.tracing = Tracing()
        self._dedicated: dict[str, LocalHost] = {}
        self._workers = workers
        self._notify = notify
        self._runner: TaskRunner | None = None
        self._dispatcher: Dispatcher | None = None
        self.sweeper: Sweeper
        """Finds stalled plans; runs beside the dispatcher."""
        self.scheduler: Scheduler
        """Makes the firings of schedules; runs beside the dispatcher."""

    async def __aenter__(self) -> Self:
        await self.bus.ensure_streams()
        await register_app(self.bus.registry, self.app, TTL_SECONDS)
        if self._workers and self.app.workers:
            await self._start_worker()
        for host in self.hosts:
            host.start()
        self.client = Client(self.bus, clock=self.clock)
        self.client.tracing = self.tracing
        await self.start_dispatcher()
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """Advance the clock, with a stop at each firing of a schedule until its plan waits or ends.

        Raises:
            TypeError: the environment uses the system clock.
        """
        if not isinstance(self.clock, ManualClock):
            raise TypeError("PlancastTest needs a ManualClock to advance it")
        target = self.clock.time() + seconds
        reached = None
        while self._dispatcher is not None and (due := self.scheduler.next_due) is not None and due <= target:
            if due == reached and not self.scheduler.is_busy:
                break  # it waits for something else than the time
            reached = due
            await self.clock.advance(max(0.0, due - self.clock.time()))
            await self._settle()
        await self.clock.advance(target - self.clock.time())

    async def _settle(self) -> None:
        """Let plans and workers do what they have, a little while at most: some wait for the clock."""
        for _ in range(SETTLE_ROUNDS):
            if not any(self.world.streams[queue].messages for queue in QUEUES):
                return
            await asyncio.sleep(0)

    async def crash_host(self, index: int = 0) -> None:
        """Crash a plan host; everything in its memory is lost."""
        await self.hosts[index].crash()

    async def crash_worker(self) -> None:
        """Crash the worker process without notice, and start another one.

        Tasks in flight are redelivered after their ``ack_wait``.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.bus.close()  # so that nothing is returned to the bus
            await runner.stop(drain_seconds=0)
            await self._start_worker()

    async def restart_dispatcher(self) -> None:
        """Crash the dispatcher, and start another one."""
        await self.stop_dispatcher()
        await self.start_dispatcher()

    async def start_dispatcher(self) -> None:
        """Start a dispatcher, as after a crash."""
        options = replace(DispatcherOptions.of(self.app, self.settings), count=1)
        self._dispatcher = Dispatcher(MemoryBus(self.world), self, options)
        await self._dispatcher.start()
        self.sweeper = Sweeper(self._dispatcher.bus, self.settings.plans, clock=self.clock)
        self.sweeper.start()
        self.scheduler = Scheduler(self._dispatcher.bus, clock=self.clock)
        self.scheduler.start()

    async def stop_dispatcher(self) -> None:
        """Stop the dispatcher at once; events in flight are redelivered after their ``ack_wait``."""
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await self.sweeper.stop()
            await self.scheduler.stop()
            await dispatcher.stop()

    async def _start_worker(self) -> None:
        self._runner = TaskRunner(
            self.app,
            MemoryBus(self.world),
            self.settings.workers,
            max_event_bytes=self.settings.bus.max_event_bytes,
            clock=self.clock,
            tracing=self.tracing,
        )
        await self._runner.start()

    @property
    def shared(self) -> list[HostPort]:
        return list(self.hosts)

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        return self._dedicated.setdefault(plan, LocalHost(self, f"plan-{plan}"))

    def new_host(self, name: str) -> PlanHost:
        """Create an empty plan host with its own connection."""
        host = PlanHost(
            self.app, MemoryBus(self.world), self.settings, name=name, clock=self.clock, tracing=self.tracing
        )
        host.notifies = self._notify
        return host
