"""Upgrade: the code is replaced, and rolled back, under a steady load. Measures how long plans wait beyond usual.

All actors are replaced by the same code with another name. Plans are those of W1, with three tasks, in shared and then
in dedicated hosts; and those of W4, of which each asks a model once, through the pool of reasoners. The release that is
rolled back has a dispatcher that does not start: it is replaced last, so all other actors are replaced twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.apps import w4
from benchmarks.load.measuring import driven
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.model import Model, model
from benchmarks.systems.scratch import ROOT, scratch
from benchmarks.systems.script import W1, Words
from plancast.app import load_app
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
MODEL_SECONDS = 0.1
"""Latency of a decision."""
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
DECIDED = Words(w4.GOAL, w4.REQUEST, w4.ANSWER, w4.RESPONSE)


@dataclass(frozen=True)
class Kind:
    """A kind of plans under load."""

    name: str
    """Qualifies the variant of its rows; empty for those that need nothing special."""
    placement: Literal["shared", "dedicated"] = "shared"
    words: Words = W1


KINDS = (Kind(""), Kind("", "dedicated"), Kind("with a model", words=DECIDED))


class BrokenDeployment(Deployment):
    """A deployment in which the dispatcher of one release does not start."""

    async def start(self, wanted: list[tuple[Any, Any, str]], *, ready_seconds: float = 0) -> None:
        """Start actors; see :meth:`Deployment.start`."""
        if any(name == "dispatcher-0" and each.release.code == "rollback" for _, each, name in wanted):
            raise OSError("this release is broken")
        await super().start(wanted, ready_seconds=ready_seconds)


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure a row for an upgrade, and one for a rollback, with each kind of plans.

    Raises:
        BenchmarkFailed: a plan did not complete exactly once, or a decision was asked for twice.
    """
    return [row for kind in KINDS for row in await _measure(kind, scale, sync, say)]


async def _measure(kind: Kind, scale: Scale, sync: Sync, say: Say) -> list[Row]:
    rows = []
    settings = Settings()
    settings.hosts.count = 2
    with scratch() as folder, model(MODEL_SECONDS) as asked:
        address, paths = "benchmarks.apps.w1:app", [str(ROOT)]
        if kind.words is DECIDED:
            address, paths = w4.write_app(folder, asked.url), [str(ROOT), str(folder)]
        system = plancast(kind.placement, sync, address, settings=settings, import_paths=paths[1:])
        async with system as running, driven(running, kind.words) as driver:
            await driver.together(WARM_UP)
            for variant in VARIANTS:
                say(f"{PER_SECOND} plans a second, {kind.placement} {kind.name}, {variant}")
                began = time.monotonic()
                usual, _ = await driver.steadily(PER_SECOND, asyncio.sleep(USUAL_SECONDS[scale]))
                upgrade = _upgrade(running, address, paths, variant, say)
                during, _ = await driver.steadily(PER_SECOND, upgrade)
                if kind.words is DECIDED:
                    _check_calls(asked, began, len(usual.latencies) + len(during.latencies))
                rows.append(_row(kind, variant, sync, usual, during))
                for name, outcome in (("usual", usual), (variant, during)):
                    say(f"  {name}: " + ", ".join(f"{key} {ms:,.0f} ms" for key, ms in _latencies(outcome).items()))
    return rows


def _check_calls(asked: Model, began: float, plans: int) -> None:
    """Raise BenchmarkFailed unless the model was called once for each plan since a time of the monotonic clock."""
    calls = round(asked.calls(began, time.monotonic()).decisions)
    if calls != plans:
        raise BenchmarkFailed(f"the model was called {calls} times by {plans} plans of one decision")


async def _upgrade(running: Running, address: str, paths: list[str], variant: Variant, say: Say) -> None:
    app = load_app(address, paths)
    deployment = BrokenDeployment(app.name, running.settings)
    blueprint = blueprint_of(app, address, running.settings, paths)
    bus = await connect(running.settings.nats, running.settings.bus)
    try:
        blueprint = dataclasses.replace(blueprint, release=Release(variant))
        await Upgrade(deployment, app, blueprint, bus, say=lambda text: say(f"    {text}")).run()
    except UpgradeFailed as failure:
        if variant == "upgrade" or "runs again" not in str(failure):
            raise BenchmarkFailed(str(failure)) from failure
    finally:
        await bus.close()


def _latencies(outcome: Outcome) -> dict[str, float]:
    return {f"{name}_ms": round(outcome.percentile_ms(percent), 1) for name, percent in PERCENTILES.items()}


def _row(kind: Kind, variant: Variant, sync: Sync, usual: Outcome, during: Outcome) -> Row:
    before, latencies = _latencies(usual), _latencies(during)
    return {
        "workload": "upgrade",
        "system": kind.placement,
        "n": PER_SECOND,
        "variant": f"{variant} {kind.name}".strip(),
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
