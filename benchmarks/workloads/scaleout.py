"""Measures scale-out: two dispatchers with their hosts on all cores, beside one dispatcher on half of them.

A unit is a dispatcher, its hosts and a worker process. The whole system is pinned to the same cores, including the
nats-server, Ray's daemons and the driver. So the second run has twice the cores of the first,
and twice the units; the nats-server, its streams and the driver do not double.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.measuring import WARM_UP, driven, measurement
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import plancast
from benchmarks.systems.processes import cpu_used
from plancast.settings import Settings

COUNTS: dict[Scale, int] = {"quick": 200, "short": 5_000, "full": 10_000}
HOSTS_PER_UNIT = 2


@dataclass(frozen=True)
class Size:
    """Size of a deployment."""

    units: int
    cores: int

    @property
    def name(self) -> str:
        """Return the display name, also the row's ``variant``."""
        dispatchers = "1 dispatcher" if self.units == 1 else f"{self.units} dispatchers"
        return f"{dispatchers}, {self.cores} cores"


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Run once: the row of one unit on half of the cores, and that of two on all, with ``scaleout_ratio``.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice; or there are fewer than two cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        raise BenchmarkFailed("scale-out needs two cores")
    one = await _measure(Size(1, half), cores[:half], COUNTS[scale], sync, say)
    two = await _measure(Size(2, 2 * half), cores[: 2 * half], COUNTS[scale], sync, say)
    two["scaleout_ratio"] = round(two["plans_per_second"] / one["plans_per_second"], 3)
    say(f"  ratio {two['scaleout_ratio']:.2f}")
    return [one, two]


async def _measure(size: Size, cores: list[int], n: int, sync: Sync, say: Say) -> Row:
    say(f"shared: {n:,} plans at once, {size.name}")
    with pinned(cores):
        async with plancast("shared", sync, settings=_settings(size)) as running, driven(running) as driver:
            await driver.together(WARM_UP["shared"])
            before = cpu_used(await running.pids())
            outcome = await driver.together(n)
            measured = await measurement("shared", running, outcome, before)
    row = measured.row("scaleout", n, sync)
    say(f"  {row['plans_per_second']:,.0f} plans/s, p99 {row['p99_ms']:,.0f} ms")
    used = {kind: round(used / outcome.seconds, 3) for kind, used in measured.cpu_seconds.items()}
    return {**row, "variant": size.name, "cores": size.cores, "cores_used": used}


def _settings(size: Size) -> Settings:
    settings = Settings()
    settings.dispatchers.count = size.units
    settings.hosts.count = size.units * HOSTS_PER_UNIT
    settings.workers.processes = size.units
    return settings


@contextlib.contextmanager
def pinned(cores: list[int]) -> Iterator[None]:
    """Pin this process, and all that it starts meanwhile, to some cores; afterwards restore the previous ones."""
    before = os.sched_getaffinity(0)
    _allow(set(cores))
    try:
        yield
    finally:
        _allow(before)


def _allow(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
