"""The peers on PostgreSQL, small: their rows are complete, and wrong ends are noticed. Speed is not judged."""

import os
import subprocess
from pathlib import Path

import pytest
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.peers import dbos_peer, langgraph_peer, postgres
from benchmarks.peers.figures import answers, check
from benchmarks.peers.peer import Peer, PeerUnavailable

FIELDS = {
    "workload", "system", "n", "sync", "durability", "is_default", "plans_per_second", "p50_ms", "p99_ms", "rss_mb",
}  # fmt: skip
GIGABYTE = 2**30


@pytest.mark.growth
@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", [dbos_peer.peer, langgraph_peer.peer], ids=lambda peer: peer.name)
async def test_a_peer_runs_each_workload_and_leaves_nothing(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbos_peer, "WORKERS", 2)
    before = children()  # servers that other tests share
    try:
        peer.setup(print)
    except PeerUnavailable as missing:
        pytest.skip(str(missing))

    rows = [await peer.measure(workload, 20, "always", print) for workload in ("w1", "w2")]
    alone = await peer.measure("w5", 1, "off", print)

    for row in [*rows, alone]:
        assert row.keys() >= FIELDS
        assert row["system"] == peer.name
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["plans_per_second"] > 0
        assert row["rss_mb"] > 0
    assert [row["plans"] for row in rows] == [20, 20]
    assert alone["cold_ms"] > 0
    assert alone["p50_turn_ms"] == pytest.approx(alone["p50_ms"] / 4, abs=0.01)
    assert (rows[0]["is_default"], alone["is_default"]) == (True, False)
    assert children() == before


def test_plans_that_end_once_with_all_answers_pass() -> None:
    plans = [("a", 0), ("b", 1)]

    check("w1", plans, [(plan, 0.1, answers("w1", value)) for plan, value in plans])


def test_a_plan_that_is_missing_repeated_or_wrong_fails_the_round() -> None:
    plans = [("a", 0), ("b", 1)]
    first, second = (("a", 0.1, answers("w2", 0)), ("b", 0.1, answers("w2", 1)))

    for ended in ([first], [first, second, second], [first, ("b", 0.1, answers("w2", 0))], [first, ("b", 0.1, [])]):
        with pytest.raises(BenchmarkFailed):
            check("w2", plans, ended)


def test_durability_differs_by_synchronous_commit_alone() -> None:
    always, off = postgres.options("always", 24 * GIGABYTE), postgres.options("off", 24 * GIGABYTE)

    assert {name for name in always if always[name] != off[name]} == {"synchronous_commit"}
    assert not {"fsync", "full_page_writes"} & always.keys()


def test_without_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(PeerUnavailable, match="apt-get install postgresql"):
        postgres.setup(print)


def children() -> list[str]:
    """Processes that this one has started and that are still there."""
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if not line.startswith("ps ")]
