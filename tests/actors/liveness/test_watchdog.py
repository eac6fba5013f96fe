"""The watchdog kills a process whose event loop hangs, and no other."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, ctypes, time
from plancast_actors.liveness import watchdog as module

async def main():
    module.LAST_RESORT = {last_resort}
    watchdog = module.Watchdog("host-0", {seconds})
    watchdog.start()
    {body}
    watchdog.stop()
    print("through")

asyncio.run(main())
"""


def run(body: str, seconds: float = 0.4, last_resort: float = 1.5) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(body=body, seconds=seconds, last_resort=last_resort)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_a_hanging_loop_ends_the_process_and_its_stacks_are_written() -> None:
    ended = run("time.sleep(50)", last_resort=100.0)  # on a busy machine the thread may be late
    assert ended.returncode == -signal.SIGKILL
    assert "host-0: the event loop has made no progress for 0.4 s" in ended.stderr
    assert "in main" in ended.stderr


def test_c_code_that_lets_no_thread_run_is_ended_too() -> None:
    ended = run("ctypes.PyDLL(None).sleep(50)")  # a PyDLL keeps the interpreter's lock
    assert ended.returncode == 1
    assert "in main" in ended.stderr


@pytest.mark.parametrize(
    "body", ["await asyncio.sleep(3.0)", "await asyncio.to_thread(time.sleep, 3.0)", "watchdog.stop()"]
)
def test_a_loop_that_goes_on_is_left_alone(body: str) -> None:
    ended = run(body, seconds=2.0)
    assert (ended.returncode, ended.stdout) == (0, "through\n")
