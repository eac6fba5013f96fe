"""Runs one measurement: starts a system, warms it up, runs N plans, stops it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.apps import w1
from benchmarks.load.driver import ClientDriver, Driver
from benchmarks.load.outcome import Outcome
from benchmarks.reports.rows import Row, Sync
from benchmarks.systems.launcher import SYSTEMS, Running, SystemName, durability
from benchmarks.systems.processes import cpu_used, memory
from benchmarks.systems.script import W1, Words
from plancast import Client
from plancast_bus.jetstream import connect

WARM_UP = {"shared": 200, "baseline": 200, "dedicated": 50}
"""Plans before the clock starts: code is imported, connections are open, stores have their first file."""
TIMEOUT = 600.0
"""Seconds that a round of plans may take."""


@dataclass(frozen=True)
class Measurement:
    """Result of a measurement."""

    system: SystemName
    outcome: Outcome
    memory: dict[str, float]
    """``rss_mb`` and ``hosts_rss_mb`` after the plans."""
    processes: dict[str, int]
    """Number of processes by kind."""
    cpu_seconds: dict[str, float]
    """CPU seconds by kind of process, and of the driver."""

    def row(self, workload: str, n: int, sync: Sync, turns: int = w1.TURNS) -> Row:
        """Return the row of this run."""
        plans = len(self.outcome.latencies)
        return {
            "workload": workload,
            "system": self.system,
            "n": n,
            **durability(sync),
            "plans_per_second": round(self.outcome.plans_per_second, 1),
            "turns_per_second": round(self.outcome.plans_per_second * turns, 1),
            "p50_ms": round(self.outcome.percentile_ms(50), 2),
            "p99_ms": round(self.outcome.percentile_ms(99), 2),
            **self.memory,
            "plans": plans,
            "processes": self.processes,
            "cpu_ms_per_plan": {kind: round(1000 * used / plans, 3) for kind, used in self.cpu_seconds.items()},
        }


@asynccontextmanager
async def driven(running: Running, words: Words = W1) -> AsyncIterator[Driver]:
    """Open a driver of a workload on a running system."""
    bus = await connect(running.settings.nats, running.settings.bus)
    driver = Driver(bus, TIMEOUT, words)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.close()
        await bus.close()


async def measure(system: SystemName, n: int, sync: Sync, *, through_client: bool = False) -> Measurement:
    """Run N plans of W1 at once on a system.

    Args:
        system: The system.
        n: Number of plans.
        sync: ``sync_interval`` of its nats-server.
        through_client: Submit through :class:`plancast.Client`; not for the baseline.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    async with SYSTEMS[system](sync) as running, driven(running) as driver:
        await driver.together(WARM_UP[system])
        before = cpu_used(await running.pids())
        if through_client and system != "baseline":
            async with Client.connect(settings=running.settings) as client:
                outcome = await ClientDriver(client, TIMEOUT).together(n)
        else:
            outcome = await driver.together(n)
        return await measurement(system, running, outcome, before)


async def measurement(
    system: SystemName, running: Running, outcome: Outcome, cpu_before: Mapping[str, float]
) -> Measurement:
    """Read memory, processes and CPU time of a running system after an outcome."""
    pids = await running.pids()
    used = {kind: seconds - cpu_before.get(kind, 0.0) for kind, seconds in cpu_used(pids).items()}
    return Measurement(system, outcome, memory(pids), {kind: len(each) for kind, each in pids.items()}, used)
