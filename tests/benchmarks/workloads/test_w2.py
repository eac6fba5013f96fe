"""The benchmark W2, small: it runs, and its rows say what they should. Speed is not judged."""

import pytest

from benchmarks.apps import fan_out
from benchmarks.systems import script
from benchmarks.workloads import w2
from plancast_bus.events.codec import load

FIELDS = {
    "workload", "system", "n", "sync", "durability", "is_default", "plans_per_second", "turns_per_second", "p50_ms",
    "p99_ms", "rss_mb", "hosts_rss_mb", "cpu_ms_per_plan", "branches",
}  # fmt: skip


@pytest.mark.slow
async def test_shared_and_baseline_run_and_give_rows() -> None:
    said: list[str] = []

    found = await w2.measure("quick", "default", said.append)

    rows = [(row["workload"], row["system"], row["n"]) for row in found]
    assert rows == [("w2", "shared", 50), ("w2", "baseline", 50)]
    for row in found:
        assert row.keys() >= FIELDS
        assert row["plans"] == 50
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["turns_per_second"] == pytest.approx(row["plans_per_second"] * 11, rel=0.01)
        assert 0 < row["hosts_rss_mb"] < row["rss_mb"]
    assert said


async def test_a_plan_asks_ten_things_at_once_and_joins_the_answers() -> None:
    recorded = await script.record(script.W2)

    assert [len(turn.sent) for turn in recorded.turns] == [10, *([0] * 9), 1]
    assert len(recorded.turns) == fan_out.TURNS
    assert len(set(recorded.answers)) == len(recorded.answers) == 10
    assert [turn.expires_after > 0 for turn in recorded.turns] == [False] * 10 + [True]


async def test_the_final_response_holds_every_answer() -> None:
    recorded = await script.record(script.W2)

    response = load(recorded.turns[-1].sent[0], recorded.content_type)

    assert response["data"]["status"] == "completed"
    assert response["data"]["result"] == {"answers": [{"n": 0, "branch": branch} for branch in range(10)]}
