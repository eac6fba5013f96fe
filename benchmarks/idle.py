"""What a deployment costs that has nothing to do: shares of one core, by kind of process."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

from benchmarks.measuring import WARM_UP, driven
from benchmarks.processes import RAY, memory, started_here
from benchmarks.rows import Row, Say, Scale, Sync
from benchmarks.systems import durability, plancast
from plancast.settings import RaySettings
from plancast_actors.ray import connection

SECONDS: dict[Scale, float] = {"quick": 2.0, "short": 10.0, "full": 20.0}
"""How long is watched."""
SETTLING: dict[Scale, float] = {"quick": 1.0, "short": 5.0, "full": 5.0}
"""Before that: what was done last is written, and processes that are no longer needed have ended."""
SUPERVISOR = "supervisor"
"""This process, which stands for that of ``plancast run``."""


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """The row of an idle deployment: W1's app as ``plancast run`` starts it, after some plans."""
    say("idle: Ray with nothing in it")
    alone = await _ray_alone(scale)
    say("idle: a deployment with nothing to do")
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
    """What Ray's daemons cost on their own."""
    await asyncio.to_thread(connection.connect, RaySettings())
    try:
        used = await _watch(scale)
    finally:
        await asyncio.to_thread(connection.disconnect)
    return {kind: share for kind, share in used.items() if kind.startswith(RAY)}


async def _watch(scale: Scale) -> dict[str, float]:
    """Percent of a core that each kind of process below this one uses, and this one."""
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
    """Seconds of a core that the threads of a process have used, to the nanosecond; 0 for one that has ended.

    The usual counters go by ticks of 10 ms, too coarse for what sleeps.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        return 0.0
