"""The allocator: what a large plan took is returned when the plan is dropped, although small blocks lie in between."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from plancast_actors.ray.allocator import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "returned":
    return_large_blocks()
bytes(24 << 20)  # glibc raises its threshold to the largest block that was freed
before, large, small = resident(), [], []
for _ in range(60):
    large.append(b"x" * (1 << 20))
    small.append(bytearray(100_000))
held = resident()
del large
print(held - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize("mode", ["kept", "returned"])
def test_large_blocks_are_returned_when_they_are_freed(mode: str) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    held, left = map(int, ran.stdout.split())

    assert held > 55 << 20
    assert (left < held / 4) == (mode == "returned")
