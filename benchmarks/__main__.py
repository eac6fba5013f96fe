"""``python -m benchmarks``: run them, print a table, keep the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import hops, w1, waiting
from benchmarks.measuring import ALONE, Measurement, measure, memory_per_live_plan
from benchmarks.rows import RESULTS, Row, relate, row, save, table
from benchmarks.systems import ROOT, SYSTEMS, Sync, SystemName

DEDICATED_LIMIT = 100
"""Plans of a process each: more do not fit into an ordinary machine's memory."""
SHOWS_IN_MEMORY = 1000
"""Fewer parked plans than this do not show in the memory of a process."""
QUICK_ALONE = 50
WORKLOADS = ("w1", "w4")
CONCURRENCIES = (50, 200)
"""Calls of a reasoner at once: as many as there are by default, and as many as are of use in one process."""

progress = Console(stderr=True)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, help="(all; w1 alone where --n, --systems or --client is given)"
    )
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
    parser.add_argument("--waiting", type=int, help="w4: plans that wait for the model (1000; 100 when quick)")
    parser.add_argument("--reasoners", type=int, help="w4: reasoners of the pool (4; 2 when quick)")
    parser.add_argument("--concurrency", type=int, nargs="+", help="w4: calls of a reasoner at once (50 200; 20 quick)")
    parser.add_argument("--no-save", action="store_true", help="leave benchmarks/results as it is")
    parser.add_argument(
        "--hops", action="store_true", help="instead: where the time of one plan alone goes, hop by hop"
    )
    options = parser.parse_args(given)
    of_w1 = options.n or options.systems or options.client
    options.workloads = options.workloads or (["w1"] if of_w1 else list(WORKLOADS))
    options.n = options.n or ([1, 100, 500] if options.quick else [1, 100, 1000, 10_000])
    options.systems = options.systems or (["shared", "baseline"] if options.quick or options.hops else list(SYSTEMS))
    options.waiting = options.waiting or (100 if options.quick else 1000)
    options.reasoners = options.reasoners or (2 if options.quick else 4)
    options.concurrency = options.concurrency or ([20] if options.quick else list(CONCURRENCIES))
    counts = [*options.n, options.repeat, options.waiting, options.reasoners, *options.concurrency]
    if min(counts) < 1:
        parser.error("--n, --repeat, --waiting, --reasoners and --concurrency are at least 1")
    return options


async def run(options: argparse.Namespace) -> list[Row]:
    """Measure W1 as the command line asks for it."""
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


async def run_waiting(options: argparse.Namespace) -> list[Row]:
    """Measure W4 as the command line asks for it."""
    sizes = [_size(options, concurrency) for concurrency in options.concurrency]
    found: dict[waiting.Size, list[waiting.Waiting]] = {size: [] for size in sizes}
    for number in range(options.repeat):
        for size in sizes:
            _say(
                f"run {number + 1} of {options.repeat}: {_plans(size.waiting)} wait for a model that takes "
                f"{size.model_seconds:g} s, {size.reasoners} reasoners x {size.concurrency}, sync {options.sync}"
            )
            measured = await waiting.measure(size, options.sync)
            found[size].append(measured)
            others, idle = measured.beside.percentile_ms(99), measured.idle.percentile_ms(99)
            _say(
                f"  {measured.decisions_per_second:,.1f} decisions/s, {measured.pool_ratio:.0%} of the ideal; "
                f"others p99 {others:,.1f} ms, idle {idle:,.1f} ms"
            )
    return [waiting.row(runs, options.sync) for runs in found.values()]


def _size(options: argparse.Namespace, concurrency: int) -> waiting.Size:
    size = waiting.Size(options.waiting, reasoners=options.reasoners, concurrency=concurrency)
    return replace(size, model_seconds=0.5, others=50, seconds=3.0) if options.quick else size


def main(given: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    options = arguments(given)
    if options.hops:
        Console().print(uvloop.run(hops.run(options.systems, options.sync)))
        return
    if "w1" in options.workloads:
        _show("w1", uvloop.run(run(options)), table, options)
    if "w4" in options.workloads:
        _show("w4", uvloop.run(run_waiting(options)), waiting.table, options)


def _show(workload: str, rows: list[Row], tell: Callable[[list[Row]], Table], options: argparse.Namespace) -> None:
    Console().print(tell(rows))
    if not options.no_save:
        _say(f"rows: {save(workload, rows, RESULTS).relative_to(ROOT)}")


def _plans(n: int) -> str:
    return "plans one after the other" if n == 1 else f"{n:,} plans"


def _say(*words: Any) -> None:
    progress.print(*words, highlight=False)


if __name__ == "__main__":
    main(sys.argv[1:])
