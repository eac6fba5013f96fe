"""Reads the processes on this machine that this process has started: kind, CPU time and memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

KINDS = {
    "ray::HostProcess": "hosts",
    "ray::StandbyHostProcess": "hosts",
    "ray::LeasedHostProcess": "hosts",
    "ray::PlanPoolProcess": "pools",
    "ray::DispatcherProcess": "dispatchers",
    "ray::WorkerProcess": "workers",
    "ray::Reasoner": "reasoners",
    "ray::IDLE": "ray idle workers",
    "nats-server": "nats-server",
    "gcs_server": "ray gcs_server",
    "raylet/raylet": "ray raylet",
    "ray::RuntimeEnvAgent": "ray runtime_env agent",
    "ray::DashboardAgent": "ray dashboard agent",
    "log_monitor": "ray log_monitor",
    "autoscaler": "ray autoscaler",
    "dashboard": "ray dashboard",
    "ray::": "ray others",
    "/ray/": "ray others",
}
"""Parts of command lines, in the order of matching, and the kinds of process that they identify."""
RAY = "ray "
"""Prefix of the kinds of Ray's own processes."""
OTHER = "other"


def started_here() -> dict[str, list[int]]:
    """Return all processes below this one, by kind."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pid in below(os.getpid()):
        if command := _command(pid):
            found[next((kind for words, kind in KINDS.items() if words in command), OTHER)].append(pid)
    return dict(found)


def below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children[parent].append(int(entry.name))
    found: list[int] = []
    waiting = list(children[pid])
    while waiting:
        found.append(waiting.pop())
        waiting += children[found[-1]]
    return found


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def cpu_used(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the CPU seconds of each kind of process since it started, and of this one."""
    used = {kind: sum(map(_cpu_seconds, each)) for kind, each in pids.items()}
    return {**used, "driver": time.process_time()}


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return memory by kinds: ``rss_mb`` of all processes of a system, ``hosts_rss_mb`` of those that hold plans.

    For the baseline the latter are those that replace dispatchers and hosts.
    """
    homes = [*pids.get("hosts", ()), *pids.get("plans", ())]
    everything = {pid for each in pids.values() for pid in each}
    return {"rss_mb": round(memory_mb(everything), 1), "hosts_rss_mb": round(memory_mb(homes), 1)}


def memory_mb(pids: Iterable[int]) -> float:
    """Return the total memory of processes in megabytes; a process that has ended counts 0.

    Shared pages count once (PSS) if the kernel reports it; otherwise the figure is RSS.
    """
    return sum(map(_memory_kb, pids)) / 1024


def _memory_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(listed.stdout.strip() or 0)
