"""The benchmark of planners: tasks and noise are reproducible, and the figures count what happened."""

import asyncio
import io
from random import Random

import pytest
from benchmarks.planners import __main__ as command
from benchmarks.planners.oracle import DETECTABLE, VALID_BUT_WRONG, Oracle
from benchmarks.planners.tasks import STEPS, invalid_data, registry, tasks, valid_data
from rich.console import Console

from plancast.json_values.schemas import schema_faults
from plancast.testing import ModelRequest


def asked(text: str, messages: int = 2) -> ModelRequest:
    said = [{"role": "user", "content": text}] * messages
    return ModelRequest(1, "m", said, {}, {}, False, "", 0.0)


def test_there_are_60_events_whose_schemas_tell_good_data_from_bad() -> None:
    events, chance = registry(), Random(1)
    assert len(events) == 60
    for name, event in events.items():
        for _ in range(10):
            assert not schema_faults(event.payload_schema or {}, valid_data(name, "case-0001", chance))
            assert schema_faults(event.payload_schema or {}, invalid_data(name, "case-0001", chance))


def test_equal_seeds_make_equal_tasks_and_equal_noise() -> None:
    made = tasks(3, 7)
    assert made == tasks(3, 7) != tasks(3, 8)
    answers = [[Oracle(made, 0.5, 7, repairs=True).answer(asked("case-0001")).text for _ in range(2)] for _ in range(2)]
    assert answers[0] == answers[1]


def test_every_kind_of_noise_occurs_and_only_valid_ones_are_not_detectable() -> None:
    oracle = Oracle(tasks(1, 1), 1.0, 1, repairs=True)
    run = oracle.runs["case-0000"]
    run.done = 3
    for _ in range(200):
        oracle.answer(asked("case-0000", messages=4))
    assert set(run.noise) == {*DETECTABLE, *VALID_BUT_WRONG}
    assert (run.calls, run.repairs, run.detectable) == (200, 200, False)


def test_a_task_is_done_by_its_requests_alone() -> None:
    oracle = Oracle(tasks(2, 1), 0.0, 1, repairs=True)
    for name, run in oracle.runs.items():
        for step in run.task.steps:
            oracle.effect(name, step.event_type, step.data)
        run.completed = True
    right, other = oracle.runs.values()
    assert right.done == STEPS
    assert right.succeeded
    oracle.effect("case-0001", "wire.transfer", {})
    assert (other.unsafe, other.succeeded) == (1, False)
    oracle.effect("case-0000", right.task.steps[0].event_type, right.task.steps[0].data)
    assert (right.wrong, right.succeeded) == (1, False)


@pytest.mark.slow
def test_a_planner_gets_done_what_a_naive_loop_does_not() -> None:
    figures = asyncio.run(command.measure(12, [0.0, 0.2], 1))
    (naive, ours), (naive_noisy, ours_noisy) = figures[:2], figures[2:]
    assert naive.succeeded == ours.succeeded == 12
    assert (ours.repairs, ours.unsafe, ours_noisy.unsafe) == (0, 0, 0)
    assert naive_noisy.unsafe > 0
    assert naive_noisy.succeeded < ours_noisy.succeeded
    assert ours_noisy.detectable_succeeded >= 0.95 * ours_noisy.detectable
    assert ours_noisy.repairs > 0
    out = Console(file=io.StringIO(), width=120)
    out.print(command.table(figures, 1).shown())
    assert "100.0%" in out.file.getvalue()  # type: ignore[attr-defined]
