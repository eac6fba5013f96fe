"""Upgrade: the code is replaced, and rolled back, under a steady load. Measures how long plans wait beyond usual.

All actors run W1's app, whose plans have three tasks, and are replaced by the same code with another name. The release
that is rolled back has a dispatcher that does not start: it is replaced last, so hosts and workers are replaced twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Literal

from benchmarks.apps import w1
from benchmarks.load.measuring import driven
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.scratch import ROOT
from plancast.settings import Settings
from plancast_actors.deployment.deployment import Deployment, blueprint_of
from plancast_actors.deployment.upgrade import Upgrade, UpgradeFailed
from plancast_actors.release import Release
from plancast_bus.jetstream import connect

Variant = Literal["upgrade", "rollback"]
VARIANTS: tuple[Variant, ...] = ("upgrade", "rollback")
PER_SECOND = 50
"""Plans submitted each second."""
USUAL_SECONDS: dict[Scale, float] = {"quick": 3.0, "short": 10.0, "full": 30.0}
"""Duration of the load without an upgrade."""
WARM_UP = 200
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
ADDRESS = "benchmarks.apps.w1:app"


class BrokenDeployment(Deployment):
    """A deployment in which the dispatcher of one release does not start."""

    async def start(self, wanted: list[tuple[Any, Any, str]], *, ready_seconds: float = 0) -> None:
        """Start actors; see :meth:`Deployment.start`."""
        if any(name == "dispatcher-0" and each.release.code == "rollback" for _, each, name in wanted):
            raise OSError("this release is broken")
        await super().start(wanted, ready_seconds=ready_seconds)


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure a row for an upgrade, and one for a rollback.

    Raises:
        BenchmarkFailed: a plan did not complete exactly once.
    """
    rows = []
    settings = Settings()
    settings.hosts.count = 2
    async with plancast("shared", sync, ADDRESS, settings=settings) as running, driven(running) as driver:
        await driver.together(WARM_UP)
        for variant in VARIANTS:
            say(f"{PER_SECOND} plans a second, {variant}")
            usual, _ = await driver.steadily(PER_SECOND, asyncio.sleep(USUAL_SECONDS[scale]))
            during, _ = await driver.steadily(PER_SECOND, _upgrade(running, variant, say))
            rows.append(_row(variant, sync, usual, during))
            for name, outcome in (("usual", usual), (variant, during)):
                say(f"  {name}: " + ", ".join(f"{key} {ms:,.0f} ms" for key, ms in _latencies(outcome).items()))
    return rows


async def _upgrade(running: Running, variant: Variant, say: Say) -> None:
    deployment = BrokenDeployment(w1.app.name, running.settings)
    blueprint = blueprint_of(w1.app, ADDRESS, running.settings, [str(ROOT)])
    bus = await connect(running.settings.nats, running.settings.bus)
    try:
        blueprint = dataclasses.replace(blueprint, release=Release(variant))
        await Upgrade(deployment, w1.app, blueprint, bus, say=lambda text: say(f"    {text}")).run()
    except UpgradeFailed as failure:
        if variant == "upgrade" or "runs again" not in str(failure):
            raise BenchmarkFailed(str(failure)) from failure
    finally:
        await bus.close()


def _latencies(outcome: Outcome) -> dict[str, float]:
    return {f"{name}_ms": round(outcome.percentile_ms(percent), 1) for name, percent in PERCENTILES.items()}


def _row(variant: Variant, sync: Sync, usual: Outcome, during: Outcome) -> Row:
    before, latencies = _latencies(usual), _latencies(during)
    return {
        "workload": "upgrade",
        "system": "shared",
        "n": PER_SECOND,
        "variant": variant,
        **durability(sync),
        "plans_per_second": round(during.plans_per_second, 1),
        **latencies,
        **{f"usual_{key}": value for key, value in before.items()},
        "wait_p95_ms": round(latencies["p95_ms"] - before["p50_ms"], 1),
        "wait_max_ms": round(latencies["max_ms"] - before["p50_ms"], 1),
        "plans": len(during.latencies),
        "upgrade_seconds": round(during.seconds, 1),
        "lost": 0,
    }
