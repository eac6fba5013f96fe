"""Tells of a run that has broken a promise: the seed, the smallest workload that still does, and the timeline."""

from __future__ import annotations

from collections.abc import Callable
from pprint import pformat

from simulation.shrinker import MAX_RUNS, shrink
from simulation.simulation import Outcome, simulate
from simulation.workload import Workload

MAX_LINES = 200
"""Longest timeline that is shown, in lines; the newest of them."""


def report(outcome: Outcome, max_runs: int = MAX_RUNS) -> str:
    """What went wrong, for people: run the seed again, and it goes wrong in the same way."""
    smallest = simulate(shrink(outcome.workload, _fails_alike(outcome), max_runs))
    concerned = next((each.plan for each in smallest.violations if each.plan), None)
    lines = smallest.history.lines(concerned)
    return "\n".join(
        [
            f"seed {outcome.workload.seed} breaks {len(outcome.violations)} promises:",
            *(f"  {each}" for each in outcome.violations),
            "the smallest workload found that does:",
            pformat(smallest.workload, width=120),
            "where it breaks:",
            *(f"  {each}" for each in smallest.violations),
            f"what happened to {f'plan {concerned}' if concerned else 'its plans'}:",
            *([f"  ... {len(lines) - MAX_LINES} lines before"] if len(lines) > MAX_LINES else []),
            *(f"  {line}" for line in lines[-MAX_LINES:]),
        ]
    )


def _fails_alike(outcome: Outcome) -> Callable[[Workload], bool]:
    promises = {each.promise for each in outcome.violations}

    def fails(workload: Workload) -> bool:
        return any(each.promise in promises for each in simulate(workload).violations)

    return fails
