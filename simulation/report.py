"""Reports a failing run: seed, smallest workload that still fails, and timeline."""

from __future__ import annotations

from collections.abc import Callable
from pprint import pformat

from simulation.shrinker import MAX_RUNS, shrink
from simulation.simulation import Outcome, simulate
from simulation.workload import Workload

MAX_LINES = 200
"""Maximum number of lines of the timeline; older ones are left out."""


def report(outcome: Outcome, max_runs: int = MAX_RUNS) -> str:
    """Describe the violations of a reproducible run."""
    smallest = simulate(shrink(outcome.workload, _fails_alike(outcome), max_runs))
    concerned = next((each.plan for each in smallest.violations if each.plan), None)
    lines = smallest.history.lines(concerned)
    return "\n".join(
        [
            f"seed {outcome.workload.seed} violates {len(outcome.violations)} guarantees:",
            *(f"  {each}" for each in outcome.violations),
            "smallest workload found that still fails:",
            pformat(smallest.workload, width=120),
            "its violations:",
            *(f"  {each}" for each in smallest.violations),
            f"timeline of {f'plan {concerned}' if concerned else 'its plans'}:",
            *([f"  ... {len(lines) - MAX_LINES} lines before"] if len(lines) > MAX_LINES else []),
            *(f"  {line}" for line in lines[-MAX_LINES:]),
        ]
    )


def _fails_alike(outcome: Outcome) -> Callable[[Workload], bool]:
    promises = {each.promise for each in outcome.violations}

    def fails(workload: Workload) -> bool:
        return any(each.promise in promises for each in simulate(workload).violations)

    return fails
