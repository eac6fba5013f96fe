"""Draws charts of rows, as PNG with a white background, readable on light and dark pages.

Colours are those of Okabe and Ito, which are safe for colour-blind readers; each system has a marker too. Only
existing rows are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.reports.report import NAMES, OURS, figure, synced
from benchmarks.reports.rows import Row

INK, PALE, FAINT = "#24292f", "#57606a", "#d0d7de"
LOOKS = {
    "shared": ("#0072B2", "o"),
    "dedicated": ("#56B4E9", "P"),
    "baseline": ("#6e7781", "D"),
    "restate": ("#D55E00", "s"),
    "langgraph": ("#CC79A7", "^"),
    "dbos": ("#009E73", "v"),
}
STYLE: dict[str, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 160,
}
SYNCED, NOT_SYNCED = "every write synced to disk", "not synced before it is acknowledged"
PERCENTILES = "●  median     |  99th percentile"
MEMORY_N = 10_000


def draw(bench: Sequence[Row], peers: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the charts for which rows exist; return their files."""
    together = beside(bench, peers)
    found = []
    with pyplot.rc_context(STYLE):
        for name, chart in (
            ("throughput", throughput(together)),
            ("latency", latency(together)),
            ("memory", memory(together)),
            ("recovery", recovery([*bench, *(row for row in peers if row["system"] not in OURS)])),
        ):
            if chart is not None:
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{name}.png"
                chart.savefig(path, bbox_inches="tight", pad_inches=0.15, metadata={"Software": None})
                pyplot.close(chart)
                found.append(path)
    return found


def beside(bench: Sequence[Row], peers: Sequence[Row]) -> list[Row]:
    """Return the peers' rows, and our rows of other N from the same kind of machine."""

    def place(row: Row) -> tuple[Any, ...]:
        return row["workload"], row["system"], row["n"], row["sync"]

    kinds = {_kind(row) for row in peers}
    known = {place(row) for row in peers}
    rows = [*peers, *(row for row in bench if place(row) not in known and (not kinds or _kind(row) in kinds))]
    return [row for row in rows if not row.get("variant") and row["system"] in LOOKS]


def _kind(row: Row) -> tuple[Any, Any]:
    machine = row.get("machine") or {}
    return machine.get("cpu"), machine.get("cores")


def throughput(rows: Sequence[Row]) -> Any:
    """Draw plans per second against N, a panel for each durability."""
    drawn = [row for row in rows if row["workload"] == "w1" and row["plans_per_second"]]
    panels = [(title, [row for row in drawn if synced(row) == kind]) for title, kind in _PANELS]
    panels = [(title, found) for title, found in panels if found]
    if not panels:
        return None
    rates = [row["plans_per_second"] for row in drawn]
    low, high = min(rates) / 2, max(rates) * 2
    chart, axes = pyplot.subplots(1, len(panels), figsize=(4.8 * len(panels), 4), sharey=True, squeeze=False)
    for axis, (title, found) in zip(axes[0], panels, strict=True):
        ends = []
        for system, (colour, marker) in LOOKS.items():
            points = sorted((row["n"], row["plans_per_second"]) for row in found if row["system"] == system)
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, linewidth=1.8, markersize=5.5)
                ends.append((*points[-1], system))
        axis.set(xscale="log", yscale="log", title=title, xlabel="plans at once")
        counts = sorted({row["n"] for row in found})
        axis.set_xlim(counts[0] / 1.4, counts[-1] * 1.4)
        axis.set_xticks([count for count in counts if _is_power(count)] or counts)
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            each.set_minor_formatter(NullFormatter())
        axis.tick_params(which="minor", length=0)
        _label_ends(axis, ends, counts[-1], (high / low) ** 0.08)
    axes[0][0].set_ylim(low, high)
    axes[0][0].set_ylabel("plans/s")
    chart.suptitle("W1: throughput", x=0.02, ha="left", fontweight="bold")
    chart.tight_layout(w_pad=5)
    return chart


def _is_power(count: int) -> bool:
    return str(count).strip("0") == "1"


def _label_ends(axis: Any, ends: Sequence[tuple[float, float, str]], right: float, apart: float) -> None:
    """Label the lines at their right ends, each label above the previous one by at least the factor ``apart``."""
    below = 0.0
    for _, rate, system in sorted(ends, key=lambda end: end[1]):
        height = below = max(rate, below * apart)
        axis.annotate(
            NAMES[system],
            (right * 1.4, height),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=LOOKS[system][0],
            fontweight="bold" if system == "shared" else "normal",
            annotation_clip=False,
        )


_PANELS = ((SYNCED, True), (NOT_SYNCED, False))
_ORDER = [name for name in NAMES if name in LOOKS]


def latency(rows: Sequence[Row]) -> Any:
    """Draw p50 and p99 of one plan alone."""
    drawn = [row for row in rows if row["workload"] == "w5"]
    if not drawn:
        return None

    def line(axis: Any, at: int, row: Row, colour: str) -> None:
        _median_and_tail(axis, at, row["p50_ms"], row["p99_ms"], colour)

    chart = _listed(drawn, line, "W5: one plan alone, latency in ms", PERCENTILES)
    for axis in chart.axes:
        axis.set_xscale("log")
        axis.set_xlim(
            min(row["p50_ms"] for row in drawn) / 1.6, max(max(row["p99_ms"], row["p50_ms"]) for row in drawn) * 1.9
        )
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    return chart


def memory(rows: Sequence[Row]) -> Any:
    """Draw the memory of all processes after W1's plans."""
    largest: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: int(row["n"])):
        if row["workload"] == "w1" and row.get("rss_mb") and row["n"] <= MEMORY_N:
            largest[row["system"], row["sync"]] = row
    if not largest:
        return None
    drawn = list(largest.values())

    def bar(axis: Any, at: int, row: Row, colour: str) -> None:
        axis.barh([at], [row["rss_mb"]], color=colour, height=0.55)
        count = "" if row["n"] == MEMORY_N else f"  (N = {row['n']:,})"
        label = f"{row['rss_mb']:,.0f}{count}"
        axis.annotate(label, (row["rss_mb"], at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)

    about = f"all processes, server or database included, after {MEMORY_N:,} plans"
    chart = _listed(drawn, bar, "W1: memory in MB", about)
    for axis in chart.axes:
        axis.set_xlim(0, max(row["rss_mb"] for row in drawn) * 1.2)
    return chart


def recovery(rows: Sequence[Row]) -> Any:
    """Draw the time until plans move again after their process was killed."""
    drawn = [row for row in rows if row["workload"] == "w6" and row.get("recovery_p99_ms") is not None]
    if not drawn:
        return None
    drawn.sort(key=lambda row: (_ORDER.index(row["system"]), row["n"], row["sync"]), reverse=True)
    chart, axis = pyplot.subplots(figsize=(7, 1.3 + 0.5 * len(drawn)))
    for at, row in enumerate(drawn):
        p50, p99 = row["recovery_p50_ms"] / 1000, row["recovery_p99_ms"] / 1000
        _median_and_tail(axis, at, p50, p99, LOOKS[row["system"]][0])
    axis.set_yticks(range(len(drawn)), [_killed(row) for row in drawn])
    axis.set_ylim(-0.6, len(drawn) - 0.3)
    axis.set_xlim(0, max(row["recovery_p99_ms"] for row in drawn) / 1000 * 1.2)
    axis.grid(axis="y", visible=False)
    chart.suptitle("W6: killed, seconds until its plans move again", x=0.02, ha="left", fontweight="bold")
    chart.supxlabel(PERCENTILES, fontsize=9, color=PALE)
    chart.tight_layout()
    return chart


def _killed(row: Row) -> str:
    return f"{NAMES[row['system']]}: {row.get('variant') or 'host'}, {row['n']:,} plans, sync {row['sync']}"


def _median_and_tail(axis: Any, at: int, p50: float, p99: float, colour: str) -> None:
    axis.plot([p50, p99], [at, at], color=colour, linewidth=2.5, alpha=0.45, solid_capstyle="round")
    axis.plot([p50], [at], "o", color=colour, markersize=8)
    axis.plot([p99], [at], "|", color=colour, markersize=13, markeredgewidth=2.5)
    axis.annotate(figure(p50), (p50, at), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9)
    axis.annotate(
        figure(p99), (p99, at), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9, color=PALE
    )


def _listed(rows: Sequence[Row], mark: Callable[[Any, int, Row, str], None], title: str, about: str) -> Any:
    """Draw a row for each system, a panel for each durability."""
    panels = [(name, [row for row in rows if synced(row) == kind]) for name, kind in _PANELS]
    panels = [(name, found) for name, found in panels if found]
    systems = [system for system in reversed(_ORDER) if any(row["system"] == system for row in rows)]
    size = (4.9 * len(panels), 1.5 + 0.48 * len(systems))
    chart, axes = pyplot.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axis, (name, found) in zip(axes[0], panels, strict=True):
        for row in found:
            mark(axis, systems.index(row["system"]), row, LOOKS[row["system"]][0])
        axis.set_title(name)
        axis.set_yticks(range(len(systems)), [NAMES[system] for system in systems])
        axis.set_ylim(-0.6, len(systems) - 0.3)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
    chart.suptitle(title, x=0.02, ha="left", fontweight="bold")
    chart.supxlabel(about, fontsize=9, color=PALE)
    chart.tight_layout(w_pad=2)
    return chart
