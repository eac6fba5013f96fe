"""The benchmark of an idle deployment, small. How much it uses is not judged."""

import os
import subprocess
import sys

import pytest
from benchmarks.systems.processes import OTHER, started_here

from benchmarks.workloads import idle


@pytest.mark.slow
async def test_an_idle_deployment_is_told_by_kind_of_process() -> None:
    (row,) = await idle.measure("quick", "default", lambda _words: None)

    kinds = row["cpu_percent_by_kind"]
    assert kinds.keys() >= {"hosts", "dispatchers", "workers", "nats-server", idle.SUPERVISOR, "ray raylet"}
    assert all(share >= 0 for share in kinds.values())
    rays = sum(share for kind, share in kinds.items() if kind.startswith(idle.RAY))
    assert row["ray_cpu_percent"] == pytest.approx(rays, abs=0.02)
    assert row["cpu_percent"] == pytest.approx(sum(kinds.values()) - rays, abs=0.02)
    assert row["ray_alone_cpu_percent"] > 0
    assert row["rss_mb"] > row["hosts_rss_mb"] > 0


def test_processes_below_this_one_are_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = started_here()
    finally:
        child.communicate(b"\n")

    assert child.pid in found[OTHER]
    assert os.getpid() not in [pid for pids in found.values() for pid in pids]


def test_a_process_that_works_uses_a_core() -> None:
    before = idle.cpu_seconds(os.getpid())

    while idle.cpu_seconds(os.getpid()) == before:  # it is counted in ticks of the kernel
        sum(range(100_000))

    assert idle.cpu_seconds(os.getpid()) > before
    assert idle.cpu_seconds(2**30) == 0.0
