"""Targets, each compared with the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.apps.w1 import TURNS
from benchmarks.reports.report import NAMES
from benchmarks.reports.rows import BENCH, PEERS, RESULTS, Row, load

TURN_MS = 1.5
"""Milliseconds by which a turn of one plan alone may exceed the baseline's."""
N = 10_000


@dataclass(frozen=True)
class Results:
    """The rows that figures are read from."""

    bench: Sequence[Row]
    peers: Sequence[Row]

    @classmethod
    def stored(cls, folder: Path = RESULTS) -> Results:
        """Read the rows of the last runs."""
        return cls(load(folder / BENCH), load(folder / PEERS))


@dataclass(frozen=True)
class Target:
    """A bound, and the figure that it applies to."""

    what: str
    bound: float | None
    """None for a figure without a target, shown below another one."""
    unit: str
    find: Callable[[Results], float | None]
    """Returns the figure; None if it was not measured."""
    at_least: bool = False
    """True if the bound is a minimum, False if it is a maximum."""

    def verdict(self, results: Results) -> tuple[float | None, str]:
        """Return the figure, and ``met``, ``not met``, ``not measured``, or an empty text without a bound."""
        figure = self.find(results)
        if figure is None:
            return None, "not measured"
        if self.bound is None:
            return figure, ""
        good = figure >= self.bound if self.at_least else figure <= self.bound
        return figure, "met" if good else "not met"


def _row(rows: Sequence[Row], workload: str, system: str, sync: str = "", n: int = 0) -> Row | None:
    """Return the row of a measurement; without N the one of the largest N."""
    fitting = [
        row
        for row in rows
        if (row["workload"], row["system"]) == (workload, system)
        and (not sync or row["sync"] == sync)
        and (not n or row["n"] == n)
        and row.get("variant") in (None, "")
    ]
    return max(fitting, key=lambda row: row["n"] or 0, default=None)


def _by(row: Row | None, other: Row | None, field: str) -> float | None:
    """Return a field of a row divided by that of another row."""
    if row is None or other is None or row.get(field) is None or not other.get(field):
        return None
    return float(row[field] / other[field])


def _rate_by_peer(peer: str, sync: str) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        rows = results.peers
        theirs = _row(rows, "w1", peer, "always", N) or _row(rows, "w1", peer, "always")
        return _by(_row(rows, "w1", "shared", sync, N), theirs, "plans_per_second")

    return find


def _by_baseline(sync: str) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        for rows in (results.bench, results.peers):
            ours, floor = (_row(rows, "w1", system, sync, N) for system in ("shared", "baseline"))
            found = _by(ours, floor, "plans_per_second")
            if found is not None:
                return found
        return None

    return find


def _fall(results: Results) -> float | None:
    few, many = (_row(results.bench, "w1", "shared", "default", n) for n in (1_000, 100_000))
    kept = _by(many, few, "plans_per_second")
    return None if kept is None else 100 * (1 - kept)


def _alone_by_restate(ours: str, theirs: str) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        rows = results.peers
        return _by(_row(rows, "w5", "shared", ours), _row(rows, "w5", "restate", theirs), "p50_ms")

    return find


def _turn_over_baseline(results: Results) -> float | None:
    for rows in (results.bench, results.peers):
        ours, floor = (_row(rows, "w5", system, "default") for system in ("shared", "baseline"))
        if ours is not None and floor is not None:
            return float((ours["p50_ms"] - floor["p50_ms"]) / TURNS)
    return None


def _field(workload: str, name: str, n: int = 0) -> Callable[[Results], float | None]:
    """Return a reader of a field of our rows: the worst one with the largest N, or with the given N."""

    def find(results: Results) -> float | None:
        values = [
            (row["n"] or 0, row[name])
            for row in results.bench
            if row["workload"] == workload
            and row["system"] != "baseline"
            and row.get(name) is not None
            and (not n or row["n"] == n)
        ]
        largest = max((count for count, _ in values), default=0)
        found = [float(value) for count, value in values if count == largest]
        if not found:
            return None
        return min(found) if name in LEAST else max(found)

    return find


def _memory_off(results: Results) -> float | None:
    ratio = _field("w7", "memory_ratio")(results)
    return None if ratio is None else 100 * abs(ratio - 1)


LEAST = ("pool_ratio", "scaleout_ratio")
"""Fields whose smallest value is the worst."""
PEER_BOUNDS = {"restate": (3, 2), "langgraph": (10, 8), "dbos": (20, 15)}
"""Minimum ratios of our rate to theirs: each at its own default, synced for the peers; and both synced."""

TARGETS = (
    *(
        Target(f"W1 {N:,}: by {NAMES[peer]}'s, {kind}", bounds[place], "x", _rate_by_peer(peer, sync), True)
        for place, (kind, sync) in enumerate((("own defaults", "default"), ("synced", "always")))
        for peer, bounds in PEER_BOUNDS.items()
    ),
    Target(f"W1 {N:,}: by the baseline's", 0.7, "x", _by_baseline("default"), at_least=True),
    Target("  both synced", None, "x", _by_baseline("always")),
    Target("W1: rate lost from 1,000 to 100,000", 15, "%", _fall),
    Target("W5: p50 by Restate's, own defaults", 1, "x", _alone_by_restate("default", "always")),
    Target("  both synced", None, "x", _alone_by_restate("always", "always")),
    Target("  neither synced", None, "x", _alone_by_restate("default", "off")),
    Target("W5: p50 of a turn over the baseline's", TURN_MS, "ms", _turn_over_baseline),
    Target("W3 100,000: memory of a live plan", 10, "KB", _field("w3", "rss_per_live_plan_kb", 100_000)),
    Target("W7: memory off that of an empty host", 10, "%", _memory_off),
    Target("W7: activation p50 by one KV read's", 3, "x", _field("w7", "activation_ratio")),
    Target("W4: rate of the pool by its ideal", 0.9, "x", _field("w4", "pool_ratio"), at_least=True),
    Target("W4: others' p99 by that when idle", 2, "x", _field("w4", "others_p99_ratio")),
    Target("W6: every plan moves again, p99", 5_000, "ms", _field("w6", "recovery_p99_ms")),
    Target("W6: plans lost", 0, "", _field("w6", "lost")),
    Target("W8 1,000 calls: written to NATS", 12, "MB", _field("w8", "written_mb", 1_000)),
    Target("W8 1,000 calls: bytes of the last by the 10th", 1.2, "x", _field("w8", "call_ratio", 1_000)),
    Target("  CPU time of the last by the 10th", 1.2, "x", _field("w8", "call_cpu_ratio", 1_000)),
    Target("W8 1,000 calls: gap p99 over a small plan's", 5, "ms", _field("w8", "over_small_p99_ms", 1_000)),
    Target("idle deployment, of one core", 3, "%", _field("idle", "cpu_percent")),
    Target("import plancast", 150, "ms", _field("import", "p50_ms")),
    Target("scale-out: two dispatchers by one", 1.6, "x", _field("scaleout", "scaleout_ratio"), at_least=True),
)


def table(results: Results) -> Table:
    """Render the targets."""
    shown = Table(title="Targets")
    for name in ("target", "at", "found", ""):
        shown.add_column(name, justify="right" if name in ("at", "found") else "left")
    styles = {"met": "green", "not met": "red"}
    for target in TARGETS:
        figure, verdict = target.verdict(results)
        bound = "" if target.bound is None else _with_unit(target.bound, target.unit)
        sign = "" if target.bound is None else "≥ " if target.at_least else "≤ "
        found = "" if figure is None else _with_unit(figure, target.unit)
        shown.add_row(target.what, sign + bound, found, f"[{styles.get(verdict, 'dim')}]{verdict}[/]")
    return shown


def _with_unit(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 or float(value).is_integer() else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()
