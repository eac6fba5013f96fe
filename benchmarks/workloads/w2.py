"""W2: N plans of :mod:`benchmarks.apps.fan_out` at once, on ours and on the baseline; ten requests each, joined."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal

from benchmarks.apps import fan_out
from benchmarks.load.measuring import driven, measurement
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, baseline, plancast
from benchmarks.systems.processes import cpu_used
from benchmarks.systems.script import W2

COUNTS: dict[Scale, tuple[int, ...]] = {"quick": (50,), "short": (500,), "full": (1_000, 5_000)}
WARM_UP: dict[Scale, int] = {"quick": 20, "short": 100, "full": 100}
APP = "benchmarks.apps.fan_out:app"
Ours = Literal["shared", "baseline"]
OURS: tuple[Ours, ...] = ("shared", "baseline")


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Run once.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    return [await _together(system, n, scale, sync, say) for n in COUNTS[scale] for system in OURS]


async def _together(system: Ours, n: int, scale: Scale, sync: Sync, say: Say) -> Row:
    say(f"{system}: {n:,} plans of {fan_out.BRANCHES} requests each, at once")
    async with _started(system, sync) as running, driven(running, W2) as driver:
        await driver.together(WARM_UP[scale])
        before = cpu_used(await running.pids())
        outcome = await driver.together(n)
        measured = await measurement(system, running, outcome, before)
    row = measured.row("w2", n, sync, fan_out.TURNS)
    say(
        f"  {row['plans_per_second']:,.0f} plans/s, {row['turns_per_second']:,.0f} turns/s, p99 {row['p99_ms']:,.0f} ms"
    )
    return {**row, "branches": fan_out.BRANCHES, "driver": "bus"}


def _started(system: Ours, sync: Sync) -> AbstractAsyncContextManager[Running]:
    return plancast("shared", sync, APP) if system == "shared" else baseline(sync, W2)
