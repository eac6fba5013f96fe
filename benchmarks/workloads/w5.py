"""W5: W1's plan alone, one after the other: the latency of a plan without load.

Cold is the first plan after the start, before code is imported and stores have their first file; warm are those that
follow, without the first few.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.apps import w1
from benchmarks.load.measuring import driven, measurement
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import SYSTEMS, SystemName
from benchmarks.systems.processes import cpu_used

COUNTS: dict[Scale, int] = {"quick": 10, "short": 300, "full": 1_000}
WARM_UP = {"quick": 5, "short": 50, "full": 100}
OURS: tuple[SystemName, ...] = ("shared", "baseline")
DEDICATED_COUNT = 100


async def measure(scale: Scale, sync: Sync, say: Say, *, systems: Sequence[SystemName] = OURS) -> list[Row]:
    """Run once; ``n`` of its rows is 1.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    return [await _alone(system, scale, sync, say) for system in systems]


async def _alone(system: SystemName, scale: Scale, sync: Sync, say: Say) -> Row:
    dedicated = system == "dedicated"
    count = DEDICATED_COUNT if dedicated else COUNTS[scale]
    say(f"{system}: {count:,} plans one after the other")
    async with SYSTEMS[system](sync) as running, driven(running) as driver:
        cold = await driver.alone(1)
        await driver.alone(1 if dedicated else WARM_UP[scale])
        before = cpu_used(await running.pids())
        warm = await driver.alone(count)
        measured = await measurement(system, running, warm, before)
    row = measured.row("w5", 1, sync)
    turn = round(row["p50_ms"] / w1.TURNS, 3)
    say(f"  p50 {row['p50_ms']:.1f} ms, {turn:.2f} ms a turn; the first {cold.percentile_ms(100):.0f} ms")
    return {**row, "p50_turn_ms": turn, "cold_ms": round(cold.percentile_ms(100), 2)}
