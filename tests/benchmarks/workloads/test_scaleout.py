"""The benchmark of scale-out: its rows, and that what it starts stays on its cores. Speed is not judged."""

import os
import subprocess
import sys

import pytest

from benchmarks.workloads import scaleout


def test_what_is_started_meanwhile_stays_on_the_cores() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)

    with scaleout.pinned([core]):
        told = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip

    assert told.stdout.strip() == str({core})
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two cores")
async def test_it_leaves_a_row_of_one_unit_and_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scaleout.COUNTS, "quick", 20)
    said: list[str] = []

    one, two = await scaleout.measure("quick", "default", said.append)

    assert one["cores"] * 2 == two["cores"]
    assert [row["processes"]["dispatchers"] for row in (one, two)] == [1, 2]
    assert [row["processes"]["hosts"] for row in (one, two)] == [2, 4]
    assert [row["processes"]["workers"] for row in (one, two)] == [1, 2]
    assert one["variant"] != two["variant"]
    assert two["scaleout_ratio"] == pytest.approx(two["plans_per_second"] / one["plans_per_second"], rel=0.01)
    assert "scaleout_ratio" not in one
