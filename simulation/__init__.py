"""Deterministic simulation: plans, clients and faults from a seed, in virtual time, on the production components.

``simulate(make_workload(seed))`` runs a seed reproducibly and returns the ``violations`` of plancast's guarantees.
``python -m simulation --seeds 1 --from 42`` does so from the command line, and prints the smallest workload that
still fails, with its timeline.
"""

from simulation.checker import check_history
from simulation.generator import make_workload
from simulation.history import History
from simulation.report import report
from simulation.runner import run_seeds
from simulation.shrinker import shrink
from simulation.simulation import Outcome, simulate
from simulation.violation import Violation
from simulation.workload import Fault, Noise, PlanSpec, Step, Workload

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
