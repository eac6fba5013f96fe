"""``python -m benchmarks.sharding``: a capacity plan from the figures of one machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import uvloop
from rich.console import Console

from benchmarks.reports.rows import RESULTS, save
from benchmarks.sharding import figures, report, streams
from benchmarks.sharding.model import Limits, Load, Prices, plan
from benchmarks.sharding.tables import Table, show, write
from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import ROOT

DOCUMENT = ROOT / "docs" / "scale.md"
BALANCE_IDS, MOVED_IDS = 200_000, 40_000
MEASURED_PLANS, MEASURED_KEPT = 10_000, 300_000
Options = TypeVar("Options", Load, Limits, Prices)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line: an option for each field of load, limits and prices, and a few more."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding", description=__doc__)
    for kind in (Load(), Limits(), Prices()):
        group = parser.add_argument_group(type(kind).__name__.lower())
        for name, value in vars(kind).items():
            read = int if isinstance(value, int) else float
            group.add_argument(f"--{name.replace('_', '-')}", type=read, default=value, help=f"({value})")
    parser.add_argument("--ids", type=int, default=BALANCE_IDS, help="number of correlation ids for the balance tables")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="also write the tables into docs/scale.md")
    parser.add_argument("--measure", action="store_true", help="measure the streams first; takes two minutes")
    parser.add_argument("--no-simulation", action="store_true", help="compute the plan only")
    return parser.parse_args(given)


def tables(options: argparse.Namespace, found: figures.Figures) -> list[Table]:
    """Build all tables."""
    load, limits, prices = _of(Load, options), _of(Limits, options), _of(Prices, options)
    capacity = plan(load, found, limits, prices)
    listed = [
        report.figures_table(found),
        report.plan_table(load, found, limits, prices),
        report.limits_table(load, found, limits),
        report.assumptions_table(load, limits, prices),
        report.needed_table(found),
    ]
    if options.no_simulation:
        return listed
    return [
        *listed,
        report.balance_table(options.ids, capacity.shards, capacity.hosts, options.seed),
        report.groups_table(options.ids, 8, 8, options.seed),
        report.moves_table(min(options.ids, MOVED_IDS), options.seed),
        report.failover_table(capacity, found, options.seed),
        report.headroom_table(capacity, found, options.seed),
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables, and measure or write the page if requested."""
    options = arguments(given)
    console = Console()
    if options.measure:
        rows = uvloop.run(streams.measure(MEASURED_PLANS, MEASURED_KEPT, lambda text: console.print(text)))
        save(rows, RESULTS / figures.STREAMS)
    listed = tables(options, figures.read(RESULTS))
    show(listed, console)
    if options.write:
        missing = write(listed, DOCUMENT)
        console.print(f"{DOCUMENT.relative_to(ROOT)} is up to date" + f", without {', '.join(missing)}" * bool(missing))


def _of(kind: type[Options], options: argparse.Namespace) -> Options:
    values: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(kind)}
    return kind(**values)


if __name__ == "__main__":
    sys.exit(supervised(main))
