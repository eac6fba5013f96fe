"""The end of a benchmark: whatever ends it, what it has started ends too, and its folders go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from benchmarks.systems.scratch import PREFIX, ROOT, scratch, sweep

from benchmarks.systems import scratch as scratch_module

RUN = """\
import os, subprocess, sys, time
from benchmarks.systems import ending
from benchmarks.systems.scratch import sockets

ending.LEAVE_SECONDS = 0.5

def run():
    with sockets() as folder:
        stubborn = "trap '' TERM INT HUP; (sleep 300 & echo $!; wait) & echo $!; wait"
        lost = subprocess.Popen(["sh", "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE, text=True)
        pids = [lost.pid, *(int(lost.stdout.readline()) for _ in range(2))]
        server = subprocess.Popen(["sleep", "300"], start_new_session=True, preexec_fn=ending.dying_with_parent())
        print(os.getpid(), server.pid, *pids, folder, flush=True)
        {then}

sys.exit(ending.supervised(run))
"""


class Benchmark:
    """A benchmark that runs, with what it has started: the child that measures, a server, and what it cannot see."""

    def __init__(self, then: str, folder: Path) -> None:
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN.format(then=then)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),  # as a shell does with what it puts aside
        )
        assert self.process.stdout is not None
        run, server, *lost, folder_name = self.process.stdout.readline().split()
        self.run, self.server, self.lost, self.folder = int(run), int(server), list(map(int, lost)), Path(folder_name)

    def left(self) -> list[int]:
        """What of it still runs."""
        return [pid for pid in (self.run, self.server, *self.lost) if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start() -> Iterator[list[Benchmark]]:
    started: list[Benchmark] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()
        for pid in each.left():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(number: int, tmp_path: Path, start: list[Benchmark]) -> None:
    start.append(found := Benchmark("time.sleep(300)", tmp_path))

    found.process.send_signal(number)

    assert found.process.wait(30) == 130
    assert found.left() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("then", "code"), [("return 3", 3), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", 130)])
def test_nothing_is_left_however_the_run_ends(then: str, code: int, tmp_path: Path, start: list[Benchmark]) -> None:
    start.append(found := Benchmark(then, tmp_path))

    assert found.process.wait(30) == code
    assert found.left() == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_supervisor_is_killed_ends_and_its_servers_with_it(tmp_path: Path, start: list[Benchmark]) -> None:
    start.append(found := Benchmark("time.sleep(300)", tmp_path))

    found.process.kill()

    deadline = time.monotonic() + 30
    while {found.run, found.server} & set(found.left()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_processes_that_are_gone_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_module, "SCRATCH", tmp_path)
    (tmp_path / f"{PREFIX}{2**30}-abc" / "nats").mkdir(parents=True)
    (tmp_path / "of somebody else").mkdir()

    with scratch() as mine:
        sweep()

        assert sorted(each.name for each in tmp_path.iterdir()) == sorted([mine.name, "of somebody else"])
