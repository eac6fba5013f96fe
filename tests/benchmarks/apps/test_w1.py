"""The benchmark W1, small: it runs, and its rows say what they should. Speed is not judged."""

import subprocess
import sys

import pytest
from benchmarks.load.outcome import Outcome
from benchmarks.systems.processes import memory_mb
from benchmarks.workloads.catalogue import measure_of

from benchmarks.apps import w1
from benchmarks.systems import script
from benchmarks.workloads import hops

FIELDS = {
    "workload", "system", "n", "sync", "durability", "is_default", "plans_per_second", "turns_per_second",
    "p50_ms", "p99_ms", "rss_mb", "hosts_rss_mb", "cpu_ms_per_plan", "processes",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["w1", "w5"])
async def test_shared_and_baseline_run_and_leave_rows(workload: str) -> None:
    found = await measure_of(workload)("quick", "default", lambda words: None)

    assert [row["system"] for row in found] == ["shared", "baseline"]
    for row in found:
        assert row.keys() >= FIELDS
        assert (row["workload"], row["sync"], row["is_default"]) == (workload, "default", True)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["plans_per_second"] > 0
        assert row["turns_per_second"] == pytest.approx(row["plans_per_second"] * w1.TURNS, rel=0.01)
        assert 0 < row["hosts_rss_mb"] < row["rss_mb"]
    shared, baseline = found
    assert shared["processes"]["ray"] >= 2  # raylet and gcs_server at least
    assert "ray" not in baseline["processes"]
    if workload == "w5":
        assert all(row["cold_ms"] > 0 for row in found)
        assert all(row["p50_turn_ms"] == pytest.approx(row["p50_ms"] / w1.TURNS, abs=0.001) for row in found)


def test_memory_of_processes_that_are_gone_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert memory_mb([process.pid]) > 0
        process.communicate(b"\n")

    assert memory_mb([process.pid]) == 0


@pytest.mark.slow
async def test_every_hop_of_a_plan_is_heard() -> None:
    heard = await hops.listen("baseline", "default", count=10)

    assert len(heard) == 10
    for plan in heard:
        assert sum(map(sum, (plan[hop] for hop in hops.HOPS))) == pytest.approx(plan[hops.ALL][0])


async def test_the_recorded_plan_has_four_turns_and_three_answers() -> None:
    recorded = await script.record()

    assert len(recorded.turns) == w1.TURNS
    assert len(recorded.answers) == len(w1.STEPS)
    assert [turn.expires_after > 0 for turn in recorded.turns] == [False, False, False, True]


def test_a_percentile_is_a_latency_that_occurred() -> None:
    outcome = Outcome(1.0, [each / 1000 for each in range(100, 0, -1)])

    assert (outcome.percentile_ms(50), outcome.percentile_ms(99), outcome.percentile_ms(100)) == (50, 99, 100)
    assert Outcome(1.0, [0.007]).percentile_ms(99) == 7
