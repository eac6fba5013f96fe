"""Measures the cost of an idle deployment: shares of one core, by kind of process."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

from benchmarks.load.measuring import WARM_UP, driven
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import durability, plancast
from benchmarks.systems.processes import RAY, memory, started_here
from plancast.settings import RaySettings
from plancast_actors.ray import connection

SECONDS: dict[Scale, float] = {"quick": 2.0, "short": 10.0, "full": 20.0}
"""Seconds of measurement."""
SETTLING: dict[Scale, float] = {"quick": 1.0, "short": 5.0, "full": 5.0}
"""Seconds before it: last writes finish, and unneeded processes end."""
SUPERVISOR = "supervisor"
"""This process, which replaces that of ``plancast run``."""


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure the row of an idle deployment: W1's app as ``plancast run`` starts it, after some plans."""
    say("idle: Ray alone")
    alone = await _ray_alone(scale)
    say("idle: an idle deployment")
    async with plancast("shared", sync) as running:
        async with driven(running) as driver:
            await driver.together(WARM_UP["shared"])
        used = await _watch(scale)
        found = started_here()
        used_memory = memory(found)
    rays = {kind: share for kind, share in used.items() if kind.startswith(RAY)}
    return [
        {
            "workload": "idle",
            "system": "shared",
            "n": 0,
            **durability(sync),
            "plans_per_second": None,
            "p50_ms": None,
            "p99_ms": None,
            **used_memory,
            "cpu_percent": round(sum(used.values()) - sum(rays.values()), 2),
            "ray_cpu_percent": round(sum(rays.values()), 2),
            "ray_alone_cpu_percent": round(sum(alone.values()), 2),
            "seconds": SECONDS[scale],
            "processes": {kind: len(each) for kind, each in sorted(found.items())},
            "cpu_percent_by_kind": {kind: round(share, 3) for kind, share in sorted(used.items())},
        }
    ]


async def _ray_alone(scale: Scale) -> dict[str, float]:
    """Measure the cost of Ray's daemons alone."""
    await asyncio.to_thread(connection.connect, RaySettings())
    try:
        used = await _watch(scale)
    finally:
        await asyncio.to_thread(connection.disconnect)
    return {kind: share for kind, share in used.items() if kind.startswith(RAY)}


async def _watch(scale: Scale) -> dict[str, float]:
    """Return the CPU percentage of each kind of process below this one, and of this one."""
    await asyncio.sleep(SETTLING[scale])
    pids = started_here()
    before = {pid: cpu_seconds(pid) for pid in itertools.chain(*pids.values())}
    own, begin = time.process_time(), time.monotonic()
    await asyncio.sleep(SECONDS[scale])
    passed = time.monotonic() - begin
    used = {SUPERVISOR: (time.process_time() - own) / passed * 100}
    for kind, each in pids.items():
        used[kind] = sum(max(0.0, cpu_seconds(pid) - before[pid]) for pid in each) / passed * 100
    return used


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's threads, with nanosecond resolution; 0 for one that has ended.

    The usual counters tick every 10 ms, which is too coarse for processes that mostly sleep.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        return 0.0
