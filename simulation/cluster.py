"""A simulated deployment: plan hosts, dispatchers and workers, each a process that can die at any await."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plancast.app import App
from plancast.settings import Settings
from plancast.worker import TaskContext
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import HostLost, HostPort, Inbound, Outcome
from plancast_actors.workers.runner import TaskRunner
from simulation.acts import Service
from simulation.adversary import Adversary, SimulatedBus
from simulation.app import Refusals, make_worker
from simulation.loop import LoopClock, VirtualLoop
from simulation.observer import ObservedWorld

MAX_LOSSES = 1000
"""Host losses without quarantine: in a simulation no event crashes a process."""


@dataclass
class Incarnation:
    """An incarnation of a process, with its calls in flight."""

    node: str
    bus: SimulatedBus
    program: Any = None
    calls: dict[asyncio.Future[list[Outcome]], None] = field(default_factory=dict)


class Process:
    """A process that restarts with empty memory."""

    def __init__(self, cluster: Cluster, kind: str, index: int, begin: Callable[[Process, Incarnation], Any]) -> None:
        self.cluster = cluster
        self.name = f"{kind}-{index}"
        self.index = index
        self.life: Incarnation | None = None
        self._begin = begin
        self._lives = 0

    def start(self) -> Incarnation:
        """Start a new incarnation."""
        self._lives += 1
        life = Incarnation(f"{self.name}.{self._lives}", self.cluster.connect())
        self.life = life
        self.cluster.loop.spawn(life.node, self._run(life))
        return life

    async def _run(self, life: Incarnation) -> None:
        life.program = self._begin(self, life)
        if life.program is not None and not isinstance(life.program, PlanHost):
            await life.program.start()
        elif life.program is not None:
            life.program.start()

    def leave(self) -> Incarnation | None:
        """Detach and return the current incarnation, which keeps running but is unreachable."""
        life, self.life = self.life, None
        if life is not None:
            for call in life.calls:
                if not call.done():
                    call.set_exception(HostLost(self.name))
        return life

    def kill(self) -> None:
        """Kill the current incarnation at this step."""
        life = self.leave()
        if life is not None:
            life.bus.cut()
            self.cluster.loop.stop_node(life.node)


class SimulatedHost(HostPort):
    """A dispatcher's connection to the current incarnation of a plan host."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._met: Incarnation | None = None
        """Incarnation of the last call: the first call after its end fails, unless the loss goes unnoticed."""

    async def exchange(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        """See :class:`plancast_actors.plan_actors.protocol.HostPort`."""
        cluster = self.process.cluster
        await cluster.adversary.delay()
        self._stray(batch)
        outcomes = await self._call(dispatcher, batch, wait)
        await cluster.adversary.delay()
        if cluster.adversary.call_is_lost:
            raise HostLost(self.process.name)
        return outcomes

    async def incarnation(self) -> str:
        """See :class:`plancast_actors.plan_actors.protocol.HostPort`."""
        await self.process.cluster.adversary.delay()
        self._met = self.process.life
        if self._met is None or self._met.program is None:
            raise HostLost(self.process.name)
        return self._met.node

    async def watch(self) -> bool:
        """See :class:`plancast_actors.plan_actors.protocol.HostPort`."""
        ended: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        if self._met is not None:
            self._met.calls[ended] = None
        with contextlib.suppress(HostLost):
            await ended
        return False

    async def recycle(self) -> None:
        """See :class:`plancast_actors.plan_actors.protocol.HostPort`."""
        self.process.kill()
        self.process.start()

    async def _call(self, dispatcher: str, batch: list[Inbound], wait: bool) -> list[Outcome]:
        life = self.process.life
        before, self._met = self._met, life
        if life is None or life.program is None:
            raise HostLost(self.process.name)
        if before not in (None, life) and not self.process.cluster.adversary.is_silent:
            raise HostLost(self.process.name)
        reply: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        life.calls[reply] = None
        self.process.cluster.loop.spawn(life.node, _serve(life, reply, dispatcher, batch, wait))
        try:
            return await reply
        finally:
            life.calls.pop(reply, None)

    def _stray(self, batch: list[Inbound]) -> None:
        """Also dispatch some events to another host, like a dispatcher with another view of the hosts."""
        cluster = self.process.cluster
        others = [each for each in cluster.hosts if each is not self.process]
        stray = [each for each in batch if others and cluster.adversary.strays]
        if stray:
            other = SimulatedHost(others[stray[0].token % len(others)])
            cluster.loop.spawn("network", _without_answer(other._call("stray", stray, False)))


async def _serve(
    life: Incarnation, reply: asyncio.Future[list[Outcome]], dispatcher: str, batch: list[Inbound], wait: bool
) -> None:
    try:
        outcomes = await life.program.exchange(dispatcher, batch, wait)
    except Exception as error:
        if not reply.done():
            reply.set_exception(error)
        return
    if not reply.done():
        reply.set_result(outcomes)


async def _without_answer(call: Any) -> None:
    try:
        await call
    except HostLost:
        return


async def _restart_later(process: Process) -> None:
    await asyncio.sleep(0.5)
    if process.life is None:
        process.start()


class _Directory:
    """Hosts in the order of one dispatcher's view."""

    def __init__(self, hosts: list[Process], first: int) -> None:
        at = first % len(hosts)
        self.shared: list[HostPort] = [SimulatedHost(each) for each in (*hosts[at:], *hosts[:at])]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        """Not supported: all plans run in shared hosts."""
        raise AssertionError(f"all plans of a simulation are in shared hosts, and {plan} is not")


class Cluster:
    """All processes of a deployment on one in-memory broker."""

    def __init__(
        self,
        loop: VirtualLoop,
        world: ObservedWorld,
        adversary: Adversary,
        settings: Settings,
        make_app: Callable[[Any], App],
        note: Callable[[TaskContext, str], None],
        hosts: int,
        workers: int,
    ) -> None:
        self.loop = loop
        self.world = world
        self.adversary = adversary
        self.settings = settings
        self.refusals = Refusals()
        self.service = Service(world.note)
        self.app = make_app(make_worker(self.refusals, self.service, note))
        self.hosts = [Process(self, "host", index, self._host) for index in range(hosts)]
        self.workers = [Process(self, "worker", index, self._worker) for index in range(workers)]
        self.dispatchers = [Process(self, "dispatcher", 0, self._dispatcher)]
        self._dispatchers_begun = 0

    def connect(self) -> SimulatedBus:
        """Open a connection."""
        return SimulatedBus(self.world, self.adversary)

    def start(self) -> None:
        """Start all processes."""
        for process in (*self.hosts, *self.workers, *self.dispatchers):
            process.start()

    def crash(self, node: str) -> bool:
        """Kill the process of a node and restart it later; False when the node is not current."""
        process = self.process_of(node)
        if process is not None:
            process.kill()
            self.loop.spawn("network", _restart_later(process))
        return process is not None

    def crash_dispatchers(self) -> None:
        """Kill the dispatchers and restart them later."""
        for process in self.dispatchers:
            process.kill()
            self.loop.spawn("network", _restart_later(process))

    def stall(self, node: str, seconds: float) -> bool:
        """Freeze a node and start its replacement; False when the node is not current."""
        process = self.process_of(node)
        if process is not None:
            process.leave()
            self.loop.stop_node(node)
            process.start()
            self.loop.spawn("network", self._thaw_later(node, seconds))
        return process is not None

    async def _thaw_later(self, node: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.loop.thaw(node)

    def process_of(self, node: str) -> Process | None:
        """The process whose current incarnation is this node."""
        everyone = (*self.hosts, *self.workers, *self.dispatchers)
        return next((each for each in everyone if each.life is not None and each.life.node == node), None)

    def _host(self, process: Process, life: Incarnation) -> PlanHost:
        return PlanHost(self.app, life.bus, self.settings, name=process.name, clock=LoopClock(self.loop))

    def _worker(self, process: Process, life: Incarnation) -> TaskRunner:
        return TaskRunner(self.app, life.bus, self.settings.workers, clock=LoopClock(self.loop))

    def _dispatcher(self, process: Process, life: Incarnation) -> Dispatcher:
        self._dispatchers_begun += 1
        options = DispatcherOptions(
            shards=self.settings.bus.shards,
            ack_wait=self.settings.dispatchers.ack_wait,
            max_outstanding=self.settings.dispatchers.max_outstanding,
            max_batch=self.settings.dispatchers.max_batch,
            goals=tuple(sorted(self.app.goals)),
            max_losses=MAX_LOSSES,
        )
        return Dispatcher(life.bus, _Directory(self.hosts, self._dispatchers_begun - 1), options)
