"""Runs a deployment whose hosts keep few plans in memory, with plans that wait for a signal."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import ray

from benchmarks.apps import w1
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.load.submitting import publication, submit
from benchmarks.reports.rows import Sync
from benchmarks.systems.launcher import NAMESPACE, Running, plancast
from benchmarks.systems.processes import memory_mb
from benchmarks.systems.script import goal
from plancast.settings import Settings
from plancast_bus.events.codec import load
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus

LIVE_PLANS = 1_000
"""Plans that a host keeps in memory."""
IDLE_SECONDS = 3.0
"""Seconds without an event after which a host passivates a plan."""
AHEAD = 4_000
"""Goals submitted ahead of waiting plans. A warm-up has more plans, so that hosts have already
allocated the memory for plans in flight.
"""
PORTION = 2_000
STANDSTILL = 60.0
"""Seconds without progress after which plans count as lost."""
LOOK_SECONDS = 0.1
RESPONSE = f"{w1.PARK}.completed"


@dataclass
class Waiting:
    """W1's app, with plans of its goal ``w1.park``."""

    running: Running
    bus: Bus
    root: str
    """Prefix of the plans' ids; their number follows."""
    count: int = 0
    """Plans so far."""
    _heard: asyncio.Future[str] | None = None

    def plan(self, number: int) -> str:
        """Return the id of a plan."""
        return f"{self.root}{number:08x}"

    async def park(self, count: int) -> None:
        """Submit ``count`` plans, and wait until each waits."""
        end = self.count + count
        while self.count < end:
            portion = range(self.count, min(end, self.count + PORTION))
            goals = (goal(self.plan(number), number, w1.PARK) for number in portion)
            await submit(self.bus, [publication(self.bus, each) for each in goals])
            self.count = portion.stop
            await self._until("turns", self.count - AHEAD)
        await self._until("turns", self.count)

    async def all_passivated(self) -> None:
        """Wait until no plan is in memory."""
        await self._until("passivations", self.count)
        live = (await self.counts())["live_plans"]
        if live:
            raise BenchmarkFailed(f"{live} plans are still in memory")

    async def counts(self) -> dict[str, int]:
        """Return ``turns``, ``activations``, ``passivations`` and ``live_plans`` of all hosts together."""
        assert self.running.deployment is not None
        reports = (await self.running.deployment.status())["hosts"]
        names = ("turns", "activations", "passivations", "live_plans")
        return {name: sum(report[name] for report in reports) for name in names}

    async def signal(self, number: int) -> float:
        """Signal a plan; return the seconds until its final response.

        Raises:
            BenchmarkFailed: it does not complete.
        """
        plan = self.plan(number)
        event = EventEnvelope(
            source="bench", type=w1.SIGNAL, topic=EventTopic.PLAN_EVENTS, data={}, correlation_id=plan
        )
        effect = publication(self.bus, event)
        self._heard = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(STANDSTILL):
                await self.bus.emit([effect])
                status = await self._heard
        except TimeoutError as error:
            raise BenchmarkFailed(f"plan {plan} has not ended within {STANDSTILL:.0f} s of its signal") from error
        taken = time.perf_counter() - begin
        if status != "completed":
            raise BenchmarkFailed(f"plan {plan} is {status}")
        return taken

    async def footprint(self) -> Footprint:
        """Measure the memory of the hosts, after garbage collection, and of the server."""
        pids = await self.running.pids()
        names = [f"host-{number}" for number in range(len(pids["hosts"]))]
        actors = [await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE) for name in names]
        await asyncio.gather(*(actor.__ray_call__.remote(lambda _actor: gc.collect()) for actor in actors))
        disk = sum(path.stat().st_blocks * 512 for path in self.running.settings.data_dir.rglob("*") if path.is_file())
        return Footprint(memory_mb(pids["hosts"]), memory_mb(pids["nats-server"]), disk / 2**20)

    async def _until(self, name: str, wanted: int) -> None:
        seen, moved_at = -1, time.monotonic()
        while (found := (await self.counts())[name]) < wanted:
            if found > seen:
                seen, moved_at = found, time.monotonic()
            if time.monotonic() > moved_at + STANDSTILL:
                raise BenchmarkFailed(f"{found} of {wanted} {name}, no progress for {STANDSTILL:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def responded(self, subject: str, payload: bytes, content_type: str | None) -> None:
        """Receive a final response."""
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(load(payload, content_type)["data"]["status"])


@dataclass(frozen=True)
class Footprint:
    """Memory of hosts and server, in megabytes."""

    hosts_mb: float
    nats_mb: float
    disk_mb: float


@asynccontextmanager
async def waiting_plans(sync: Sync) -> AsyncIterator[Waiting]:
    """Run W1's app in hosts that keep few plans in memory, and only briefly; no plans yet."""
    settings = Settings()
    settings.hosts.max_live_plans, settings.hosts.idle_seconds = LIVE_PLANS, IDLE_SECONDS
    async with plancast("shared", sync, settings=settings) as running:
        bus = await connect(running.settings.nats, running.settings.bus)
        waiting = Waiting(running, bus, uuid4().hex[:24])
        heard = await bus.subscribe(f"{bus.subjects.prefix}.action-results.*.{RESPONSE}", waiting.responded)
        try:
            yield waiting
        finally:
            await heard.close()
            await bus.close()
