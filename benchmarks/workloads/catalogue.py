"""Our workloads by name. Each is a module that is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.reports.rows import Row

MODULES = {
    "w1": "benchmarks.workloads.together",
    "w2": "benchmarks.workloads.w2",
    "w3": "benchmarks.workloads.w3",
    "w4": "benchmarks.workloads.waiting",
    "w5": "benchmarks.workloads.w5",
    "w6": "benchmarks.workloads.w6",
    "w7": "benchmarks.workloads.w7",
    "w8": "benchmarks.workloads.w8",
    "w9": "benchmarks.workloads.w9",
    "effects": "benchmarks.workloads.effects",
    "dedicated": "benchmarks.workloads.dedicated",
    "scaleout": "benchmarks.workloads.scaleout",
    "upgrade": "benchmarks.workloads.upgrade",
    "idle": "benchmarks.workloads.idle",
    "import": "benchmarks.workloads.importing",
    "streams": "benchmarks.workloads.streams",
}
SIDE_BY_SIDE = ("w1", "w2", "w5", "w6", "w8")
"""Workloads that peers can run."""
TITLES = {
    "w1": "three requests in sequence; N plans at once",
    "w2": "ten requests at once, joined",
    "w3": "plans that wait, then are signalled",
    "w4": "plans that wait for a model, and others beside them",
    "w5": "one plan alone",
    "w6": "a process killed with plans in flight",
    "w7": "passivated plans",
    "w8": "one plan that holds a long conversation, and keeps the answers of its calls",
    "w9": "one plan that collects large answers, and whose host is killed",
    "effects": "W1's plans, with recorded effects and without",
    "dedicated": "plans in warm hosts of their own",
    "scaleout": "two dispatchers on all cores, one on half of them",
    "upgrade": "the code is replaced, and rolled back, under a steady load",
    "idle": "an idle deployment",
    "import": "import plancast",
    "streams": "one process that serves plans as streams",
}
Measure = Callable[..., Coroutine[Any, Any, list[Row]]]


def measure_of(workload: str) -> Measure:
    """Return ``measure(scale, sync, say)`` of a workload.

    Raises:
        ImportError: its module does not exist.
    """
    found: Measure = importlib.import_module(MODULES[workload]).measure
    return found
