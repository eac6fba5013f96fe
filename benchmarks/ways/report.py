"""Renders the comparison: a table for a terminal, one for docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.reports.report import figure
from benchmarks.reports.rows import Row
from benchmarks.sharding.tables import Table
from benchmarks.ways import lines
from benchmarks.ways.catalogue import WAYS

COLUMNS = {
    "plans_per_second": "W1, plans/s",
    "p50_ms": "one plan alone, p50 ms",
    "p99_ms": "W4, p99 ms",
    "process_ms": "W1 in one process, CPU ms per plan",
    "cpu_ms": "W1, CPU ms per plan",
}
SHORT = {"plans_per_second": "W1/s", "p50_ms": "W5", "p99_ms": "W4", "process_ms": "1 process", "cpu_ms": "CPU"}
DECIDING = ("plans_per_second", "process_ms", "p50_ms", "p99_ms")
ENOUGH = 10.0
"""Percent of W1's rate, of a plan's latency, or of W4's p99, that a way has to bring."""
NAME = "ways: python -m benchmarks.ways --write"
"""Of the markers in the document."""


@dataclass(frozen=True)
class Measured(Table):
    """A table with the conditions of its figures below it."""

    conditions: str = ""

    def markdown(self) -> str:
        """Render for a document."""
        return "\n\n".join(filter(None, [super().markdown(), self.conditions]))


def gains(row: Row) -> list[tuple[float, float, float]]:
    """Return how many percent worse each deciding figure is without the way: median, minimum, maximum."""
    found = []
    for name in DECIDING:
        if name in row:
            sign = -1 if name == "plans_per_second" else 1
            change, *spread = (sign * each for each in _change(row, name))
            found.append((change, min(spread), max(spread)))
    return found


def verdict(row: Row) -> str:
    """Return ``yes`` if the way brings enough by any figure, ``no`` if by none; ``unclear`` if the rounds disagree."""
    found = gains(row)
    if any(low >= ENOUGH for _, low, _ in found):
        return "yes"
    return "unclear" if any(high >= ENOUGH for _, _, high in found) else "no"


def terminal(rows: Sequence[Row]) -> Table:
    """Render the rows of a run, a line for each figure."""
    columns = ["way", "lines", "sync", "", "on", "off", "%", "min, max", f"{ENOUGH:.0f} %"]
    cells = []
    for row in rows:
        for name, title in SHORT.items():
            if name in row:
                change, *spread = (f"{each:+.0f}" for each in _change(row, name))
                values = [figure(row[name]), figure(row[f"{name}_off"]), change, ", ".join(spread), verdict(row)]
                cells.append([row["variant"], f"{row['lines']:,}", row["sync"], title, *values])
    title = "W1: plans/s, and CPU ms per plan; W5: p50 ms; W4: p99 ms of W1's plans; change when off in %"
    return Table("ways", title, columns, cells, words=(0, 2, 3, 8))


def document(rows: Sequence[Row]) -> Measured:
    """Render docs/performance.md's table: the lines of all ways as they are now, and the figures of stored rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    rows = [row for name in WAYS for row in found.get(name, ())]
    columns = ["fast path", "beside", "lines"]
    measured = {name: title for name, title in COLUMNS.items() if any(name in row for row in rows)}
    if rows:
        columns += ["sync", *(f"{each}: with → without" for each in measured.values())]
    cells = []
    for name, way in WAYS.items():
        for row in found.get(name) or [{}]:
            listed = [way.title, way.beside, f"{lines.count(way):,}"]
            if rows:
                listed += [row.get("sync", ""), *(_cell(row, each) for each in measured)]
            cells.append(listed)
    return Measured(NAME, "", columns, cells, words=(0, 1, 3), conditions=conditions(rows))


def conditions(rows: Sequence[Row]) -> str:
    """Describe dates, machine, durability and number of runs of stored rows."""
    if not rows:
        return ""
    days = sorted({row["date"][:10] for row in rows})
    machines = {_machine(row["machine"]): None for row in rows}
    durabilities = {f"sync {row['sync']}: {row['durability']}": None for row in rows}
    runs = min(row["runs"] for row in rows)
    medians = f"Medians of {runs} alternating pairs of runs" if runs > 1 else "One pair of runs"
    return (
        f"{' to '.join(dict.fromkeys([days[0], days[-1]]))}, {'; '.join(machines)}; {'; '.join(durabilities)}. "
        f"{medians}, W1 with {rows[0]['n']:,} plans at once; in brackets minimum "
        "and maximum of the change."
    )


def _machine(facts: Mapping[str, object]) -> str:
    return f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gb']:.0f} GB, Python {facts['python']}"


def _cell(row: Row, name: str) -> str:
    if name not in row:
        return ""
    change, low, high = _change(row, name)
    spread = f" ({low:+.0f}, {high:+.0f})" if f"{name}_change_spread" in row else ""
    return f"{figure(row[name])} → {figure(row[f'{name}_off'])}, {change:+.0f} %{spread}"


def _change(row: Row, name: str) -> tuple[float, float, float]:
    """Return the change without the way: median, minimum and maximum over the rounds."""
    change = row[f"{name}_change"]
    low, high = row.get(f"{name}_change_spread") or (change, change)
    return change, low, high
