"""The workloads of ours by name. Each is a module that is imported when it is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.rows import Row

MODULES = {
    "w1": "benchmarks.together",
    "w2": "benchmarks.w2",
    "w3": "benchmarks.w3",
    "w4": "benchmarks.waiting",
    "w5": "benchmarks.w5",
    "w6": "benchmarks.w6",
    "w7": "benchmarks.w7",
    "scaleout": "benchmarks.scaleout",
    "idle": "benchmarks.idle",
    "import": "benchmarks.importing",
}
SIDE_BY_SIDE = ("w1", "w2", "w5", "w6")
"""Those that peers can be measured with."""
TITLES = {
    "w1": "three requests, three answers; N plans at once",
    "w2": "ten requests at once, joined",
    "w3": "plans that wait, then are signalled",
    "w4": "plans that wait for a model, and others beside them",
    "w5": "one plan alone",
    "w6": "a process killed with plans in flight",
    "w7": "plans that are passivated",
    "scaleout": "two dispatchers on all cores by one on half of them",
    "idle": "a deployment with nothing to do",
    "import": "import plancast",
}
Measure = Callable[..., Coroutine[Any, Any, list[Row]]]


def measure_of(workload: str) -> Measure:
    """``measure(scale, sync, say)`` of a workload.

    Raises:
        ImportError: its module is not there.
    """
    found: Measure = importlib.import_module(MODULES[workload]).measure
    return found
