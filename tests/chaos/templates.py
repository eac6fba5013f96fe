"""Templates of plans of every kind, generated from a seed, and the model that decides some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from simulation.app import WORK, task_data
from simulation.generator import make_workload
from simulation.workload import PlanSpec, Step, Workload

from plancast.demo.stub_model import Situation
from plancast.testing.model_server.answers import ModelRequest

WORKLOADS = 10
"""Number of generated workloads whose plans are templates."""
MODEL_PLANS = 6
MODEL_PREFIX = "m"
"""Prefix of the keys of plans that a model decides."""


def make_templates(seed: int) -> Workload:
    """Generate the templates of a seed; each is submitted many times, with a new correlation id."""
    generated = [
        _renamed(plan, f"g{number}")
        for number in range(WORKLOADS)
        for plan in make_workload(seed * WORKLOADS + number).plans
    ]
    random = Random(f"model:{seed}")
    decided = [_model_plan(random, f"{MODEL_PREFIX}{number}") for number in range(MODEL_PLANS)]
    return Workload(seed=seed, plans=(*generated, *decided))


def is_decided_by_model(plan: PlanSpec) -> bool:
    """Whether a model decides a plan instead of its generated script."""
    return plan.key.startswith(MODEL_PREFIX)


def instance(template: PlanSpec, random: Random, cancel: float = 0.0) -> PlanSpec:
    """One submission of a template: times count from it, and some are cancelled, submitted or signalled twice.

    Args:
        template: The plan.
        random: Decides on repetitions and cancellations.
        cancel: Probability of a cancellation, beside those in the template.
    """
    begin = template.submit_at[0]
    cancel_at = None if template.cancel_at is None else template.cancel_at - begin
    if cancel_at is None and random.random() < cancel:
        cancel_at = random.uniform(0.0, 4.0)
    again = (random.uniform(0.0, 6.0),) if random.random() < 0.2 else ()
    return replace(
        template,
        submit_at=(0.0, *(each - begin for each in template.submit_at[1:]), *again),
        signals=tuple(_signals(template, begin, random)),
        pause_at=None if template.pause_at is None else template.pause_at - begin,
        cancel_at=cancel_at,
    )


def _signals(template: PlanSpec, begin: float, random: Random) -> Iterator[tuple[int, float]]:
    for step, at in template.signals:
        yield step, max(0.0, at - begin)
        if random.random() < 0.2:
            yield step, random.uniform(0.0, 8.0)


def _renamed(plan: PlanSpec, prefix: str) -> PlanSpec:
    """Prefix the keys of a plan and of its children; their tasks act nowhere outside, which `chaos.effects` is for."""
    return replace(plan, key=prefix + plan.key, steps=tuple(_step(each, prefix) for each in plan.steps))


def _step(step: Step, prefix: str) -> Step:
    child = step.child and _renamed(step.child, prefix)
    members = tuple(_step(each, prefix) for each in step.members)
    return replace(step, child=child, members=members, effect=None, takes_unknown=False)


def _model_plan(random: Random, key: str) -> PlanSpec:
    steps: list[Step] = []
    for number in range(random.randint(1, 3)):
        members = []
        for each in range(random.randint(1, 3)):
            member = Step("ask", random.randint(0, 9), random.choice(("ok", "ok", "slow", "fail")), seconds=0.5)
            if random.random() < 0.2:
                child = PlanSpec(f"{key}-{number}-{each}-c", "machine", (Step("ask", random.randint(0, 9)),))
                member = Step("child", child=child)
            members.append(member)
        steps.append(Step("group", members=tuple(members)))
    signals: list[tuple[int, float]] = []
    if random.random() < 0.5:
        signals.append((len(steps), random.uniform(0.0, 5.0)))
        steps.append(Step("wait"))
    return PlanSpec(key, "script", tuple(steps), signals=tuple(signals))


class ScriptedModel:
    """The model: takes a plan's steps in order, knowing only the prompt."""

    def __init__(self, templates: Workload) -> None:
        self._templates = templates

    def __call__(self, request: ModelRequest) -> dict[str, Any]:
        """A rule for :class:`plancast.testing.ModelServer`."""
        now = Situation.read(request)
        plan = self._templates.find(now.goal_event.removeprefix("goal."))
        assert plan is not None, now.goal_event
        return {**now.plan, "next_action": _next(plan, now), "reasoning": "as it is written"}


def _next(plan: PlanSpec, now: Situation) -> dict[str, Any]:
    outcomes = []
    for number, step in enumerate(plan.steps):
        if step.kind == "wait":
            expected = plan.signal(number)
            if expected not in now.results:
                return {"action": "wait", "reason": "a signal", "expected_event": expected, "timeout_seconds": 3600}
            outcomes.append(now.results[expected])
            continue
        group = f"step-{number}"
        if group in now.results:
            outcomes.append(now.results[group])
            continue
        started = len(now.groups[group]["members"]) if group in now.groups else 0
        if started == len(step.members):
            return {"action": "await", "group_id": group}
        return {"action": "delegate", "group_id": group, "spec": _spec(plan, number, started, step.members[started])}
    return {"action": "complete", "result": {"steps": outcomes}}


def _spec(plan: PlanSpec, number: int, index: int, member: Step) -> dict[str, Any]:
    if member.child is not None:
        return {"event_type": member.child.goal, "data": {"n": member.n}}
    return {"event_type": WORK, "data": task_data(f"{plan.key}/{number}/{index}", member)}
