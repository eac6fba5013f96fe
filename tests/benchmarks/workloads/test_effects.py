"""The benchmark of recorded effects, small: it runs, and its rows say what they should. Speed is not judged."""

import pytest

from benchmarks.workloads import effects


@pytest.mark.slow
async def test_plain_and_recorded_plans_run_in_turn_and_give_rows() -> None:
    found = await effects.measure("quick", "default", lambda _words: None)

    assert [(row["workload"], row["variant"], row["n"], row["plans"]) for row in found] == [
        ("effects", "plain", 20, 40),
        ("effects", "recorded", 20, 40),
    ]
    assert found[0]["ratio_to_plain"] == 1
    assert found[1]["ratio_to_plain"] > 0
