"""The outcome of a round of plans."""

import pytest
from benchmarks.load.outcome import BenchmarkFailed, Outcome


def test_a_percentile_is_a_latency_that_so_many_plans_do_not_exceed() -> None:
    outcome = Outcome(1.0, [0.004, 0.001, 0.003, 0.002])

    assert [outcome.percentile_ms(percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 4.0, 4.0]


def test_latencies_of_no_plan_have_no_percentile() -> None:
    with pytest.raises(BenchmarkFailed, match="no plan has ended, so there is no p99 of their latencies"):
        Outcome(1.0).percentile_ms(99)
