"""Times ``import plancast``, each time in a fresh process.

The clock runs in the fresh process, around the import, so the start of Python does not count. Nor does compilation: a
first process creates the bytecode.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync

COUNTS: dict[Scale, int] = {"quick": 3, "short": 20, "full": 100}
"""Number of processes."""
HEAVY = ("ray", "nats", "litellm")
"""Modules that the import must not load."""
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
    """Run once; ``n`` of the row is the number of processes. No server runs, so ``sync`` has no effect.

    Raises:
        BenchmarkFailed: the import failed, or loaded a forbidden module.
    """
    count = COUNTS[scale]
    say(f"import: {count} fresh processes")
    await _import()
    taken, memories, modules = zip(*[await _import() for _ in range(count)], strict=True)
    outcome = Outcome(sum(taken), list(taken))
    row: Row = {
        "workload": "import",
        "system": "shared",
        "n": count,
        "sync": sync,
        "durability": "nothing is written",
        "is_default": True,
        "plans_per_second": None,
        "p50_ms": round(outcome.percentile_ms(50), 1),
        "p99_ms": round(outcome.percentile_ms(99), 1),
        "rss_mb": round(max(memories), 1),
        "modules": max(modules),
    }
    say(f"  p50 {row['p50_ms']:.0f} ms, {row['modules']} modules")
    return [row]


async def _import() -> tuple[float, float, int]:
    """Return seconds, megabytes and modules of one import."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, complaint = await process.communicate()
    if process.returncode:
        raise BenchmarkFailed(f"import plancast failed: {complaint.decode()[-500:]}")
    seconds, kilobytes, heavy, modules = json.loads(answer)
    if heavy:
        raise BenchmarkFailed(f"import plancast loads {', '.join(heavy)}")
    return seconds, kilobytes / 1024, modules
