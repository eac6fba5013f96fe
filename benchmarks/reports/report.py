"""Renders tables for a terminal of 80 columns and for the README."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.reports.rows import Row
from benchmarks.workloads.catalogue import TITLES

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- benchmarks: python -m benchmarks --report -->", "<!-- /benchmarks -->"
NAMES = {
    "shared": "plancast",
    "dedicated": "plancast, dedicated",
    "baseline": "baseline",
    "restate": "Restate",
    "langgraph": "LangGraph",
    "dbos": "DBOS",
}
"""Display names, in the order of listing."""
OURS = ("shared", "dedicated", "baseline")
MORE: dict[str, dict[str, str]] = {
    "w1": {"of base": "ratio_to_baseline"},
    "w2": {"of base": "ratio_to_baseline"},
    "w3": {"KB/live plan": "rss_per_live_plan_kb"},
    "w4": {"slots": "slots", "of ideal": "pool_ratio", "others p99 x": "others_p99_ratio"},
    "w5": {"cold ms": "cold_ms", "turn ms": "p50_turn_ms"},
    "w6": {"moves p50 ms": "recovery_p50_ms", "p99 ms ": "recovery_p99_ms", "lost": "lost"},
    "w7": {
        "memory x": "memory_ratio",
        "wake ms": "activation_p50_ms",
        "read ms": "kv_read_p50_ms",
        "wake x": "activation_ratio",
    },
    "w8": {
        "written MB": "written_mb",
        "call x": "call_ratio",
        "CPU x": "call_cpu_ratio",
        "small p99": "small_p99_ms",
        "hosts MB": "hosts_rss_mb",
    },
    "w9": {
        "written MB": "written_mb",
        "back ms": "back_p50_ms",
        "wake ms": "wake_ms",
        "empty MB": "empty_host_mb",
        "with plan": "holding_host_mb",
        "after": "passivated_host_mb",
    },
    "effects": {"of plain": "ratio_to_plain"},
    "dedicated": {"first turn ms": "first_turn_p50_ms", "MB/host": "host_mb", "of empty": "empty_actor_mb"},
    "scaleout": {"x": "scaleout_ratio"},
    "upgrade": {"usual p50 ms": "usual_p50_ms", "max wait ms": "wait_max_ms"},
    "idle": {"% of a core": "cpu_percent"},
}
"""Additional columns of a workload, by heading."""


def synced(row: Row) -> bool:
    """Return True when every acknowledged write was synced to disk."""
    return bool(row["sync"] == "always")


def tables(rows: Sequence[Row], title: str) -> list[Table]:
    """Render a table for each workload."""
    found = []
    for workload, about in TITLES.items():
        of_it = [row for row in rows if row["workload"] == workload]
        if of_it:
            found.append(_table(of_it, f"{workload}: {about} ({title})", MORE.get(workload, {})))
    return found


COLUMNS = {
    "plans/s": "plans_per_second",
    "p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "MB": "rss_mb",
}


def _table(rows: Sequence[Row], title: str, more: Mapping[str, str]) -> Table:
    shown = Table(
        title=title, title_justify="left", min_width=60, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    common = {name: key for name, key in COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    fields = {**common, **{name: key for name, key in more.items() if any(key in row for row in rows)}}
    shown.add_column("system")
    shown.add_column("sync", no_wrap=True)
    shown.add_column("N", justify="right", no_wrap=True)
    for name in fields:
        shown.add_column(name, justify="right", no_wrap=name in COLUMNS, overflow="fold")
        if name == "plans/s":
            shown.add_column("±%", justify="right", no_wrap=True)
    for row in sorted(rows, key=_place):
        cells = []
        for name, key in fields.items():
            cells.append(figure(row.get(key)))
            if name == "plans/s":
                cells.append(_spread(row))
        shown.add_row(_label(row), row["sync"], f"{row['n']:,}", *cells)
    return shown


def _label(row: Row) -> str:
    variants = [str(row[name]) for name in ("variant", "concurrency") if row.get(name) not in (None, "")]
    return " ".join([row["system"], *variants])


def _place(row: Row) -> tuple[int, str, int]:
    order = list(NAMES)
    return row["n"], row["sync"], order.index(row["system"]) if row["system"] in order else len(order)


def _spread(row: Row) -> str:
    low, high = row.get("plans_per_second_spread") or (0, 0)
    return f"{50 * (high - low) / row['plans_per_second']:.0f}" if row.get("runs", 1) > 1 and low else ""


def figure(value: float | None) -> str:
    """Format a number with about three digits; empty for None."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 or isinstance(value, int) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def markdown(rows: Sequence[Row]) -> str:
    """Render the README's table: every system at equal durability, from the rows of side-by-side runs."""
    if not rows:
        return "Not measured yet."
    lines = [
        "| | W1, plans/s | W1, p99 | W2, plans/s | one plan alone, p50 | memory |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for heading, always in (("every write synced to disk", True), ("not synced before it is acknowledged", False)):
        lines.append(f"| *{heading}* | | | | | |")
        of_it = [row for row in rows if synced(row) == always]
        lines += [_line(system, [row for row in of_it if row["system"] == system]) for system in NAMES]
    facts = max(rows, key=lambda row: str(row.get("date", "")))
    machine, runs = facts["machine"], min(row.get("runs", 1) for row in rows)
    conditions = (
        f"{facts['date'][:10]}, {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB; "
        f"medians of {runs} runs; – was not measured. {_counts(rows)}"
    )
    return "\n".join([line for line in lines if line] + ["", conditions])


def _line(system: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    w1, w2, w5 = (
        max((row for row in rows if row["workload"] == name), key=lambda row: int(row["n"]), default={})
        for name in ("w1", "w2", "w5")
    )
    cells = (
        figure(w1.get("plans_per_second")),
        _with(figure(w1.get("p99_ms")), "ms"),
        figure(w2.get("plans_per_second")),
        _with(figure(w5.get("p50_ms")), "ms"),
        _with(figure(w1.get("rss_mb")), "MB"),
    )
    name = f"**{NAMES[system]}**" if system == "shared" else NAMES[system]
    default = " (its default)" if system != "baseline" and any(row.get("is_default") for row in rows) else ""
    return f"| {name}{default} | {' | '.join(cell or '–' for cell in cells)} |"


def _with(value: str, unit: str) -> str:
    return f"{value} {unit}" if value else ""


def _counts(rows: Sequence[Row]) -> str:
    """Describe the numbers of plans of W1, and the systems with fewer because they take too long."""
    largest: dict[str, int] = {}
    for row in rows:
        if row["workload"] == "w1":
            largest[row["system"]] = max(row["n"], largest.get(row["system"], 0))
    if not largest:
        return ""
    most = max(largest.values())
    fewer = [f"{NAMES.get(system, system)}, which is given {n:,}" for system, n in largest.items() if n < most]
    return f"W1 with {most:,} plans at once{' but for ' if fewer else ''}{'; '.join(fewer)}."


def rewrite(rows: Sequence[Row], path: Path = README) -> bool:
    """Write the table between the markers of a README; return False when it has none.

    Without rows the README is not changed.
    """
    text = path.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        return False
    if rows:
        block = f"{BEGIN}\n{markdown(rows)}\n{END}"
        path.write_text(pattern.sub(lambda _: block, text))
    return True
