"""Runs many seeds on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from simulation.generator import make_workload
from simulation.history import FaultStruck
from simulation.report import report
from simulation.simulation import simulate


@dataclass(frozen=True)
class Run:
    """Summary of a seed."""

    seed: int
    plans: int
    """Number of started plans, children included."""
    faults: int
    virtual_seconds: float
    violations: tuple[str, ...]


def run_seed(seed: int) -> Run:
    """Simulate the workload of a seed."""
    outcome = simulate(make_workload(seed))
    faults = sum(isinstance(entry.fact, FaultStruck) for entry in outcome.history.entries)
    plans = len(outcome.history.stored)
    return Run(seed, plans, faults, outcome.seconds, tuple(map(str, outcome.violations)))


def run_seeds(seeds: Iterable[int], jobs: int = 0) -> Iterator[Run]:
    """Simulate seeds in parallel and yield each result.

    Args:
        seeds: The seeds.
        jobs: Number of processes; 0 for one per core, 1 for this process.
    """
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=10)


def run_and_report(seeds: range, jobs: int, say: Callable[[str], object]) -> int:
    """Simulate seeds with progress, report the first failing one, and return the number of failures."""
    failed: list[Run] = []
    done = plans = faults = 0
    virtual = 0.0
    for run in run_seeds(seeds, jobs):
        done, plans, faults, virtual = done + 1, plans + run.plans, faults + run.faults, virtual + run.virtual_seconds
        if run.violations:
            failed.append(run)
            say(f"seed {run.seed}: {run.violations[0]}")
        if done % 500 == 0 or done == len(seeds):
            progress = (
                f"{done} of {len(seeds)} seeds, {plans} plans, {faults} faults, {virtual / 3600:.1f} virtual hours"
            )
            say(f"{progress}, {len(failed)} failed")
    if failed:
        say(report(simulate(make_workload(min(run.seed for run in failed)))))
    return len(failed)
