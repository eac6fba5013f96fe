"""Restate as a peer: what its measurements stand on, and, marked growth, that they run. Speed is not judged."""

import contextlib
import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.peers import restate_server
from benchmarks.peers.peer import Peer, PeerSync, PeerUnavailable
from benchmarks.peers.restate_peer import durability, peer, recovery
from benchmarks.peers.restate_server import configuration, fetch, serving

FOLDER = Path(restate_server.__file__).parent / "restate"
PORTS = {"fabric": 1, "ingress": 2, "admin": 3, "plans": 4}
FIELDS = {
    "workload",
    "system",
    "n",
    "sync",
    "durability",
    "is_default",
    "plans_per_second",
    "p50_ms",
    "p99_ms",
    "rss_mb",
}


def test_restate_follows_the_contract_of_peers() -> None:
    assert isinstance(peer, Peer)
    assert peer.workloads == {"w1", "w2", "w5", "w6", "w8"}


@pytest.mark.parametrize(("sync", "skips"), [("always", False), ("off", True)])
def test_sync_is_the_fsync_of_the_log_and_nothing_else(tmp_path: Path, sync: PeerSync, skips: bool) -> None:
    settings = tomllib.loads(configuration(tmp_path, PORTS, sync))
    other = tomllib.loads(configuration(tmp_path, PORTS, "off" if sync == "always" else "always"))

    assert settings.pop("log-server") == {"rocksdb-disable-wal-fsync": skips}
    assert other.pop("log-server") == {"rocksdb-disable-wal-fsync": not skips}
    assert settings == other
    said = durability(sync)
    assert (said["sync"], said["is_default"]) == (sync, not skips)
    assert "rocksdb-disable-wal-fsync" in said["durability"]


def test_the_server_keeps_to_itself_and_to_its_folder(tmp_path: Path) -> None:
    settings = tomllib.loads(configuration(tmp_path, PORTS, "always"))

    assert settings["disable-telemetry"] is True
    assert settings["bind-ip"] == "127.0.0.1"
    assert Path(settings["base-dir"]).parent == tmp_path
    assert [settings["bind-port"], settings["ingress"]["bind-port"], settings["admin"]["bind-port"]] == [1, 2, 3]


def test_plans_are_served_by_as_many_workers_as_asked_for() -> None:
    settings = tomllib.loads(serving(4, 3))

    assert (settings["bind"], settings["workers"]) == ("127.0.0.1:4", 3)


def test_versions_are_pinned_by_hash_and_name_no_registry() -> None:
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    lock = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    requirements = (FOLDER / "requirements.txt").read_text()

    packages = {name: package for name, package in lock.items() if name}
    assert wanted == {"@restatedev/restate-server": packages["node_modules/@restatedev/restate-server"]["version"]}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not [name for name, package in packages.items() if "resolved" in package]
    pinned = [line for line in requirements.splitlines() if not line.startswith(" ")]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)
    assert "://" not in requirements
    assert "--hash=sha256:" in requirements


def test_without_npm_restate_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restate_server, "SERVER", tmp_path / "server")
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(PeerUnavailable, match="npm"):
        fetch(lambda words: None)


def test_recovery_is_from_the_kill_to_the_next_step_of_a_new_process() -> None:
    old, new = 1, 2
    before = [[0, 0, old, 9.0], [1, 0, old, 9.5]]
    late = [[0, 1, old, 10.1]]  # on its way when its process was killed
    after = [[0, 1, new, 11.0], [0, 2, new, 12.0], [1, 1, new, 13.0]]

    moved = recovery([*before, *late, *after], 10.0)

    assert sorted(moved.latencies) == [1.0, 3.0]
    assert moved.percentile_ms(100) == 3000.0


def test_a_plan_that_does_not_move_again_fails_the_benchmark() -> None:
    with pytest.raises(BenchmarkFailed, match="1 plans have taken no step"):
        recovery([[0, 0, 1, 9.0], [1, 0, 1, 9.0], [0, 1, 2, 11.0]], 10.0)


@pytest.mark.growth
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("workload", "n", "sync"), [("w1", 20, "always"), ("w2", 20, "off"), ("w6", 20, "always")])
async def test_it_runs_leaves_a_row_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, n: int, sync: PeerSync
) -> None:
    try:
        peer.setup(lambda words: None)
    except PeerUnavailable as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(restate_server, "scratch", lambda: contextlib.nullcontext(tmp_path))

    row = await peer.measure(workload, n, sync, lambda words: None)

    assert row.keys() >= FIELDS
    assert (row["workload"], row["system"], row["n"], row["sync"]) == (workload, "restate", n, sync)
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert row["rss_mb"] > 0
    if workload == "w6":
        assert row["lost"] == 0
        assert 0 < row["recovery_p50_ms"] <= row["recovery_max_ms"]
    else:
        assert row["plans_per_second"] > 0
        assert row["plans"] == n
        assert row["processes"]["plans"] > (os.cpu_count() or 1)
    assert (tmp_path / "data").is_dir()
    assert not _running_in(tmp_path)


def _running_in(folder: Path) -> list[str]:
    """The commands of processes that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in found if str(folder) in command]
