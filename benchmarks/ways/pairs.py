"""Runs a workload with a fast path, then without it, each in processes of its own, and compares the figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.reports.rows import Row, Say, Sync
from benchmarks.systems.ending import dying_with_parent
from benchmarks.systems.launcher import durability
from benchmarks.systems.scratch import ROOT, scratch
from benchmarks.ways import lines
from benchmarks.ways.catalogue import WAYS, Way
from benchmarks.ways.run import SIZES
from benchmarks.ways.switches import FOLDER, WAY

SITE = ROOT / "benchmarks" / "ways" / "site"
FIGURES = ("plans_per_second", "p50_ms", "p99_ms", "process_ms", "cpu_ms")
TAIL = 20
"""Lines of a failed run's output that its error message quotes."""
State = Literal["on", "off"]


async def measure(name: str, sync: Sync, size: str, measures: Collection[str], say: Say) -> Row:
    """Run with a way, then without it; return one row.

    ``<figure>_off`` is a figure without the way, ``<figure>_change`` what being without it changes, in percent.

    Raises:
        BenchmarkFailed: a run has failed; or the way was used when it was off, or not when it was on.
    """
    on = await _run(name, "on", sync, size, measures, say)
    off = await _run(name, "off", sync, size, measures, say)
    row: Row = {
        "workload": "ways",
        "system": "shared",
        "n": SIZES[size].plans,
        "variant": name,
        **durability(sync),
        "lines": lines.count(WAYS[name]),
    }
    for figure in FIGURES:
        if figure in on:
            change = round(100 * (off[figure] / on[figure] - 1), 1)
            row |= {figure: on[figure], f"{figure}_off": off[figure], f"{figure}_change": change}
    return row


async def _run(name: str, state: State, sync: Sync, size: str, measures: Collection[str], say: Say) -> dict[str, float]:
    with scratch() as folder:
        used = folder / "used"
        used.mkdir()
        into = folder / "figures.json"
        command = ["-m", "benchmarks.ways.run", str(into), "--size", size, "--sync", sync, "--measures", *measures]
        environment = _environment(name, state, used)
        with (folder / "output").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=ROOT, env=environment, stdout=output, stderr=output,
                preexec_fn=dying_with_parent(),
            )  # fmt: skip
            try:
                code = await process.wait()
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    await process.wait()
        if code:
            told = (folder / "output").read_text(errors="replace").splitlines()[-TAIL:]
            raise BenchmarkFailed("\n".join([f"the run with {name} {state} ended with exit code {code}:", *told]))
        check(WAYS[name], state, {each.name for each in used.iterdir()})
        found: dict[str, float] = json.loads(into.read_text())
    say(f"{state}: {', '.join(f'{figure} {value:,.2f}' for figure, value in found.items())}")
    return found


def _environment(name: str, state: State, used: Path) -> dict[str, str]:
    path = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, WAY: f"{name} {state}", FOLDER: str(used)}
    return {**environment, **WAYS[name].settings} if state == "off" else environment


def check(way: Way, state: State, used: Collection[str]) -> None:
    """Check that a run has used a way exactly if it was on.

    Raises:
        BenchmarkFailed: the message lists the functions.
    """
    if state == "off":
        if wrong := sorted(set(used)):
            raise BenchmarkFailed(f"the way was off, but these functions were called: {', '.join(wrong)}")
        return
    if missing := sorted(set(way.used).difference(used)):
        raise BenchmarkFailed(f"the way was on, but these functions were not called: {', '.join(missing)}")
