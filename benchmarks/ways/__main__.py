"""``python -m benchmarks.ways``: measures what each fast path brings beside the plain way of doing the same.

W1, one plan alone and W4 run with the fast path and without it, alternating. Nothing in the product turns these paths
off: the processes of a run replace functions when they import them. Each run checks that the path was used, or was not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

import uvloop
from rich.console import Console

from benchmarks.reports.rounds import Job, run
from benchmarks.reports.rows import RESULTS, Row, Say, Sync, load, save, stamped
from benchmarks.sharding.tables import show, write
from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import ROOT
from benchmarks.ways import pairs, report
from benchmarks.ways.catalogue import WAYS
from benchmarks.ways.run import MEASURES

DOCUMENT = ROOT / "docs" / "performance.md"
STORED = RESULTS / "ways.json"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ways", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="NAME", help="(all)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of each; figures are medians (3)")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES), help="(all)")
    parser.add_argument(
        "--sync", nargs="+", choices=("default", "always"), help="sync_interval (as listed for each in catalogue.py)"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test with few plans; stores no rows")
    parser.add_argument("--no-save", action="store_true", help="do not store rows in benchmarks/results")
    parser.add_argument("--json", action="store_true", help="print rows as JSON instead of a table")
    parser.add_argument("--lines", action="store_true", help="instead: measure nothing, and show the stored rows")
    parser.add_argument("--write", action="store_true", help="put lines and stored rows into docs/performance.md")
    options = parser.parse_args(given)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def jobs(options: argparse.Namespace) -> list[Job]:
    """Return a job for each way and durability, a pair of runs each."""
    chosen: Sequence[Sync] | None = options.sync
    return [
        Job(f"{name}, sync {sync}", partial(_measure, name, sync, options))
        for name in options.only
        for sync in chosen or WAYS[name].syncs
    ]


async def _measure(name: str, sync: Sync, options: argparse.Namespace, say: Say) -> list[Row]:
    return [await pairs.measure(name, sync, "quick" if options.quick else "full", options.measures, say)]


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when a measurement failed."""
    options = arguments(given)
    progress = Console(stderr=True)
    failures: list[str] = []
    if options.lines:
        rows = [row for row in load(STORED) if row["variant"] in options.only]
    else:
        saved = not (options.no_save or options.quick)
        keep = partial(save, path=STORED) if saved else _keep_nothing
        found = uvloop.run(run(jobs(options), options.rounds, progress, keep))
        rows, failures = stamped(found.rows), found.failures
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show([report.terminal(rows) if rows else report.document([])], Console())
        Console().print(report.conditions(rows), highlight=False)
    if options.write:
        missing = write([report.document(load(STORED))], DOCUMENT)
        progress.print(f"{DOCUMENT.relative_to(ROOT)} {'has no markers' if missing else 'is up to date'}")
    for failure in failures:
        progress.print(failure, style="red", highlight=False, markup=False)
    return 1 if failures else 0


def _keep_nothing(rows: list[Row]) -> None:
    pass


if __name__ == "__main__":
    sys.exit(supervised(main))
