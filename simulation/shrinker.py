"""Shrinks a failing workload while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final

from simulation.workload import Noise, PlanSpec, Workload

MAX_RUNS: Final = 200
"""Maximum number of runs."""


def shrink(workload: Workload, fails: Callable[[Workload], bool], max_runs: int = MAX_RUNS) -> Workload:
    """Find a smaller workload that still fails, with the same seed.

    Args:
        workload: A failing workload.
        fails: True for a workload with the same failure.
        max_runs: Maximum number of calls of ``fails``.
    """
    left = max_runs
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _smaller(workload):
            if left <= 0:
                break
            left -= 1
            if fails(candidate):
                workload, smaller = candidate, True
                break
    return workload


def _smaller(workload: Workload) -> Iterator[Workload]:
    """Yield smaller workloads, starting with the largest removals."""
    plans, faults = workload.plans, workload.faults
    if len(plans) > 1:
        for number in range(len(plans)):
            yield replace(workload, plans=(*plans[:number], *plans[number + 1 :]))
    if len(faults) > 1:
        yield replace(workload, faults=())
    for number in range(len(faults)):
        yield replace(workload, faults=(*faults[:number], *faults[number + 1 :]))
    if workload.noise != Noise():
        yield replace(workload, noise=Noise())
    for field in fields(Noise):
        if getattr(workload.noise, field.name):
            yield replace(workload, noise=replace(workload.noise, **{field.name: 0.0}))
    for number, plan in enumerate(plans):
        for less in _less(plan):
            yield replace(workload, plans=(*plans[:number], less, *plans[number + 1 :]))
    for name, least in (("hosts", 1), ("workers", 1)):
        if getattr(workload, name) > least:
            yield replace(workload, **{name: getattr(workload, name) - 1})
    if workload.max_live_plans < 1000:
        yield replace(workload, max_live_plans=1000)
    if workload.timeline_tail_bytes < 8192:
        yield replace(workload, timeline_tail_bytes=8192)
    if workload.inline_bytes < 32_768:
        yield replace(workload, inline_bytes=32_768)


def _less(plan: PlanSpec) -> Iterator[PlanSpec]:
    if len(plan.submit_at) > 1:
        yield replace(plan, submit_at=plan.submit_at[:1])
    if plan.pause_at is not None:
        yield replace(plan, pause_at=None)
    if plan.cancel_at is not None:
        yield replace(plan, cancel_at=None)
    if plan.cancel_in_act:
        yield replace(plan, cancel_in_act=False)
    if plan.rollback_at:
        yield replace(plan, rollback_at=plan.rollback_at[1:])
    for number, (waiting, _) in enumerate(plan.signals):
        if sum(each == waiting for each, _ in plan.signals) > 1:
            yield replace(plan, signals=(*plan.signals[:number], *plan.signals[number + 1 :]))
    if len(plan.steps) > 1:
        for number in range(len(plan.steps)):
            moved = ((each - (each > number), at) for each, at in plan.signals if each != number)
            steps = (*plan.steps[:number], *plan.steps[number + 1 :])
            yield replace(plan, steps=steps, signals=tuple(moved))
    for number, step in enumerate(plan.steps):
        if len(step.members) > 1:
            for member in range(len(step.members)):
                members = (*step.members[:member], *step.members[member + 1 :])
                less = replace(step, members=members, n=min(step.n, len(members)) if step.join == "n" else step.n)
                yield replace(plan, steps=(*plan.steps[:number], less, *plan.steps[number + 1 :]))
