"""``python -m benchmarks``: run them, print a table, keep the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import uvloop
from rich.console import Console

from benchmarks import hops, w1
from benchmarks.measuring import ALONE, Measurement, measure, memory_per_live_plan
from benchmarks.rows import RESULTS, Row, relate, row, save, table
from benchmarks.systems import ROOT, SYSTEMS, Sync, SystemName

DEDICATED_LIMIT = 100
"""Plans of a process each: more do not fit into an ordinary machine's memory."""
SHOWS_IN_MEMORY = 1000
"""Fewer parked plans than this do not show in the memory of a process."""
QUICK_ALONE = 50

progress = Console(stderr=True)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=w1.__doc__)
    parser.add_argument(
        "--n", type=int, nargs="+", help="plans at once; 1 runs plans one after the other (1 100 1000 10000)"
    )
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), help="(all; without dedicated when quick)")
    parser.add_argument(
        "--sync", choices=("default", "always"), default="default", help="when nats-server syncs to disk"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each measurement, alternating; rows are medians")
    parser.add_argument("--quick", action="store_true", help="a minute's worth: small N, no memory of parked plans")
    parser.add_argument("--client", action="store_true", help="submit through plancast.Client instead of the bus")
    parser.add_argument("--no-save", action="store_true", help="leave benchmarks/results as it is")
    parser.add_argument(
        "--hops", action="store_true", help="instead: where the time of one plan alone goes, hop by hop"
    )
    options = parser.parse_args(given)
    options.n = options.n or ([1, 100, 500] if options.quick else [1, 100, 1000, 10_000])
    options.systems = options.systems or (["shared", "baseline"] if options.quick or options.hops else list(SYSTEMS))
    if min(options.n) < 1 or options.repeat < 1:
        parser.error("--n and --repeat are at least 1")
    return options


async def run(options: argparse.Namespace) -> list[Row]:
    """Measure what the command line asks for."""
    sync: Sync = options.sync
    wanted: list[tuple[SystemName, int]] = [
        (system, n) for n in options.n for system in options.systems if system != "dedicated" or n <= DEDICATED_LIMIT
    ]
    found: dict[tuple[SystemName, int], list[Measurement]] = {each: [] for each in wanted}
    for number in range(options.repeat):
        for system, n in wanted:
            _say(f"run {number + 1} of {options.repeat}: {system}, {_plans(n)}, sync {sync}")
            alone = min(QUICK_ALONE, ALONE[system]) if options.quick else 0
            measured = await measure(system, n, sync, through_client=options.client, alone=alone)
            found[system, n].append(measured)
            _say(
                f"  {measured.outcome.plans_per_second:,.1f} plans/s, p50 {measured.outcome.percentile_ms(50):,.1f} ms"
            )
    rows = []
    for (system, n), runs in found.items():
        live = None
        if system == "shared" and n >= SHOWS_IN_MEMORY and not options.quick:
            _say(f"memory of a live plan: {_plans(n)} are parked")
            live = await memory_per_live_plan(n, sync)
        driver = "client" if options.client and system != "baseline" else "bus"
        rows.append(row("w1", runs, turns=w1.TURNS, sync=sync, driver=driver, live_plan_kb=live))
    relate(rows)
    return rows


def main(given: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    options = arguments(given)
    if options.hops:
        Console().print(uvloop.run(hops.run(options.systems, options.sync)))
        return
    rows = uvloop.run(run(options))
    Console().print(table(rows))
    if not options.no_save:
        _say(f"rows: {save('w1', rows, RESULTS).relative_to(ROOT)}")


def _plans(n: int) -> str:
    return "plans one after the other" if n == 1 else f"{n:,} plans"


def _say(*words: Any) -> None:
    progress.print(*words, highlight=False)


if __name__ == "__main__":
    main(sys.argv[1:])
