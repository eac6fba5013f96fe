"""The report: targets, tables, charts and the README's table come from rows, and from nothing else."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.reports import report, rows, targets

MACHINE = {"cores": 4, "cpu": "a processor", "memory_gb": 16.0}
RATES = {"shared": 900.0, "baseline": 1000.0, "restate": 300.0, "langgraph": 100.0, "dbos": 40.0}


def row(workload: str, system: str, n: int, sync: str, rate: float | None = 100.0, **more: Any) -> rows.Row:
    figures = {"plans_per_second": rate, "p50_ms": 8.0, "p99_ms": 12.0, "rss_mb": 500.0}
    stamp = {"runs": 3, "date": "2026-01-02T03:04:05+00:00", "machine": MACHINE}
    facts = {"workload": workload, "system": system, "n": n, "sync": sync, "is_default": sync == "default"}
    return {**facts, **figures, **stamp, **more}


def peers_rows() -> list[rows.Row]:
    found = []
    for system, rate in RATES.items():
        ours = system in ("shared", "baseline")
        for sync in ("default" if ours else "off", "always"):
            scale = 0.5 if ours and sync == "always" else 1
            found += [row("w1", system, n, sync, rate * scale) for n in (1000, 10_000)]
            found += [row("w2", system, 1000, sync), row("w5", system, 1, sync)]
    return found


def bench_rows() -> list[rows.Row]:
    ours = [row("w1", "shared", n, "default", rate) for n, rate in ((1000, 800.0), (10_000, 900.0), (100_000, 600.0))]
    return [
        *ours,
        row("w1", "baseline", 10_000, "default", 1000.0),
        row("w3", "shared", 1000, "default", rss_per_live_plan_kb=3.0),
        row("w6", "shared", 1000, "default", None, variant="host", recovery_p50_ms=2e3, recovery_p99_ms=3e3, lost=0),
        row("w6", "shared", 1000, "default", None, variant="other", recovery_p50_ms=2e3, recovery_p99_ms=6e3, lost=0),
    ]


def verdicts(bench: list[rows.Row], peers: list[rows.Row]) -> dict[str, tuple[float | None, str]]:
    results = targets.Results(bench, peers)
    return {target.what: target.verdict(results) for target in targets.TARGETS}


def test_targets_are_judged_by_the_rows() -> None:
    found = verdicts(bench_rows(), peers_rows())

    assert found["W1 10,000: by Restate's, own defaults"] == (3.0, "met")
    assert found["W1 10,000: by Restate's, synced"] == (1.5, "not met")
    assert found["W1 10,000: by LangGraph's, own defaults"] == (9.0, "not met")
    assert found["W1 10,000: by DBOS's, own defaults"] == (22.5, "met")
    assert found["W1 10,000: by the baseline's"] == (0.9, "met")
    assert found["W1: rate lost from 1,000 to 100,000"] == (pytest.approx(25), "not met")
    assert found["W6: every plan moves again, p99"] == (6000, "not met")  # the worse of the two
    assert found["W6: plans lost"] == (0, "met")
    assert found["W3 100,000: memory of a live plan"] == (None, "not measured")  # 1,000 do not stand for 100,000


def test_one_plan_alone_is_judged_at_the_defaults_and_shown_at_equal_durability() -> None:
    alone = [
        row("w5", system, 1, sync, p50_ms=p50)
        for system, sync, p50 in (
            ("shared", "default", 4.0), ("shared", "always", 10.0), ("restate", "always", 8.0), ("restate", "off", 5.0),
        )
    ]  # fmt: skip
    results = targets.Results([], alone)
    first = next(at for at, each in enumerate(targets.TARGETS) if each.what == "W5: p50 by Restate's, own defaults")

    found = [(each.what.strip(), *each.verdict(results)) for each in targets.TARGETS[first : first + 3]]

    assert found == [
        ("W5: p50 by Restate's, own defaults", 0.5, "met"), ("both synced", 1.25, ""), ("neither synced", 0.8, ""),
    ]  # fmt: skip


def test_a_slow_peer_is_judged_by_the_largest_n_that_it_was_given() -> None:
    peers = [each for each in peers_rows() if (each["system"], each["n"]) != ("dbos", 10_000)]

    assert verdicts([], peers)["W1 10,000: by DBOS's, own defaults"] == (22.5, "met")


def test_nothing_is_met_without_rows() -> None:
    assert {verdict for _, verdict in verdicts([], []).values()} == {"not measured"}
    assert targets.table(targets.Results([], [])).row_count == len(targets.TARGETS)


def test_tables_show_their_figures_whole_at_80_columns() -> None:
    console = Console(width=80, file=io.StringIO())

    for table in report.tables([*peers_rows(), *bench_rows()], "a run"):
        console.print(table)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert all(name in shown for name in ("shared", "langgraph", "10,000", "100,000", "always", "moves"))


def test_the_readme_gets_its_table_between_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")

    assert report.rewrite(peers_rows(), readme)
    once = readme.read_text()
    assert report.rewrite(peers_rows(), readme)

    assert readme.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert "| **plancast** (its default) | 900 |" in once
    assert "| **plancast** | 450 |" in once
    assert "4 cores (a processor), 16 GB; medians of 3 runs; – was not measured. W1 with 10,000 plans at once." in once


def test_a_readme_keeps_its_table_when_there_are_no_rows_and_may_have_none(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\nold\n{report.END}\n")

    assert report.rewrite([], readme)
    assert "old" in readme.read_text()
    readme.write_text("no markers")
    assert not report.rewrite(peers_rows(), readme)


def test_the_projects_readme_has_a_place_for_the_table() -> None:
    text = report.README.read_text()

    assert text.count(report.BEGIN) == text.count(report.END) == 1


def test_charts_are_drawn_from_the_rows_that_there_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="make bench and make test install it")
    from benchmarks.reports import charts

    drawn = charts.draw(bench_rows(), peers_rows(), tmp_path / "all")
    fewer = charts.draw([], [row("w5", "shared", 1, "always")], tmp_path / "fewer")

    assert [path.name for path in drawn] == ["throughput.png", "latency.png", "memory.png", "recovery.png"]
    assert [path.name for path in fewer] == ["latency.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in [*drawn, *fewer])
    assert charts.draw([], [], tmp_path / "none") == []


def test_recovery_of_a_peer_is_drawn_beside_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="make bench and make test install it")
    from benchmarks.reports import charts

    given: list[rows.Row] = []
    monkeypatch.setattr(charts, "recovery", lambda found: given.extend(found))
    killed = {"variant": "host", "recovery_p50_ms": 2e3, "recovery_p99_ms": 3e3}
    theirs = [row("w6", system, 1000, "always", None, **killed) for system in ("restate", "shared")]

    charts.draw(bench_rows(), theirs, tmp_path)

    of_w6 = [each["system"] for each in given if each["workload"] == "w6"]
    assert of_w6 == ["shared", "shared", "restate"]


def test_only_rows_of_the_peers_kind_of_machine_are_drawn_beside_them() -> None:
    pytest.importorskip("matplotlib", reason="make bench and make test install it")
    from benchmarks.reports import charts

    same = row("w1", "shared", 100_000, "default", 600.0)
    other = {**row("w1", "shared", 100, "default", 600.0), "machine": {"cores": 64, "cpu": "another"}}

    together = charts.beside([same, other], peers_rows())

    assert same in together
    assert other not in together
