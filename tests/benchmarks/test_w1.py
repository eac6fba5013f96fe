"""The benchmark W1, small: it runs, and its rows say what they should. Speed is not judged."""

import json
from pathlib import Path

import pytest
from benchmarks.driver import Outcome

from benchmarks import __main__ as command
from benchmarks import hops, rows, script, w1

FIELDS = {
    "workload", "system", "n", "sync", "plans_per_second", "turns_per_second", "p50_ms", "p99_ms", "rss_mb",
    "rss_per_live_plan_kb", "ratio_to_baseline", "cpu_ms_per_plan", "processes", "driver", "date", "machine",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_shared_and_baseline_run_and_leave_rows(tmp_path: Path) -> None:
    options = command.arguments(["--n", "1", "20", "--systems", "shared", "baseline", "--quick"])

    found = await command.run(options)

    saved = rows.save("w1", found, tmp_path)
    listed = json.loads(saved.read_text())
    assert json.loads((tmp_path / "latest-w1.json").read_text()) == listed
    assert [(row["system"], row["n"]) for row in listed] == [
        ("shared", 1), ("baseline", 1), ("shared", 20), ("baseline", 20),
    ]  # fmt: skip
    for row in listed:
        assert row.keys() >= FIELDS
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["plans_per_second"] > 0
        assert row["turns_per_second"] == pytest.approx(row["plans_per_second"] * w1.TURNS, rel=0.01)
        assert row["rss_mb"] > 0
    assert [row["ratio_to_baseline"] for row in listed if row["system"] == "baseline"] == [1.0, 1.0]
    assert rows.table(found).row_count == len(listed)


@pytest.mark.slow
@pytest.mark.timeout(240)
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
