"""W3: N plans of :mod:`benchmarks.apps.parked` wait for a signal and stay in memory; then all are signalled.

Hosts are configured to keep them all: ``hosts.max_live_plans`` is N, or the default if that is more, and
``hosts.idle_seconds`` an hour. The memory of a live plan is the growth of the hosts' memory while all wait,
divided by N. It includes memory that hosts needed to begin that many plans at once, and have not freed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import uuid4

from benchmarks.apps import parked
from benchmarks.load.final_responses import FinalResponses
from benchmarks.load.measuring import TIMEOUT
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.load.submitting import publication, submit
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.processes import memory, memory_mb
from benchmarks.systems.script import goal
from plancast.settings import Settings
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Publish

COUNTS: dict[Scale, int] = {"quick": 200, "short": 5_000, "full": 100_000}
WARM_UP: dict[Scale, int] = {"quick": 50, "short": 200, "full": 200}
"""Plans before memory is measured: code is imported. Few, since the others reuse the memory that they free."""
APP = "benchmarks.apps.parked:app"
IDLE_SECONDS = 3600.0
SETTLE_SECONDS: dict[Scale, float] = {"quick": 0.5, "short": 3.0, "full": 3.0}
"""Seconds to free the memory of the last turns."""
LOOK_SECONDS = 0.2
PARTS = 10
"""Parts of the signalled plans, in the order of their ends, whose rates are compared."""


@dataclass(frozen=True)
class Memory:
    """Memory of the processes of a deployment, in megabytes."""

    hosts: float
    dispatchers: float
    nats_server: float

    @classmethod
    async def of(cls, running: Running) -> Memory:
        """Measure the current memory."""
        pids = await running.pids()
        return cls(*(memory_mb(pids[kind]) for kind in ("hosts", "dispatchers", "nats-server")))

    def since(self, before: Memory, n: int) -> Memory:
        """Return the growth per plan, in kilobytes, for N plans."""
        return Memory(
            (self.hosts - before.hosts) * 1024 / n,
            (self.dispatchers - before.dispatchers) * 1024 / n,
            (self.nats_server - before.nats_server) * 1024 / n,
        )


class Signaller:
    """Makes plans wait, and signals them. Open it, use it, close it.

    Args:
        running: The deployment.
        bus: A connection; the caller closes it.
        goal_type: The goal of the plans.
    """

    def __init__(self, running: Running, bus: Bus, goal_type: str = parked.GOAL) -> None:
        self._running = running
        self._bus = bus
        self._goal_type = goal_type
        self._signalled: dict[str, float] = {}
        self._responses = FinalResponses(bus, f"{goal_type}.completed")

    async def open(self) -> None:
        """Subscribe to final responses."""
        await self._responses.open()

    async def close(self) -> None:
        """Unsubscribe."""
        await self._responses.close()

    async def park(self, count: int) -> tuple[list[str], float]:
        """Submit ``count`` plans, and wait until all of them wait; return their ids, and the seconds it took.

        Raises:
            BenchmarkFailed: they do not all stay in memory, waiting.
        """
        plans = [uuid4().hex for _ in range(count)]
        goals = [publication(self._bus, goal(plan, number, self._goal_type)) for number, plan in enumerate(plans)]
        turns, _, _ = await self._look()
        begin = time.perf_counter()
        async with asyncio.timeout(TIMEOUT):
            await submit(self._bus, goals)
        while True:
            now, live, busy = await self._look()
            if (now - turns, live, busy) == (count, count, 0):
                return plans, time.perf_counter() - begin
            if time.perf_counter() - begin > TIMEOUT:
                raise BenchmarkFailed(f"{now - turns} of {count} plans have begun, {live} are live, {busy} are busy")
            await asyncio.sleep(LOOK_SECONDS)

    async def signal(self, plans: Sequence[str]) -> tuple[Outcome, list[float]]:
        """Signal plans as fast as possible, and wait for all; also return the plans per second of each tenth.

        Raises:
            BenchmarkFailed: a plan did not complete, or completed twice.
        """
        self._signalled.clear()
        self._responses.begin(frozenset(plans))
        effects = [publication(self._bus, signal_of(plan)) for plan in plans]
        owners = dict(zip((effect.message_id for effect in effects), plans, strict=True))

        def note(signals: Iterable[Publish]) -> None:
            now = time.perf_counter()
            self._signalled.update((owners[each.message_id], now) for each in signals)

        begin = time.perf_counter()
        async with asyncio.timeout(TIMEOUT):
            await submit(self._bus, effects, note)
            await self._responses.wait()
        await asyncio.sleep(LOOK_SECONDS)  # a duplicate response would arrive now
        self._responses.check()
        ended = self._responses.ends
        ends = sorted(ended.values())
        marks = [begin, *(ends[len(ends) * part // PARTS - 1] for part in range(1, PARTS + 1))]
        rates = [len(ends) / PARTS / (end - start) for start, end in pairwise(marks)]
        latencies = [ended[plan] - self._signalled[plan] for plan in plans]
        return Outcome(ends[-1] - begin, latencies), rates

    async def _look(self) -> tuple[int, int, int]:
        """Return turns so far, live plans, and busy ones, of all hosts."""
        assert self._running.deployment is not None
        hosts = (await self._running.deployment.status())["hosts"]
        turns, live, busy = (sum(host[name] for host in hosts) for name in ("turns", "live_plans", "busy_plans"))
        return turns, live, busy


async def measure(
    scale: Scale, sync: Sync, say: Say, *, counts: Sequence[int] = (), goal_type: str = parked.GOAL
) -> list[Row]:
    """Run once.

    Args:
        scale: Size of the run.
        sync: ``sync_interval`` of the nats-server.
        say: Reports progress.
        counts: Numbers of plans, overriding the scale.
        goal_type: ``parked.GOAL``, or ``parked.MACHINE_GOAL`` for plans that wait in a state of a machine.

    Raises:
        BenchmarkFailed: a plan was not kept in memory, did not complete, or completed twice.
    """
    return [await _parked(n, scale, sync, say, goal_type) for n in counts or (COUNTS[scale],)]


async def _parked(n: int, scale: Scale, sync: Sync, say: Say, goal_type: str) -> Row:
    say(f"shared: {n:,} plans that wait")
    settle = SETTLE_SECONDS[scale]
    async with plancast("shared", sync, APP, settings=_roomy(n)) as running:
        bus = await connect(running.settings.nats, running.settings.bus)
        signaller = Signaller(running, bus, goal_type)
        try:
            await signaller.open()
            await signaller.signal((await signaller.park(WARM_UP[scale]))[0])
            await asyncio.sleep(settle)
            empty = await Memory.of(running)
            plans, seconds = await signaller.park(n)
            await asyncio.sleep(settle)
            waiting = await Memory.of(running)
            live, total = waiting.since(empty, n), memory(await running.pids())
            say(f"  {n / seconds:,.0f} plans/s parked, {live.hosts:.1f} KB of host memory each")
            outcome, rates = await signaller.signal(plans)
            await asyncio.sleep(settle)
            ended = (await Memory.of(running)).since(empty, n)
            processes = {kind: len(pids) for kind, pids in (await running.pids()).items()}
        finally:
            await signaller.close()
            await bus.close()
    tenths = ", ".join(f"{rate:,.0f}" for rate in rates)
    say(f"  {outcome.plans_per_second:,.0f} signalled plans/s; by tenths: {tenths}")
    return {
        "workload": "w3",
        "system": "shared",
        "n": n,
        **({"variant": "machine"} if goal_type == parked.MACHINE_GOAL else {}),
        **durability(sync),
        "plans_per_second": round(outcome.plans_per_second, 1),
        "slowest_tenth_per_second": round(min(rates), 1),
        "last_tenth_per_second": round(rates[-1], 1),
        "parked_per_second": round(n / seconds, 1),
        "p50_ms": round(outcome.percentile_ms(50), 2),
        "p99_ms": round(outcome.percentile_ms(99), 2),
        **total,
        "rss_per_live_plan_kb": round(live.hosts, 2),
        "dispatchers_per_live_plan_kb": round(live.dispatchers, 2),
        "nats_server_per_live_plan_kb": round(live.nats_server, 2),
        "hosts_per_ended_plan_kb": round(ended.hosts, 2),
        "dispatchers_per_ended_plan_kb": round(ended.dispatchers, 2),
        "plans": n,
        "processes": processes,
        "driver": "bus",
        "max_live_plans": running.settings.hosts.max_live_plans,
        "idle_seconds": running.settings.hosts.idle_seconds,
    }


def signal_of(plan: str) -> EventEnvelope:
    """Build a person's event, as :meth:`plancast.client.handle.PlanHandle.signal` sends it."""
    return EventEnvelope(
        source="bench",
        type=parked.SIGNAL,
        topic=EventTopic.PLAN_EVENTS,
        data={"approved": True},
        correlation_id=plan,
    )


def _roomy(n: int) -> Settings:
    """Return settings with which hosts keep N waiting plans in memory."""
    settings = Settings()
    settings.hosts.max_live_plans = max(n, settings.hosts.max_live_plans)
    settings.hosts.idle_seconds = IDLE_SECONDS
    return settings
