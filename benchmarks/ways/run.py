"""Runs W1, W1 in one process, one plan alone and W4 once, and writes the figures into a file.

The environment says which way is off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.load.measuring import driven
from benchmarks.reports.rows import Sync
from benchmarks.systems.ending import supervised
from benchmarks.systems.launcher import SYSTEMS
from benchmarks.systems.processes import cpu_used
from benchmarks.ways.one_process import least_cpu
from benchmarks.workloads.waiting import SIZES as W4_SIZES
from benchmarks.workloads.waiting import Size as W4Size
from benchmarks.workloads.waiting import measure_size

MEASURES = ("w1", "cpu", "w5", "w4")


@dataclass(frozen=True)
class Size:
    """Size of a run."""

    plans: int = 2_000
    """Plans of W1 at once,"""
    times: int = 3
    """so many times in a row."""
    rounds: int = 8
    """Rounds of a quarter as many plans in one process."""
    alone: int = 300
    """Plans one after the other."""
    warm_up: int = 200
    """Plans at once before, and a quarter of them one after the other."""
    w4: W4Size = field(default_factory=lambda: W4Size(200, reasoners=2, others=500, seconds=15.0, most_seconds=30.0))


SIZES = {"full": Size(), "quick": Size(20, 1, 1, 10, 20, W4_SIZES["quick"])}


async def measure(size: Size, sync: Sync, measures: Collection[str]) -> dict[str, float]:
    """Run once; return the figures of the measures.

    ``plans_per_second`` and ``cpu_ms`` of W1, ``process_ms`` of W1 in one process, ``p50_ms`` of W5, and ``p99_ms`` of
    W4's other plans.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    found: dict[str, float] = {}
    if not {"w1", "w5"}.isdisjoint(measures):
        found |= await _w1_and_w5(size, sync, measures)
    if "cpu" in measures:
        found["process_ms"] = await least_cpu(size.plans // 4, size.rounds)
    if "w4" in measures:
        found["p99_ms"] = (await measure_size(size.w4, sync)).beside.percentile_ms(99)
    return {name: round(value, 3) for name, value in found.items()}


async def _w1_and_w5(size: Size, sync: Sync, measures: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    async with SYSTEMS["shared"](sync) as running, driven(running) as driver:
        await driver.together(size.warm_up)
        if "w5" in measures:
            await driver.alone(size.warm_up // 4)
            found["p50_ms"] = (await driver.alone(size.alone)).percentile_ms(50)
        if "w1" in measures:
            pids = await running.pids()
            before = sum(cpu_used(pids).values())
            found["plans_per_second"] = median(
                [(await driver.together(size.plans)).plans_per_second for _ in range(size.times)]
            )
            used = sum(cpu_used(pids).values()) - before
            found["cpu_ms"] = 1000 * used / (size.plans * size.times)
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ways.run", description=__doc__)
    parser.add_argument("into", type=Path)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--sync", choices=("default", "always"), required=True)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, required=True)
    options = parser.parse_args()
    found = uvloop.run(measure(SIZES[options.size], options.sync, options.measures))
    options.into.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(supervised(main))
