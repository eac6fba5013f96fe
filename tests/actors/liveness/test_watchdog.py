"""The watchdog kills a process whose event loop hangs, and no other."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, ctypes, time
from plancast_actors.liveness.watchdog import Watchdog

async def main():
    watchdog = Watchdog("host-0", 0.4)
    watchdog.start()
    {body}
    watchdog.stop()
    print("through")

asyncio.run(main())
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_hanging_loop_ends_the_process_and_its_stacks_are_written() -> None:
    ended = run("time.sleep(50)")
    assert ended.returncode == -signal.SIGKILL
    assert "host-0: the event loop has made no progress for 0.4 s" in ended.stderr
    assert "in main" in ended.stderr


def test_c_code_that_lets_no_thread_run_is_ended_too() -> None:
    ended = run("ctypes.PyDLL(None).sleep(50)")  # a PyDLL keeps the interpreter's lock
    assert ended.returncode == 1
    assert "in main" in ended.stderr


@pytest.mark.parametrize(
    "body", ["await asyncio.sleep(1.5)", "await asyncio.to_thread(time.sleep, 1.5)", "watchdog.stop()"]
)
def test_a_loop_that_goes_on_is_left_alone(body: str) -> None:
    ended = run(body)
    assert (ended.returncode, ended.stdout) == (0, "through\n")
