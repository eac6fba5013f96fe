"""The benchmark W9, small: the plan comes back with all its answers, and the figures add up. Speed is not judged."""

import random

import pytest
from benchmarks.apps.w9 import machine

from benchmarks.workloads import w9
from plancast.state_machine.machine import validate_state_machine


@pytest.mark.slow
async def test_a_plan_comes_back_with_its_answers_and_gives_a_row() -> None:
    (row,) = await w9.measure("quick", "default", lambda _words: None, megabytes=(0.2, 0.1), counts=(3,))

    assert (row["workload"], row["n"], row["variant"], row["megabytes"]) == ("w9", 3, "0.5 MB", [0.1, 0.2])
    assert row["new_mb"] == pytest.approx(0.5)
    assert row["new_mb"] > row["values_mb"] > row["checkpoints_mb"] + row["history_mb"]  # compressed, and stored once
    assert row["written_mb"] > row["values_mb"] + row["checkpoints_mb"] + row["history_mb"]
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert 0 < row["back_p50_ms"] <= row["back_max_ms"]
    assert row["wake_ms"] > 0
    assert row["peak_host_mb"] >= row["empty_host_mb"] > 0
    assert row["memory_ratio"] == pytest.approx(row["passivated_host_mb"] / row["empty_host_mb"], abs=0.01)


def test_the_machine_is_valid() -> None:
    validate_state_machine(machine(3))


def test_answers_have_the_size_that_is_asked_for_and_differ() -> None:
    texts = [w9.text(1_000, random.Random(number)) for number in range(3)]

    assert [len(each) for each in texts] == [1_000] * 3
    assert len(set(texts)) == 3
