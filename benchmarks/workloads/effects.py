"""effects: W1's plans with tasks whose effects are recorded, and with plain ones, in turn on one deployment."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from benchmarks.apps import effects
from benchmarks.load.driver import Driver
from benchmarks.load.measuring import WARM_UP, Measurement, driven, measurement
from benchmarks.load.outcome import Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, plancast
from benchmarks.systems.processes import cpu_used
from benchmarks.systems.script import W1, Words

COUNTS: dict[Scale, int] = {"quick": 20, "short": 1_000, "full": 2_000}
ROUNDS: dict[Scale, int] = {"quick": 2, "short": 12, "full": 24}
"""Rounds of each kind of plan. They take turns, since the speed of a shared machine changes from minute to minute."""
RECORDED = Words(effects.GOAL, effects.REQUEST, effects.ANSWER, effects.RESPONSE)


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Run once.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    n, rounds = COUNTS[scale], ROUNDS[scale]
    measured: dict[str, list[Measurement]] = {"plain": [], "recorded": []}
    async with (
        plancast("shared", sync, "benchmarks.apps.effects:app") as running,
        driven(running, W1) as plain,
        driven(running, RECORDED) as recorded,
    ):
        drivers = {"plain": plain, "recorded": recorded}
        for driver in drivers.values():
            await driver.together(max(n, WARM_UP["shared"]))
        for number in range(rounds):
            for variant in list(drivers)[:: -1 if number % 2 else 1]:
                measured[variant].append(await _round(running, drivers[variant], n))
            rates = {variant: found[-1].outcome.plans_per_second for variant, found in measured.items()}
            say(
                f"round {number + 1} of {rounds}, {n:,} plans of each: {rates['plain']:,.0f} plans/s, "
                f"recorded {rates['recorded']:,.0f}"
            )
    ratio = median(
        each.outcome.plans_per_second / other.outcome.plans_per_second
        for each, other in zip(measured["recorded"], measured["plain"], strict=True)
    )
    return [
        {
            **_together(found).row("effects", n, sync),
            "variant": variant,
            "rounds": rounds,
            "ratio_to_plain": round(ratio, 3) if variant == "recorded" else 1.0,
        }
        for variant, found in measured.items()
    ]


async def _round(running: Running, driver: Driver, n: int) -> Measurement:
    before = cpu_used(await running.pids())
    return await measurement("shared", running, await driver.together(n), before)


def _together(rounds: list[Measurement]) -> Measurement:
    """All rounds of one kind of plan as one, with the memory after the last."""
    outcome = Outcome(sum(each.outcome.seconds for each in rounds))
    outcome.latencies = [latency for each in rounds for latency in each.outcome.latencies]
    last = rounds[-1]
    return Measurement(last.system, outcome, last.memory, last.processes, _sum([each.cpu_seconds for each in rounds]))


def _sum(used: list[Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(each[kind] for each in used) for kind in used[0]}
