"""Simulation: plans, people and faults from a seed, in virtual time, on the same hosts, dispatchers and workers.

``simulate(make_workload(seed))`` runs one, the same way each time; its ``violations`` are the promises that it has
broken. ``python -m plancast.testing.simulation --seeds 1 --from 42`` does it from the command line, and shows the
smallest workload that still fails, with its timeline.
"""

from plancast.testing.simulation.checker import Violation, check_history
from plancast.testing.simulation.generator import make_workload
from plancast.testing.simulation.history import History
from plancast.testing.simulation.reporting import report
from plancast.testing.simulation.running import run_seeds
from plancast.testing.simulation.shrinking import shrink
from plancast.testing.simulation.simulation import Outcome, simulate
from plancast.testing.simulation.workload import Fault, Noise, PlanSpec, Step, Workload

__all__ = [
    "Fault",
    "History",
    "Noise",
    "Outcome",
    "PlanSpec",
    "Step",
    "Violation",
    "Workload",
    "check_history",
    "make_workload",
    "report",
    "run_seeds",
    "shrink",
    "simulate",
]
