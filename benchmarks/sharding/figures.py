"""Measured figures of one machine, from the rows in ``benchmarks/results``, or defaults stated here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.apps.w1 import TURNS
from benchmarks.reports.rows import BENCH, PEERS, RESULTS, Row, load

STREAMS = "streams.json"
"""The file that ``--measure`` writes."""


@dataclass(frozen=True)
class Figures:
    """Costs of a turn, a plan and a process. CPU time is of one core of the measured machine."""

    host_ms: float = 0.166
    """CPU milliseconds of a plan host per turn."""
    dispatcher_ms: float = 0.029
    """CPU milliseconds of a dispatcher per turn."""
    worker_ms: float = 0.042
    """CPU milliseconds of an echo worker per turn."""
    server_ms: float = 0.074
    """CPU milliseconds of one nats-server without replicas per turn."""
    replication: float = 3.0
    """CPU time of three servers with three replicas divided by that of one server."""
    group_turns: float = 5_000.0
    """Measured turns per second of one group's streams with three replicas."""
    live_plan_kb: float = 8.1
    """Memory of a host per live plan actor."""
    host_mb: float = 110.0
    """Memory of a plan host without plans; also used for dispatchers and workers."""
    node_mb: float = 600.0
    """Memory of Ray's daemons per node."""
    kept_plan_memory_kb: float = 0.3
    """Memory of a nats-server per stored checkpoint."""
    kept_plan_disk_kb: float = 1.5
    """Disk of a nats-server per stored checkpoint."""
    timer_memory_kb: float = 0.5
    """Memory of a nats-server per pending timer."""
    turn_bytes: float = 2_600.0
    """Bytes that a turn writes into streams: its checkpoint, its request, and the response."""
    activation_ms: float = 0.3
    """Milliseconds of a host to activate a passivated plan, beyond reading its checkpoint."""
    process_back_seconds: float = 1.4
    """Median seconds until a plan of a killed host moves again (default: from the chaos tests)."""
    process_back_worst_seconds: float = 5.1
    """Maximum of the same."""
    sources: dict[str, str] = field(default_factory=dict)
    """Sources by figure; figures without one are defaults stated here."""

    def source(self, name: str) -> str:
        """Return the source of a figure, for display."""
        return self.sources.get(name, "stated in figures.py")

    def names(self) -> list[str]:
        """Return the names of all figures."""
        return [each.name for each in fields(self) if each.name != "sources"]


def read(folder: Path = RESULTS) -> Figures:
    """Read the figures from the rows in a folder; those without rows keep their defaults."""
    rows = load(folder / BENCH) or load(folder / PEERS)
    streams = load(folder / STREAMS)
    found: dict[str, tuple[float, str]] = {}
    if w1 := _fitting(rows, workload="w1", system="shared", sync="default"):
        found |= _of_w1(w1[0], w1[-1])
    if w3 := _fitting(rows, workload="w3", system="shared"):
        found["live_plan_kb"] = w3[-1].get("rss_per_live_plan_kb") or 0.0, _name(w3[-1])
    if w6 := _fitting(rows, workload="w6", variant="host"):
        found["process_back_seconds"] = w6[-1]["recovery_p50_ms"] / 1000, _name(w6[-1])
        found["process_back_worst_seconds"] = w6[-1]["recovery_max_ms"] / 1000, _name(w6[-1])
    if w7 := _fitting(rows, workload="w7", system="shared"):
        beyond = w7[-1].get("activation_p50_ms", 0.0) - w7[-1].get("kv_read_p50_ms", 0.0)
        found["activation_ms"] = beyond, _name(w7[-1])
    if (one := _fitting(streams, replicas=1)) and (three := _fitting(streams, replicas=3)):
        found |= _of_streams(one[-1], three[-1])
    values = {name: value for name, (value, _) in found.items() if value > 0}
    return replace(Figures(), **values, sources={name: found[name][1] for name in values})


def _of_w1(fewest: Row, most: Row) -> dict[str, tuple[float, str]]:
    name, used = _name(most), most.get("cpu_ms_per_plan") or {}
    kinds = {"host_ms": "hosts", "dispatcher_ms": "dispatchers", "worker_ms": "workers", "server_ms": "nats-server"}
    found = {figure: (used[kind] / TURNS, name) for figure, kind in kinds.items() if kind in used}
    hosts = (fewest.get("processes") or {}).get("hosts")
    if hosts and fewest.get("hosts_rss_mb"):
        found["host_mb"] = fewest["hosts_rss_mb"] / hosts, _name(fewest)
    return found


def _of_streams(one: Row, three: Row) -> dict[str, tuple[float, str]]:
    found = {
        "replication": (three["server_ms_per_turn"] / one["server_ms_per_turn"], _name(three)),
        "group_turns": (three["turns_per_second"], _name(three)),
    }
    for key in ("kept_plan_memory_kb", "kept_plan_disk_kb", "timer_memory_kb", "turn_bytes"):
        if isinstance(one.get(key), int | float):
            found[key] = one[key], _name(one)
    return found


def _fitting(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Return the rows with these values, by ascending number of plans."""
    fitting = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return sorted(fitting, key=lambda row: int(row["n"]))


def _name(row: Row) -> str:
    parts = (f"{row['workload']} {row['system']}", f"N = {row['n']:,}", row.get("variant"), f"sync {row['sync']}")
    return ", ".join(part for part in parts if part)
