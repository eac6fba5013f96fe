"""Processes on this machine: which ones this process has started, and what they are."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

KINDS = {
    "ray::HostProcess": "hosts",
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
}
"""What stands in a command line, in the order in which it is looked for, and the kind of process that it tells."""
OTHER = "other"


def started_here() -> dict[str, list[int]]:
    """All processes below this one, by kind. Kinds of Ray's daemons begin with ``ray``."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            below[parent].append(int(entry.name))
    found: defaultdict[str, list[int]] = defaultdict(list)
    waiting = list(below[os.getpid()])
    while waiting:
        pid = waiting.pop()
        waiting += below[pid]
        if command := _command(pid):
            found[next((kind for words, kind in KINDS.items() if words in command), OTHER)].append(pid)
    return dict(found)


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
