"""effects: W1's plans with tasks whose effects are recorded, and with plain ones, in turn."""

from __future__ import annotations

from statistics import median

from benchmarks.load.measuring import WARM_UP, Measurement, driven, measurement
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import plancast
from benchmarks.systems.processes import cpu_used

COUNTS: dict[Scale, int] = {"quick": 20, "short": 2_000, "full": 10_000}
ROUNDS: dict[Scale, int] = {"quick": 1, "short": 3, "full": 5}
"""Rounds of each app, in turn; the rate is that of the median round."""
APPS = {"plain": "benchmarks.apps.w1:app", "recorded": "benchmarks.apps.effects:app"}
"""Apps by variant."""


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Run once.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    n, rounds = COUNTS[scale], ROUNDS[scale]
    measured: dict[str, list[Measurement]] = {variant: [] for variant in APPS}
    for number in range(rounds):
        for variant, app in APPS.items():
            say(f"{variant}: {n:,} plans at once, round {number + 1} of {rounds}")
            measured[variant].append(await _round(app, n, sync))
            say(f"  {measured[variant][-1].outcome.plans_per_second:,.0f} plans/s")
    rates = {variant: median(each.outcome.plans_per_second for each in found) for variant, found in measured.items()}
    rows = []
    for variant, found in measured.items():
        middle = min(found, key=lambda each: abs(each.outcome.plans_per_second - rates[variant]))
        ratio = round(rates[variant] / rates["plain"], 3)
        rows.append({**middle.row("effects", n, sync), "variant": variant, "rounds": rounds, "ratio_to_plain": ratio})
    return rows


async def _round(app: str, n: int, sync: Sync) -> Measurement:
    async with plancast("shared", sync, app) as running, driven(running) as driver:
        await driver.together(WARM_UP["shared"])
        before = cpu_used(await running.pids())
        return await measurement("shared", running, await driver.together(n), before)
