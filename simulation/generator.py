"""Generates a workload from a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final, get_args

from simulation.workload import (
    Do,
    EffectKind,
    Fault,
    FaultKind,
    Join,
    Noise,
    PlanKind,
    PlanSpec,
    Step,
    StepKind,
    Undo,
    Workload,
)

MACHINE_STEPS: Final[tuple[StepKind, ...]] = (
    "ask", "ask", "ask", "branch", "retry", "timeout", "race", "wait", "child", "pass",
)  # fmt: skip
SCRIPT_STEPS: Final[tuple[StepKind, ...]] = ("group", "group", "parallel", "parallel", "wait", "lapse", "ask")
TREE_STEPS: Final[tuple[StepKind, ...]] = ("ask", "group", "group", "wait")
KINDS: Final[tuple[PlanKind, ...]] = ("machine", "machine", "script", "tree")
MACHINE_DEEDS: Final[tuple[Do, ...]] = ("ok", "ok", "ok", "slow", "flaky", "fail", "die")
DEEDS: Final[tuple[Do, ...]] = ("ok", "ok", "ok", "slow", "fail")
ACTING: Final[tuple[Do, ...]] = ("ok", "slow", "flaky")
"""Behaviours of workers that act outside."""
UNDOS: Final[tuple[Undo, ...]] = ("ok", "ok", *get_args(Undo))
DEEPEST: Final = 2
BEGINS_WITHIN: Final = 6.0
"""Seconds within which clients act."""


def make_workload(seed: int) -> Workload:
    """Generate the workload of a seed, identical on every machine."""
    random = Random(f"workload:{seed}")
    noise = _noise(random)
    workload = Workload(
        seed=seed,
        plans=tuple(_plan(random, f"p{number}", 0) for number in range(random.randint(2, 6))),
        faults=tuple(sorted((_fault(random) for _ in range(random.choice((0, 1, 2, 3, 5)))), key=lambda each: each.at)),
        noise=noise,
        hosts=random.choice((1, 2, 2, 3)),
        workers=random.choice((1, 1, 2)),
        max_live_plans=random.choice((1, 2, 1000)),
        timeline_tail_bytes=random.choice((256, 1024, 8192)),
    )
    if random.random() >= 0.7:
        plans = tuple(_with_documents(random, plan) for plan in workload.plans)
        workload = replace(workload, plans=plans, inline_bytes=random.choice((1024, 8192, 32_768)))
    branches = Random(f"branches:{seed}")
    if branches.random() < 0.5:
        workload = replace(workload, plans=tuple(_with_branches(branches, plan) for plan in workload.plans))
    effects = Random(f"effects:{seed}")
    if effects.random() < 0.5:
        workload = replace(workload, plans=tuple(_with_effects(effects, plan) for plan in workload.plans))
    rollbacks = Random(f"rollbacks:{seed}")
    if rollbacks.random() < 0.5:
        workload = replace(workload, plans=tuple(_with_rollback(rollbacks, plan) for plan in workload.plans))
    return workload


def _with_branches(random: Random, plan: PlanSpec) -> PlanSpec:
    """Have some states of machines send a request for each item of a list, and some wait before they do."""

    def step(each: Step) -> Step:
        changed = replace(each, child=_with_branches(random, each.child)) if each.child is not None else each
        if plan.kind != "machine":
            return changed
        if changed.kind in ("ask", "retry", "branch") and random.random() < 0.5:
            do, n = changed.do if changed.kind == "ask" else "ok", random.choice((0, 1, 2, 5, 9))
            changed = replace(changed, kind="fan", do=do, n=n, at_once=random.randint(1, 4))
        return replace(changed, delay=random.uniform(0.1, 3.0)) if random.random() < 0.3 else changed

    return replace(plan, steps=tuple(map(step, plan.steps)))


def _with_rollback(random: Random, plan: PlanSpec, is_child: bool = False) -> PlanSpec:
    """Have workers act outside for more steps, of all planners, and roll some plans back, at their end or by people."""

    def step(each: Step) -> Step:
        child = _with_rollback(random, each.child, is_child=True) if each.child is not None else None
        members = tuple(map(step, each.members))
        return _with_undo(random, replace(each, members=members, child=child), decides=plan.kind in ("script", "tree"))

    changed = replace(plan, steps=tuple(map(step, plan.steps)))
    if not is_child and random.random() < 0.2:
        return _handled(random, changed)
    if random.random() < (0.2 if is_child else 0.4):
        changed = replace(changed, rolls_back=True)
    if is_child or random.random() < 0.5:
        return changed
    times = (
        plan.submit_at[0] + random.uniform(0.0, random.choice((4.0, 30.0))) for _ in range(random.choice((1, 1, 2)))
    )
    return replace(changed, rollback_at=tuple(times))


def _with_undo(random: Random, step: Step, decides: bool) -> Step:
    """Have a worker act outside, and say how its undo behaves; planners that decide see no unknown outcomes."""
    if step.members or step.child is not None or step.kind not in ("ask", "group", "parallel"):
        return step
    if step.effect is None and step.do in ("ok", "slow") and random.random() < 0.7:
        kinds: tuple[EffectKind, ...] = ("key", "look-up", "final") if decides else get_args(EffectKind)
        step = replace(step, effect=random.choice(kinds))
    return replace(step, undo=random.choice(UNDOS)) if step.effect is not None else step


def _handled(random: Random, plan: PlanSpec) -> PlanSpec:
    """A plan that handlers move, with the submission of another one."""
    steps = tuple(
        Step(
            "group",
            members=tuple(_with_undo(random, _asked(random), decides=False) for _ in range(random.randint(1, 3))),
        )
        for _ in range(random.randint(1, 4))
    )
    return PlanSpec(plan.key, "handler", steps, submit_at=plan.submit_at, rolls_back=True)


def _asked(random: Random) -> Step:
    return Step("ask", random.randint(0, 9), random.choice(("ok", "slow")), seconds=random.uniform(0.1, 3.0))


def _with_effects(random: Random, plan: PlanSpec, is_child: bool = False) -> PlanSpec:
    """Have workers act outside for some steps of machines, and cancel some plans while a worker dies that acts."""

    def step(each: Step) -> Step:
        child = _with_effects(random, each.child, is_child=True) if each.child is not None else None
        changed = replace(each, members=tuple(map(step, each.members)), child=child)
        acts = each.do in ACTING and each.kind in ("ask", "race")
        if plan.kind != "machine" or not acts or random.random() < 0.3:
            return changed
        kind = random.choice(get_args(EffectKind))
        return replace(changed, effect=kind, takes_unknown=kind == "never" and random.random() < 0.5)

    steps, cancel_in_act = tuple(map(step, plan.steps)), random.random() < 0.5
    return replace(plan, steps=steps, cancel_in_act=cancel_in_act and not is_child)


def _with_documents(random: Random, plan: PlanSpec) -> PlanSpec:
    """Have workers answer with texts, of which some are stored apart from the plan's checkpoints."""

    def step(each: Step) -> Step:
        child = _with_documents(random, each.child) if each.child is not None else None
        document = random.choice((0, 100, 3_000, 12_000))
        return replace(each, members=tuple(map(step, each.members)), child=child, document=document)

    return replace(plan, steps=tuple(map(step, plan.steps)))


def _plan(random: Random, key: str, depth: int) -> PlanSpec:
    kind = random.choice(KINDS)
    steps = tuple(_step(random, kind, f"{key}-{number}", depth) for number in range(random.randint(1, 4 - depth)))
    if depth:
        return PlanSpec(key, kind, tuple(step for step in steps if step.kind != "wait") or (Step("ask"),))
    begin = random.uniform(0.0, BEGINS_WITHIN)
    again = (begin + random.uniform(0.0, 4.0),) if random.random() < 0.3 else ()
    return PlanSpec(
        key,
        kind,
        steps,
        submit_at=(begin, *again),
        signals=tuple(_signals(random, steps, begin)),
        pause_at=begin + random.uniform(0.0, 4.0) if kind != "tree" and random.random() < 0.2 else None,
        cancel_at=begin + random.uniform(0.0, 4.0) if random.random() < 0.12 else None,
        poll=random.random() < 0.5,
    )


def _signals(random: Random, steps: tuple[Step, ...], begin: float) -> list[tuple[int, float]]:
    """Times of signals for waiting steps: early, late, or twice."""
    sent = []
    for number, step in enumerate(steps):
        if step.kind == "wait":
            times = 2 if random.random() < 0.3 else 1
            sent += [(number, max(0.0, begin + random.uniform(-1.0, 5.0))) for _ in range(times)]
    return sent


def _step(random: Random, kind: PlanKind, key: str, depth: int) -> Step:
    choices = {"machine": MACHINE_STEPS, "script": SCRIPT_STEPS, "tree": TREE_STEPS}[kind]
    chosen = random.choice(choices)
    n = random.randint(0, 9)
    match chosen:
        case "ask" if kind == "machine":
            do = random.choice(MACHINE_DEEDS)
            return Step("ask", n, do, times=random.randint(1, 2), seconds=random.uniform(0.1, 3.0))
        case "ask":
            return Step("ask", n, random.choice(DEEDS), seconds=random.uniform(0.1, 3.0))
        case "retry":
            return Step("retry", n, times=random.randint(1, 2))
        case "timeout" | "lapse":
            return Step(chosen, seconds=random.uniform(0.3, 2.0))
        case "race":
            seconds = random.uniform(0.3, 2.0)
            return Step("race", n, "slow", times=random.randint(0, 3), seconds=seconds)
        case "child" if depth < DEEPEST:
            return Step("child", child=_plan(random, f"{key}-c", depth + 1))
        case "child":
            return Step("ask", n)
        case "group" | "parallel":
            return _group(random, chosen, kind, key, depth)
        case _:
            return Step(chosen, n)


def _group(random: Random, chosen: StepKind, kind: PlanKind, key: str, depth: int) -> Step:
    count = 1 if kind == "tree" else random.randint(1, 4)
    members = tuple(_member(random, f"{key}-{number}", depth, chosen) for number in range(count))
    if chosen == "group":
        return Step("group", members=members, fail_fast=random.random() < 0.3)
    join: Join = random.choice(get_args(Join))
    return Step("parallel", n=random.randint(1, count) if join == "n" else 0, members=members, join=join)


def _member(random: Random, key: str, depth: int, chosen: StepKind) -> Step:
    if chosen == "group" and depth < DEEPEST and random.random() < 0.25:
        return Step("child", child=_plan(random, f"{key}-c", depth + 1))
    do = random.choice(DEEDS)
    return Step("ask", random.randint(0, 9), do, seconds=random.uniform(0.1, 3.0))


def _fault(random: Random) -> Fault:
    return Fault(
        random.choice(get_args(FaultKind)),
        at=random.uniform(0.0, 12.0),
        target=random.randrange(6),
        steps=random.choice((0, random.randrange(10), random.randrange(60))),
        seconds=random.choice((0.0, random.uniform(0.0, 1.0), random.uniform(0.0, 8.0))),
    )


def _noise(random: Random) -> Noise:
    def chance(most: float) -> float:
        return random.choice((0.0, 0.0, random.uniform(0.0, most)))

    return Noise(
        drop=chance(0.3),
        duplicate=chance(0.3),
        reorder=chance(1.0),
        delay=chance(0.3),
        publish=chance(0.3),
        commit=chance(0.4),
        ack=chance(0.5),
        call=chance(0.3),
        stray=chance(0.5),
        crash=chance(0.05),
        stall=chance(0.05),
        silent=chance(1.0),
        hurry=chance(0.01),
    )
