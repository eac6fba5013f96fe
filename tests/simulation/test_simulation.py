"""The core in simulation: plans, people and faults from a seed, in virtual time. ``make simulate`` runs many more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args
from uuid import uuid4

import pytest
from simulation.history import ActFact, FaultStruck
from simulation.runner import run_seed
from simulation.workload import EffectKind

from plancast.effects.record import EffectState
from plancast.plan import task_responses
from plancast.planner_turn import autonomous
from plancast.turn import rollback, turn
from plancast_actors.dispatch import host_link
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors import slow_path
from plancast_actors.plan_actors.activation import Activation
from plancast_actors.plan_actors.services import Emitted
from plancast_actors.plan_actors.slow_path import SlowTurn
from plancast_actors.workers.effect_attempt import EffectAttempt, Settlement
from plancast_actors.workers.effect_undo import UndoAttempt, UndoContext
from plancast_bus.memory.checkpoints import PlanTable
from plancast_bus.ports.checkpoints import Checkpoint
from simulation import (
    Fault,
    Noise,
    PlanSpec,
    Step,
    Workload,
    make_workload,
    report,
    shrink,
    simulate,
)

CHUNK = 50
"""Seeds of one test; `make test` runs one chunk, `make test-all` three more."""


@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 4))])
def test_no_seed_breaks_a_promise(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        outcome = simulate(make_workload(seed))
        if outcome.violations:
            pytest.fail(report(outcome), pytrace=False)


def test_plans_are_begun_faults_strike_and_time_passes() -> None:
    runs = [run_seed(seed) for seed in range(40)]
    assert sum(run.plans for run in runs) > 150
    assert sum(run.faults for run in runs) > 400
    assert sum(run.virtual_seconds for run in runs) > 40 * 15.0


# The same seed, the same run.


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    first, second = simulate(make_workload(seed)), simulate(make_workload(seed))
    assert first.history.lines() == second.history.lines()
    assert first.fingerprint == second.fingerprint


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    program = (
        "from simulation import make_workload, simulate\n"
        "print([simulate(make_workload(seed)).fingerprint for seed in range(6)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert printed == {f"{[simulate(make_workload(seed)).fingerprint for seed in range(6)]}\n"}


def test_different_seeds_give_different_runs() -> None:
    assert len({simulate(make_workload(seed)).fingerprint for seed in range(20)}) == 20


# It would notice: a promise that the product did not keep is found within a few seeds.


class _AnyVersion(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    compare_and_set = PlanTable.compare_and_set

    def always(self: PlanTable, version: int, correlation_id: str, *fields: Any) -> int:
        stored = self.find(correlation_id)
        return compare_and_set(self, stored.version if stored else 0, correlation_id, *fields)

    patch.setattr(PlanTable, "compare_and_set", always)


def _no_memory_of_events(patch: pytest.MonkeyPatch) -> None:
    digests = iter(range(1_000_000))
    patch.setattr(slow_path, "digest_of", lambda event_id: next(digests).to_bytes(8, "big"))


def _nothing_emitted_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanHost, "take_emitted", lambda self, key: Emitted(_AnyVersion(1), {}))


def _effects_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = Activation.commit

    async def too_early(self: Activation, turn: Any, digest: bytes) -> None:
        await self.emit(tuple(turn.effects))
        await commit(self, turn, digest)

    patch.setattr(Activation, "commit", too_early)


def _ignored_by_a_stale_actor(patch: pytest.MonkeyPatch) -> None:
    async def never(self: Activation) -> bool:
        return False

    patch.setattr(Activation, "is_stale", never)


def _reports_by_the_dispatchers_name_alone(patch: pytest.MonkeyPatch) -> None:
    class Same:
        hex = "same"

    patch.setattr(host_link, "uuid4", Same)


def _timeouts_that_do_not_look(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: SlowTurn, *_: Any) -> None:
        return None

    patch.setattr(SlowTurn, "_take_backlog", nothing)


def _kept_answers_all_have_requests(patch: pytest.MonkeyPatch) -> None:
    def take(plan: Any, fields: Any) -> bool:
        plan.requests[fields["parent_event_id"]]
        return task_responses.take_answer(plan, fields)

    patch.setattr(autonomous, "take_answer", take)


def _values_stored_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = Activation._commit

    async def committed_first(self: Activation, checkpoint: Checkpoint) -> int:
        version = await commit(self, checkpoint)
        if self._values is not None and self._values.unstored:
            await self.renew_values()
        return version

    async def nothing(self: Activation) -> None:
        return None

    patch.setattr(Activation, "store_values", nothing)
    patch.setattr(Activation, "_commit", committed_first)


def _acts_begun_again_blindly(patch: pytest.MonkeyPatch) -> None:
    async def again(self: EffectAttempt, begun: Any, version: int) -> Any:
        return await self._begin(begun, version)

    patch.setattr(EffectAttempt, "_reconcile", again)


def _outcomes_that_no_plan_hears(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn, "record_effect", lambda turn, plan: False)


def _undos_in_any_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollback, "ready_steps", list)


def _undos_under_keys_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UndoContext, "idempotency_key", property(lambda self: uuid4().hex))


def _what_has_no_undo_is_not_named(patch: pytest.MonkeyPatch) -> None:
    def forget(plan: Any) -> None:
        for key, entry in list(plan.effects.items()):
            if not entry.undo:
                del plan.effects[key]

    patch.setattr(rollback, "name_without_undo", forget)


def _undos_begun_without_the_fence(patch: pytest.MonkeyPatch) -> None:
    """An answer that says that an effect is done is taken for the end of its undo."""

    async def ended(self: UndoAttempt, record: Any, version: int, error: Exception) -> Any:
        return await self._end(record, version, EffectState.UNDONE, "")

    patch.setattr(UndoAttempt, "_fail", ended)


ACTS = PlanSpec(
    "p0",
    "machine",
    tuple(Step("ask", n, "slow", seconds=0.2, effect=kind) for n, kind in enumerate(get_args(EffectKind))),
)
ACTS_STRUCK = [
    Workload(seed=3, plans=(ACTS,), faults=(Fault("crash worker", number * 0.03),), chaos_seconds=2.0)
    for number in range(40)
]
"""A worker that dies at some time; the handlers of the acts wait for most of it, before the act or after it."""
ENDED_BY_ANOTHER = Workload(
    seed=1,
    plans=(
        PlanSpec(
            "p0",
            "script",
            (Step("parallel", join="first_success", members=(Step("ask", 1, "slow", seconds=1.0),) * 2),),
            pause_at=0.5,
        ),
    ),
    chaos_seconds=1.0,
)


def _seeds(*first: Workload) -> Iterator[Workload]:
    yield from first
    yield from map(make_workload, range(100))


@pytest.mark.parametrize(
    ("break_it", "promises"),
    [
        (_no_fence, {"turns come in one order"}),
        (_no_memory_of_events, {"events are applied once"}),
        (_nothing_emitted_again, {"committed effects are delivered"}),
        (_effects_before_the_commit, {"effects are explained"}),
        (_ignored_by_a_stale_actor, {"no plan is left waiting"}),
        (_reports_by_the_dispatchers_name_alone, {"nothing is lost"}),
        (_kept_answers_all_have_requests, {"results are right"}),
        (_timeouts_that_do_not_look, {"answers come before timeouts"}),
        (_values_stored_after_the_commit, {"no defect"}),
        (_acts_begun_again_blindly, {"acts are not repeated"}),
        (_outcomes_that_no_plan_hears, {"outcomes are known"}),
        (_undos_in_any_order, {"undos come in order"}),
        (_undos_under_keys_of_their_own, {"undos are not repeated"}),
        (_what_has_no_undo_is_not_named, {"rollbacks are complete"}),
        (_undos_begun_without_the_fence, {"rollbacks are complete"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_broken_product_is_found(break_it: Any, promises: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    for workload in _seeds(ENDED_BY_ANOTHER, *ACTS_STRUCK):
        if promises <= {each.promise for each in simulate(workload).violations}:
            return
    pytest.fail("100 seeds, and nothing was noticed")


def test_a_failure_is_told_with_its_seed_the_smallest_workload_and_the_timeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _effects_before_the_commit(monkeypatch)
    said = report(simulate(make_workload(7)), max_runs=60)
    assert said.startswith("seed 7 violates ")
    assert "smallest workload found that still fails:\nWorkload(seed=7" in said
    assert "timeline of plan p" in said
    assert "committed p" in said


def test_shrinking_leaves_out_what_a_failure_does_not_need() -> None:
    def fails(workload: Workload) -> bool:
        return any(step.kind == "wait" for plan in workload.plans for step in plan.steps)

    large = next(each for each in _seeds() if fails(each) and len(each.plans) > 2 and each.faults)
    small = shrink(large, fails)
    assert [[step.kind for step in plan.steps] for plan in small.plans] == [["wait"]]
    assert (small.faults, small.noise) == ((), Noise())
    assert all(step == 0 for step, _ in small.plans[0].signals)


def test_a_worker_dies_before_and_after_acts_and_none_is_repeated() -> None:
    told, states = set(), set()
    for workload in ACTS_STRUCK:
        outcome = simulate(workload)
        assert outcome.violations == []
        told |= {(each.fact.kind, each.fact.what) for each in outcome.history.entries if isinstance(each.fact, ActFact)}
        states |= {each.state for each in outcome.history.records}
    assert told >= {("look-up", "is found"), ("look-up", "is not found"), ("never", "was not done"), ("key", "begins")}
    assert states == {"done"}


ENDS_OF_REQUESTS = {
    "cancelled": PlanSpec("p0", "machine", (Step("ask", 1, "slow", seconds=1.0),), cancel_in_act=True),
    "late": PlanSpec("p0", "machine", (Step("race", 1, "slow", seconds=0.4),), rollback_at=(20.0,)),
}
"""Plans whose first request is withdrawn after its worker has died, by people or by a timeout."""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("end", ENDS_OF_REQUESTS)
@pytest.mark.parametrize("kind", get_args(EffectKind))
def test_an_act_whose_request_is_withdrawn_when_its_worker_has_died_is_settled(
    kind: EffectKind, end: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    settle = Settlement._settle

    async def noted(self: Settlement, begun: Any, version: int) -> Any:
        settled.append(begun.begun_by)
        return await settle(self, begun, version)

    monkeypatch.setattr(Settlement, "_settle", noted)
    plan = ENDS_OF_REQUESTS[end]
    plan = replace(plan, steps=(replace(plan.steps[0], effect=kind),))
    acted = set()
    for steps in (0, 2, 4):  # before the act, and after it
        fault = Fault("crash act", 0.0, steps=steps, seconds=3.0)
        outcome = simulate(Workload(steps, (plan,), (fault,), workers=workers, chaos_seconds=4.0))
        assert outcome.violations == []
        acted.add(any(isinstance(each.fact, ActFact) and each.fact.what == "acts" for each in outcome.history.entries))
    assert settled == ["p0:1-0"] * 3
    assert acted == {False, True}


def test_seeds_have_workers_die_in_acts_of_plans_that_are_cancelled() -> None:
    made = [make_workload(seed) for seed in range(100)]
    struck = [each for each in made if any(fault.kind == "crash act" for fault in each.faults)]
    assert any(plan.cancel_in_act for each in struck for plan in each.plans)


@pytest.mark.parametrize(
    "kind", ["crash host", "freeze host", "replace host", "crash dispatcher", "crash worker", "crash both"]
)
def test_a_fault_strikes_between_two_awaits_of_its_process(kind: Any) -> None:
    workload = Workload(
        seed=3,
        plans=(PlanSpec("p0", "machine", (Step("ask", 1), Step("ask", 2))),),
        faults=(Fault(kind, 0.0, steps=9),),
    )
    places = set()
    for steps, target in product(range(1, 80, 2), range(2)):  # either host may have the plan
        outcome = simulate(replace(workload, faults=(Fault(kind, 0.0, target=target, steps=steps),)))
        assert outcome.violations == []
        facts = [entry.fact for entry in outcome.history.entries]
        struck = (at for at, fact in enumerate(facts) if isinstance(fact, FaultStruck) and kind[:5] in fact.what)
        places.add(next(struck, 0))
    assert len(places) > 2
