"""One measurement: a system is started, warmed up, given N plans, and stopped."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import w1
from benchmarks.driver import ClientDriver, Driver, Outcome
from benchmarks.rows import Row
from benchmarks.systems import SYSTEMS, Running, Sync, SystemName, durability
from plancast import Client
from plancast_bus.jetstream import connect

WARM_UP = {"shared": 200, "baseline": 200, "dedicated": 1}
"""Plans before the clock starts: code is imported, connections stand, stores have their first file."""
TIMEOUT = 600.0
"""Seconds that a round of plans may take."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of a system with some plans."""

    system: SystemName
    outcome: Outcome
    memory: dict[str, float]
    """``rss_mb`` and ``hosts_rss_mb`` after the plans."""
    processes: dict[str, int]
    """How many of each kind there were."""
    cpu_seconds: dict[str, float]
    """What each kind of process, and the driver, has used of a core meanwhile."""

    def row(self, workload: str, n: int, sync: Sync) -> Row:
        """The row of this run."""
        plans = len(self.outcome.latencies)
        return {
            "workload": workload,
            "system": self.system,
            "n": n,
            **durability(sync),
            "plans_per_second": round(self.outcome.plans_per_second, 1),
            "turns_per_second": round(self.outcome.plans_per_second * w1.TURNS, 1),
            "p50_ms": round(self.outcome.percentile_ms(50), 2),
            "p99_ms": round(self.outcome.percentile_ms(99), 2),
            **self.memory,
            "plans": plans,
            "processes": self.processes,
            "cpu_ms_per_plan": {kind: round(1000 * used / plans, 3) for kind, used in self.cpu_seconds.items()},
        }


@asynccontextmanager
async def driven(running: Running) -> AsyncIterator[Driver]:
    """A driver of a system that runs."""
    bus = await connect(running.settings.nats, running.settings.bus)
    driver = Driver(bus, TIMEOUT)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.close()
        await bus.close()


async def measure(system: SystemName, n: int, sync: Sync, *, through_client: bool = False) -> Measurement:
    """Run N plans of W1 at once on a system.

    Args:
        system: Which one.
        n: Plans.
        sync: Of its nats-server.
        through_client: Drive it through :class:`plancast.Client`; the baseline knows none.

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
    """What a system that still runs has needed for an outcome."""
    pids = await running.pids()
    used = {kind: seconds - cpu_before.get(kind, 0.0) for kind, seconds in cpu_used(pids).items()}
    return Measurement(system, outcome, memory(pids), {kind: len(each) for kind, each in pids.items()}, used)


def cpu_used(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Seconds of a core that each kind of process has used since it started, and this one."""
    used = {kind: sum(map(_cpu_seconds, each)) for kind, each in pids.items()}
    return {**used, "driver": time.process_time()}


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Of the processes of a system by kind: ``rss_mb`` of all of them, ``hosts_rss_mb`` of those that plans live in.

    For the baseline the latter are those that stand for dispatchers and hosts.
    """
    homes = [*pids.get("hosts", ()), *pids.get("plans", ())]
    everything = {pid for each in pids.values() for pid in each}
    return {"rss_mb": round(memory_mb(everything), 1), "hosts_rss_mb": round(memory_mb(homes), 1)}


def memory_mb(pids: Iterable[int]) -> float:
    """Memory of processes, in all, in megabytes: what they share counts once (PSS) where the kernel tells, else RSS.

    A process that is gone has none.
    """
    return sum(map(_memory_kb, pids)) / 1024


def _memory_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        asked = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(asked.stdout.strip() or 0)
