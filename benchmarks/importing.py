"""What ``import plancast`` takes, each time in a fresh process: nothing of ours is left in memory from the time before.

The clock runs in the fresh process, around the import: starting Python is not in it. Nor is compiling: one process
goes ahead, so that the rest find bytecode.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence

from benchmarks.outcome import BenchmarkFailed
from benchmarks.rows import Row, Say, Scale, Sync

COUNTS: dict[Scale, int] = {"quick": 3, "short": 20, "full": 100}
"""Processes."""
HEAVY = ("ray", "nats", "litellm")
"""What the import may not load."""
PROGRAM = f"""\
import json, sys, time
begin = time.perf_counter()
import plancast
taken = time.perf_counter() - begin
with open("/proc/self/status") as status:
    (memory,) = (int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
print(json.dumps([taken, memory, [name for name in {HEAVY!r} if name in sys.modules], len(sys.modules)]))
"""


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """One run; ``n`` of its row is how many processes there were. No server runs, so ``sync`` says nothing here.

    Raises:
        BenchmarkFailed: the import failed, or loaded what it should not.
    """
    count = COUNTS[scale]
    say(f"import: {count} fresh processes")
    await _import()
    taken, memories, modules = zip(*[await _import() for _ in range(count)], strict=True)
    ordered = sorted(taken)
    row: Row = {
        "workload": "import",
        "system": "shared",
        "n": count,
        "sync": sync,
        "durability": "nothing is written",
        "is_default": True,
        "plans_per_second": None,
        "p50_ms": round(_percentile(ordered, 50), 1),
        "p99_ms": round(_percentile(ordered, 99), 1),
        "rss_mb": round(max(memories), 1),
        "modules": max(modules),
    }
    say(f"  p50 {row['p50_ms']:.0f} ms, {row['modules']} modules")
    return [row]


async def _import() -> tuple[float, float, int]:
    """Milliseconds, megabytes and modules of one import."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, complaint = await process.communicate()
    if process.returncode:
        raise BenchmarkFailed(f"import plancast failed: {complaint.decode()[-500:]}")
    seconds, kilobytes, heavy, modules = json.loads(answer)
    if heavy:
        raise BenchmarkFailed(f"import plancast has loaded {', '.join(heavy)}")
    return seconds * 1000, kilobytes / 1024, modules


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """The least of the values that so many percent do not exceed."""
    return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1]
