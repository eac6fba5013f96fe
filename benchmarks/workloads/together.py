"""Runs W1 once: N plans at once, on ours and the baseline in turn."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.load.measuring import measure as measure_one
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import SystemName

COUNTS: dict[Scale, tuple[int, ...]] = {
    "quick": (20,),
    "short": (1_000, 10_000),
    "full": (100, 1_000, 10_000, 100_000),
}
SYSTEMS: tuple[SystemName, ...] = ("shared", "baseline")
DEDICATED_LIMIT = 1_000
"""Plans that take turns in dedicated hosts."""


async def measure(
    scale: Scale,
    sync: Sync,
    say: Say,
    *,
    counts: Sequence[int] = (),
    systems: Sequence[SystemName] = SYSTEMS,
    through_client: bool = False,
) -> list[Row]:
    """Run once.

    Args:
        scale: Size of the run.
        sync: ``sync_interval`` of the nats-server.
        say: Reports progress.
        counts: Numbers of plans, overriding the scale.
        systems: Our systems to run.
        through_client: Submit through :class:`plancast.Client`; not for the baseline.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    rows = []
    for n in counts or _counts(scale, sync):
        for system in systems:
            if system == "dedicated" and n > DEDICATED_LIMIT:
                continue
            say(f"{system}: {n:,} plans at once")
            measured = await measure_one(system, n, sync, through_client=through_client)
            row = measured.row("w1", n, sync)
            driver = "client" if through_client and system != "baseline" else "bus"
            rows.append({**row, "driver": driver, **({"variant": "client"} if driver == "client" else {})})
            say(f"  {row['plans_per_second']:,.0f} plans/s, p99 {row['p99_ms']:,.0f} ms, {row['rss_mb']:,.0f} MB")
    return rows


def _counts(scale: Scale, sync: Sync) -> tuple[int, ...]:
    """Return the numbers of plans; a short run with every write synced has few, to fit into five minutes."""
    return COUNTS[scale][-1:] if (scale, sync) == ("short", "always") else COUNTS[scale]
