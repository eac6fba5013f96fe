"""``python -m benchmarks``: runs benchmarks, prints tables, stores rows, draws charts."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.reports import report, targets
from benchmarks.reports.rounds import Job, run
from benchmarks.reports.rows import BENCH, PEERS, RESULTS, Row, Say, Sync, load, save
from benchmarks.systems.ending import supervised
from benchmarks.workloads.catalogue import MODULES, SIDE_BY_SIDE, measure_of

SYNCS: tuple[Sync, ...] = ("default", "always")
SYSTEMS = ("shared", "dedicated", "baseline")
progress = Console(stderr=True)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=list(MODULES), help="(all; only w1 with options of w1, such as --n)"
    )
    parser.add_argument(
        "--scale", choices=("quick", "short", "full"), default="short", help="size of each workload (short)"
    )
    parser.add_argument(
        "--sync", nargs="+", choices=SYNCS, help="when nats-server syncs to disk (default; w1: default always)"
    )
    parser.add_argument("--repeat", type=int, help="runs, alternating; rows are medians (1; 3 with --peers)")
    parser.add_argument(
        "--peers", nargs="*", metavar="PEER", help="instead: run ours and these peers side by side (all)"
    )
    parser.add_argument("--n", type=int, nargs="+", help="w1: plans at once; w8: calls; w9: answers")
    parser.add_argument(
        "--answer-mb", type=float, nargs="+", default=(), help="w9: sizes of answers, repeated in this order (0.9)"
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="w1, w5: our systems to run (shared baseline)")
    parser.add_argument("--client", action="store_true", help="w1: submit through plancast.Client, not the bus")
    parser.add_argument(
        "--no-save", action="store_true", help="do not store rows in benchmarks/results; implied by --scale quick"
    )
    parser.add_argument(
        "--hops", action="store_true", help="instead: measure the latency of one plan alone, hop by hop"
    )
    parser.add_argument(
        "--report", action="store_true", help="instead: build tables, charts and README from the stored rows"
    )
    parser.add_argument("--targets", action="store_true", help="instead: compare the stored rows with the targets")
    options = parser.parse_args(given)
    side_by_side = options.peers is not None
    of_w1 = options.n or options.client
    if options.workloads is None:
        options.workloads = list(SIDE_BY_SIDE) if side_by_side else ["w1"] if of_w1 else list(MODULES)
        if options.systems and not side_by_side:
            options.workloads = ["w1"] if of_w1 else ["w1", "w5"]
    if side_by_side and not set(options.workloads) <= set(SIDE_BY_SIDE):
        parser.error(f"peers can run only {', '.join(SIDE_BY_SIDE)}")
    options.repeat = options.repeat or (3 if side_by_side else 1)
    if min([*(options.n or ()), options.repeat]) < 1 or any(size <= 0 for size in options.answer_mb):
        parser.error("--n and --repeat are at least 1, --answer-mb is above 0")
    return options


def our_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the jobs for our systems."""
    return [
        Job(f"{workload}, sync {sync}", partial(_measure, workload, sync, options))
        for workload in options.workloads
        for sync in options.sync or (SYNCS if workload == "w1" else SYNCS[:1])
    ]


async def _measure(workload: str, sync: str, options: argparse.Namespace, say: Say) -> list[Row]:
    chosen: dict[str, Any] = {}
    if workload == "w1":
        chosen = {"counts": options.n or (), "through_client": options.client}
    if workload in ("w8", "w9"):
        chosen = {"counts": options.n or ()}
    if workload == "w9":
        chosen["megabytes"] = options.answer_mb
    if workload in ("w1", "w5") and options.systems:
        chosen["systems"] = options.systems
    return await measure_of(workload)(options.scale, sync, say, **chosen)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when a measurement failed."""
    options = arguments(given)
    if options.targets:
        Console().print(targets.table(targets.Results.stored()))
        return 0
    if options.report:
        _report()
        return 0
    if options.hops:
        from benchmarks.workloads import hops  # imports Ray, which reports do not need

        syncs: Sequence[Sync] = options.sync or SYNCS[:1]
        for sync in syncs:
            Console().print(uvloop.run(hops.run(options.systems or ["shared", "baseline"], sync)))
        return 0
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    failures: list[str] = []
    path = RESULTS / (BENCH if options.peers is None else PEERS)
    if options.peers is None:
        jobs = our_jobs(options)
    else:
        from benchmarks.reports import sides

        there = sides.find()
        wanted = {name: there[name] for name in options.peers or there if name in there}
        failures += [f"there is no peer {name}" for name in options.peers if name not in there]
        ready, unready = sides.set_up(wanted, _say)
        failures += unready
        counts = options.n or ([20] if options.scale == "quick" else list(sides.COUNTS))
        jobs = sides.jobs(ready, options.workloads, counts, options.scale, options.n or ())
    saved = not options.no_save and options.scale != "quick"
    keep = partial(save, path=path) if saved else _keep_nothing
    found = uvloop.run(run(jobs, options.repeat, progress, keep))
    _show(found.rows, "this run")
    if saved and found.rows:
        _say(f"rows: benchmarks/results/{path.name}")
        _draw()
    for failure in [*failures, *found.failures]:
        progress.print(failure, style="red", highlight=False, markup=False)
    return 1 if failures or found.failures else 0


def _report() -> None:
    bench, side_by_side = load(RESULTS / BENCH), load(RESULTS / PEERS)
    _show(bench, "ours and the baseline")
    _show(side_by_side, "side by side")
    _draw()
    if not report.rewrite(side_by_side):
        _say("README.md has no markers for the table")


def _show(rows: Sequence[Row], title: str) -> None:
    for table in report.tables(rows, title):
        Console().print(table)
        Console().print()


def _draw() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        _say("no charts: matplotlib is missing; `make bench` installs it")
        return
    from benchmarks.reports import charts

    for path in charts.draw(load(RESULTS / BENCH), load(RESULTS / PEERS), RESULTS / "charts"):
        _say(f"chart: benchmarks/results/charts/{path.name}")


def _keep_nothing(rows: list[Row]) -> None:
    pass


def _say(words: str) -> None:
    progress.print(words, highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(supervised(main))
