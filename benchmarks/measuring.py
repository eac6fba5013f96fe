"""One measurement: a system is started, warmed up, given N plans, and stopped."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.driver import BenchmarkFailed, ClientDriver, Driver, Outcome
from benchmarks.systems import SYSTEMS, Running, Sync, SystemName
from plancast import Client
from plancast_bus.jetstream import connect

ALONE = {"shared": 200, "baseline": 200, "dedicated": 5}
"""Plans that are run one after the other for a row of ``n`` = 1."""
WARM_UP = {"shared": 200, "baseline": 200, "dedicated": 1}
"""Plans before the clock starts: code is imported, connections stand, stores have their first file."""
TIMEOUT = 600.0
PARK_SECONDS = 120.0


@dataclass(frozen=True)
class Measurement:
    """What was measured of a system with N plans."""

    system: SystemName
    n: int
    outcome: Outcome
    rss_mb: float
    """Resident memory of the processes that plans live in, in all, after the plans."""
    processes: dict[str, int]
    """How many of each kind there were."""
    cpu_seconds: dict[str, float]
    """What each kind of process, and the driver, has used of a core meanwhile; Ray's own processes aside."""


async def measure(
    system: SystemName, n: int, sync: Sync, *, through_client: bool = False, alone: int = 0
) -> Measurement:
    """Run N plans at once on a system; with N = 1, some one after the other.

    Args:
        system: Which one.
        n: Plans.
        sync: Of its nats-server.
        through_client: Drive it through :class:`plancast.Client`; the baseline knows none.
        alone: Plans one after the other when N is 1; 0 takes a number that suits the system.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    async with SYSTEMS[system](sync) as running:
        bus = await connect(running.settings.nats, running.settings.bus)
        driver = Driver(bus, TIMEOUT)
        try:
            await driver.open()
            await driver.together(WARM_UP[system])
            before = cpu_used(await running.pids())
            if through_client and system != "baseline":
                async with Client.connect(settings=running.settings) as client:
                    outcome = await _run(ClientDriver(client, TIMEOUT), n, alone or ALONE[system])
            else:
                outcome = await _run(driver, n, alone or ALONE[system])
            pids = await running.pids()
            used = {kind: seconds - before.get(kind, 0.0) for kind, seconds in cpu_used(pids).items()}
            counts = {kind: len(each) for kind, each in pids.items()}
            return Measurement(system, n, outcome, resident_mb(_homes(pids)), counts, used)
        finally:
            await driver.close()
            await bus.close()


async def _run(driver: Driver | ClientDriver, n: int, alone: int) -> Outcome:
    return await (driver.alone(alone) if n == 1 else driver.together(n))


async def memory_per_live_plan(n: int, sync: Sync) -> float:
    """Kilobytes of resident memory that a plan costs while it waits: N are parked in fresh shared hosts.

    Raises:
        BenchmarkFailed: they do not all come to wait.
    """
    async with SYSTEMS["shared"](sync) as running:
        bus = await connect(running.settings.nats, running.settings.bus)
        driver = Driver(bus, TIMEOUT)
        try:
            await driver.open()
            await driver.together(WARM_UP["shared"])
            pids = _homes(await running.pids())
            before = resident_mb(pids)
            await driver.park(n)
            await _all_live(running, n)
            return (resident_mb(pids) - before) * 1024 / n
        finally:
            await driver.close()
            await bus.close()


async def _all_live(running: Running, n: int) -> None:
    deadline = time.monotonic() + PARK_SECONDS
    while (live := await running.live_plans()) < n:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"only {live} of {n} parked plans are in memory")
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)  # the last of them are committed, and what they needed is freed


def _homes(pids: dict[str, list[int]]) -> list[int]:
    """The processes that plans live in; for the baseline those that stand for dispatchers and hosts."""
    return [*pids.get("hosts", ()), *pids.get("plans", ())]


def cpu_used(pids: dict[str, list[int]]) -> dict[str, float]:
    """Seconds of a core that each kind of process has used since it started, and this one."""
    used = {kind: sum(map(_cpu_seconds, each)) for kind, each in pids.items()}
    return {**used, "driver": time.process_time()}


def _cpu_seconds(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pids: Iterable[int]) -> float:
    """Resident memory of processes, in all, in megabytes."""
    return sum(map(_resident_kb, pids)) / 1024


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmRSS"].split()[0])
    asked = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(asked.stdout)
