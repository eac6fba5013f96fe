"""Runs: jobs alternate, failures are told and do not stop the others, peers that are not there are left out."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.peers.peer import PeerUnavailable
from benchmarks.systems.scratch import ROOT
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks.reports import rounds, rows, sides
from benchmarks.workloads import catalogue, w2, w6

QUIET = Console(file=io.StringIO())


class FakePeer:
    """Follows the protocol; does nothing."""

    name = "fake"
    workloads: frozenset[str] = frozenset({"w1", "w5"})

    def __init__(self, rate: float, missing: str = "") -> None:
        self.rate = rate
        self.missing = missing
        self.asked: list[tuple[str, int, str]] = []

    def setup(self, say: rows.Say) -> None:
        if self.missing:
            raise PeerUnavailable(self.missing)

    async def measure(self, workload: str, n: int, sync: str, say: rows.Say) -> rows.Row:
        self.asked.append((workload, n, sync))
        row = {"workload": workload, "system": self.name, "n": n, "sync": sync, "plans_per_second": self.rate}
        return {**row, "p50_ms": 1.0, "p99_ms": 2.0, "rss_mb": 3.0}


def job(title: str, order: list[str], error: Exception | None = None) -> rounds.Job:
    async def measure(say: rows.Say) -> list[rows.Row]:
        order.append(title)
        if error is not None:
            raise error
        return [{"workload": "w1", "system": title, "n": 1, "sync": "default", "plans_per_second": float(len(order))}]

    return rounds.Job(title, measure)


async def test_jobs_alternate_and_their_rows_are_kept_after_each_round() -> None:
    order: list[str] = []
    kept: list[int] = []

    found = await rounds.run(
        [job("a", order), job("b", order)], 3, QUIET, lambda merged: kept.append(merged[0]["runs"])
    )

    assert order == ["a", "b"] * 3
    assert kept == [1, 2, 3]
    assert [(row["system"], row["plans_per_second"]) for row in found.rows] == [("a", 3.0), ("b", 4.0)]
    assert not found.failures


async def test_a_failure_is_told_and_the_others_go_on() -> None:
    order: list[str] = []
    failing = job("a", order, BenchmarkFailed("1 of 2 plans completed"))

    found = await rounds.run([failing, job("b", order)], 1, QUIET, lambda merged: None)

    assert found.failures == ["a: 1 of 2 plans completed"]
    assert [row["system"] for row in found.rows] == ["b"]


def test_a_peer_that_cannot_be_set_up_is_left_out_with_its_reason() -> None:
    ready, failures = sides.set_up({"good": FakePeer(1.0), "bad": FakePeer(1.0, "no such server")}, lambda words: None)

    assert list(ready) == ["good"]
    assert failures == ["bad cannot be set up and is skipped: no such server"]


async def test_a_slow_peer_is_given_fewer_plans_the_same_in_each_round() -> None:
    peer = FakePeer(rate=50.0)
    jobs = [each for each in sides.jobs({"fake": peer}, ["w1"], (1_000, 10_000)) if "fake" in each.title]

    await rounds.run(jobs, 2, QUIET, lambda merged: None)

    assert peer.asked == [("w1", n, sync) for _ in range(2) for sync in ("always", "off") for n in (1_000, 5_000)]


async def test_peers_are_asked_for_the_workloads_that_they_know() -> None:
    peer = FakePeer(rate=50.0)

    titles = [each.title for each in sides.jobs({"fake": peer}, ["w2", "w5"], (1,))]

    assert [title for title in titles if "fake" in title] == ["w5, fake, sync always", "w5, fake, sync off"]
    assert sum("ours" in title for title in titles) == 4


async def test_peers_are_given_as_many_plans_as_ours() -> None:
    peer = FakePeer(rate=5000.0)
    peer.workloads = frozenset({"w1", "w2", "w5", "w6"})
    jobs = [each for each in sides.jobs({"fake": peer}, ["w1", "w2", "w5", "w6"], (1_000,)) if "fake" in each.title]

    await rounds.run(jobs, 1, QUIET, lambda merged: None)

    counts = {workload: n for workload, n, _ in peer.asked}
    assert counts == {"w1": 1_000, "w2": w2.COUNTS["short"][0], "w5": 1, "w6": w6.IN_FLIGHT["short"]}


async def test_peers_make_as_many_calls_as_our_plan_and_each_way_is_a_row() -> None:
    class Talker(FakePeer):
        workloads = frozenset({"w8"})

        async def measure(self, workload: str, n: int, sync: str, say: rows.Say) -> Any:
            row = await super().measure(workload, n, sync, say)
            return [{**row, "variant": way} for way in ("a", "b")]

    peer = Talker(rate=0)
    jobs = [each for each in sides.jobs({"fake": peer}, ["w8"], (1_000,), calls=(7, 9)) if "fake" in each.title]

    found = await rounds.run(jobs, 1, QUIET, lambda merged: None)

    assert peer.asked == [("w8", n, sync) for sync in ("always", "off") for n in (7, 9)]
    assert len(found.rows) == 8


@pytest.mark.parametrize("given", ["--report", "--targets"])
def test_reports_need_no_ray(given: str) -> None:
    program = f"""\
import sys
from benchmarks import __main__ as command
from benchmarks.reports import report
report.rewrite = lambda rows: True
command._draw = lambda: None
command.main([{given!r}])
sys.exit(str([name for name in ("ray", "nats", "plancast_actors") if name in sys.modules]))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.stderr.strip() == "[]"


def test_n_that_a_rate_allows() -> None:
    assert [sides.within_time(10_000, rate) for rate in (500.0, 83.5, 70.0, 20.0, 1.0)] == [
        10_000, 10_000, 5_000, 2_000, 2_000,
    ]  # fmt: skip
    assert sides.within_time(100, 1000.0) == 100


def asked(*given: str) -> list[str]:
    return [each.title for each in command.our_jobs(command.arguments(list(given)))]


def test_all_workloads_run_unless_options_name_some() -> None:
    assert asked()[:3] == ["w1, sync default", "w1, sync always", "w2, sync default"]
    assert {title.split(",")[0] for title in asked()} == set(catalogue.MODULES)
    assert asked("--workloads", "w3", "--scale", "full") == ["w3, sync default"]
    assert asked("--n", "10", "--sync", "always") == ["w1, sync always"]
    assert asked("--systems", "dedicated", "--sync", "default") == ["w1, sync default", "w5, sync default"]


@pytest.mark.parametrize("given", [["--n", "0"], ["--repeat", "-1"], ["--peers", "--workloads", "w3"]])
def test_options_that_make_no_sense_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.arguments(given)

    assert "error:" in capsys.readouterr().err


def test_side_by_side_runs_three_times_by_default() -> None:
    options = command.arguments(["--peers"])

    assert (options.peers, options.repeat, options.workloads) == ([], 3, ["w1", "w2", "w5", "w6", "w8"])
    assert command.arguments([]).repeat == 1


def test_quick_runs_and_failed_ones_leave_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(command, "save", lambda rows, path: saved.append(path))
    measured: Callable[..., Awaitable[list[rows.Row]]] = job("a", []).measure
    monkeypatch.setattr(command, "_measure", lambda workload, sync, options, say: measured(say))

    assert command.main(["--workloads", "w5", "--scale", "quick"]) == 0
    monkeypatch.setattr(command, "_measure", lambda *given: job("a", [], BenchmarkFailed("no")).measure(given[-1]))
    assert command.main(["--workloads", "w5", "--scale", "quick"]) == 1
    assert not saved
