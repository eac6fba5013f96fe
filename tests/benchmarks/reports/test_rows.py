"""Rows: runs are merged by their medians, and kept in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.reports import rows


def row(workload: str = "w1", system: str = "shared", n: int = 10, sync: str = "default", **more: Any) -> rows.Row:
    return {"workload": workload, "system": system, "n": n, "sync": sync, "plans_per_second": 1.0, **more}


def test_runs_of_the_same_measurement_become_one_row_of_medians() -> None:
    runs = [
        row(plans_per_second=rate, p50_ms=rate / 2, lost=lost, durability="d", processes={"hosts": 2}, is_default=True)
        for rate, lost in ((10.0, 0), (30.0, 1), (20.0, 0))
    ]

    (merged,) = rows.merge(runs)

    assert (merged["plans_per_second"], merged["plans_per_second_spread"]) == (20, [10, 30])
    assert (merged["p50_ms"], merged["p50_ms_spread"]) == (10, [5, 15])
    assert (merged["n"], merged["runs"], merged["processes"]) == (10, 3, {"hosts": 2})
    assert (merged["durability"], merged["is_default"]) == ("d", True)
    assert merged["lost"] == 1  # no median hides a loss


def test_what_makes_no_sense_for_a_workload_stays_none() -> None:
    (merged,) = rows.merge([row(plans_per_second=None), row(plans_per_second=None)])

    assert merged["plans_per_second"] is None
    assert "plans_per_second_spread" not in merged


def test_rows_of_other_n_sync_or_variant_are_kept_apart() -> None:
    runs = [row(), row(n=20), row(sync="always"), row(variant="host"), row(variant="dispatcher"), row()]

    assert [merged["runs"] for merged in rows.merge(runs)] == [2, 1, 1, 1, 1]


def test_ours_are_related_to_the_baseline_of_the_same_n_and_sync() -> None:
    found = [
        row(plans_per_second=70.0),
        row(system="baseline", plans_per_second=100.0),
        row(sync="always", plans_per_second=50.0),
        row(system="restate", plans_per_second=50.0),
    ]

    rows.relate(found)

    assert [each.get("ratio_to_baseline") for each in found] == [0.7, 1.0, None, None]


def test_a_run_renews_its_own_rows_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    rows.save([row("w1", plans_per_second=1.0), row("w3", n=1000), row("w3", n=100_000)], path)

    rows.save([row("w3", n=1000, plans_per_second=2.0)], path)

    stored = rows.load(path)
    assert [(each["workload"], each["n"], each["plans_per_second"]) for each in stored] == [
        ("w1", 10, 1.0), ("w3", 1000, 2.0), ("w3", 100_000, 1.0),
    ]  # fmt: skip
    assert all(each["date"] and each["machine"]["cores"] for each in stored)
    assert [file.name for file in tmp_path.iterdir()] == ["bench.json"]


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert rows.load(tmp_path / "bench.json") == []
