"""One measurement of W4: plans that wait for a model, and what that costs those that do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks import w4
from benchmarks.crowd import Crowd
from benchmarks.driver import BenchmarkFailed, Driver, Outcome
from benchmarks.measuring import cpu_used, resident_mb
from benchmarks.model import Asked, Model, model
from benchmarks.rows import Row
from benchmarks.systems import Running, Sync, plancast, scratch
from plancast.settings import ReasonerSettings
from plancast_actors.ray_reasoner import POOL
from plancast_bus.jetstream import connect

TIMEOUT = 600.0
WARM_UP = 200
"""Plans of W1 before the clock starts."""
CHUNK = 25
"""Plans of W1 one after the other, before the time is looked at."""
START_SECONDS = 120.0
STEADY = 3.0
"""The crowd is given so many times the model's time to come to a steady state."""


@dataclass(frozen=True)
class Size:
    """How large a measurement is."""

    waiting: int = 1000
    """Plans that wait for the model at a time."""
    model_seconds: float = 2.0
    """That the model takes for a decision."""
    reasoners: int = 4
    concurrency: int = 50
    """Calls that a reasoner has in hand at once."""
    others: int = 1000
    """Plans of W1 one after the other, on the idle deployment; beside the crowd as many, if the time is enough."""
    seconds: float = 20.0
    """How long the crowd is watched, at least."""
    most_seconds: float = 60.0
    """And at most, however slow the others are."""

    @property
    def slots(self) -> int:
        """Calls that the pool can have in hand at once."""
        return self.reasoners * self.concurrency

    @property
    def ideal(self) -> float:
        """Decisions a second, if no slot were ever free."""
        return self.slots / self.model_seconds


@dataclass(frozen=True)
class Waiting:
    """What was measured."""

    size: Size
    idle: Outcome
    """W1's plans on the idle deployment."""
    beside: Outcome
    """W1's plans beside the crowd."""
    crowd: Outcome
    asked: Asked
    rss_mb: float
    """Resident memory of the plan hosts, in all, with the crowd in them."""
    processes: dict[str, int]
    cpu_seconds: dict[str, float]
    """What each kind of process has used of a core beside the crowd; Ray's own processes aside."""

    @property
    def decisions_per_second(self) -> float:
        """By the model's own count."""
        return self.asked.decisions / self.crowd.seconds

    @property
    def pool_ratio(self) -> float:
        """Decisions by those of a pool that never has a free slot."""
        return self.decisions_per_second / self.size.ideal


async def measure(size: Size, sync: Sync) -> Waiting:
    """Measure W1's plans on an idle deployment, then beside a crowd that waits for the model, and the pool meanwhile.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice; or the model was asked what it cannot answer.
    """
    with model(size.model_seconds) as asked, scratch() as folder:
        reasoners = ReasonerSettings(min=size.reasoners, max=size.reasoners, concurrency=size.concurrency)
        address = w4.write_app(folder, asked.url)
        async with plancast("shared", sync, address, [str(folder)], reasoners) as running:
            await _staffed(running, size.reasoners)
            bus = await connect(running.settings.nats, running.settings.bus)
            crowds_bus = await connect(running.settings.nats, running.settings.bus)
            others = Driver(bus, TIMEOUT)
            try:
                await others.open()
                await others.together(WARM_UP)
                idle = await others.alone(size.others)
                async with Crowd(crowds_bus, size.waiting) as crowd:
                    found = await _beside(crowd, others, running, asked, size, idle)
                    await crowd.disperse(TIMEOUT)
                return found
            finally:
                await others.close()
                await crowds_bus.close()
                await bus.close()


async def _beside(crowd: Crowd, others: Driver, running: Running, model: Model, size: Size, idle: Outcome) -> Waiting:
    await asyncio.sleep(STEADY * size.model_seconds)
    pids = {**await running.pids(), **await _reasoners(running), "model": [model.pid]}
    before = cpu_used(pids)
    begin = time.monotonic()
    beside = Outcome(0.0)
    while (passed := time.monotonic() - begin) < size.most_seconds:
        if passed >= size.seconds and len(beside.latencies) >= size.others:
            break
        chunk = await others.alone(min(CHUNK, size.others))
        beside.latencies.extend(chunk.latencies)
        beside.seconds += chunk.seconds
    end = time.monotonic()
    used = {kind: seconds - before[kind] for kind, seconds in cpu_used(pids).items()}
    return Waiting(
        size,
        idle,
        beside,
        Outcome(end - begin, crowd.between(begin, end)),
        model.asked(begin, end),
        resident_mb(pids["hosts"]),
        {kind: len(each) for kind, each in pids.items()},
        used,
    )


async def _staffed(running: Running, count: int) -> None:
    """Wait until all reasoners are there."""
    deadline = time.monotonic() + START_SECONDS
    while len((await _reasoners(running))["reasoners"]) < count:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{count} reasoners did not come up in {START_SECONDS:.0f} s")
        await asyncio.sleep(0.5)


async def _reasoners(running: Running) -> dict[str, list[int]]:
    """Process ids of the pool and of its reasoners."""
    assert running.deployment is not None
    found: dict[str, list[int]] = {"pool": [], "reasoners": []}
    for report in (await running.deployment.status())["reasoners"]:
        if report["alive"]:
            found["pool" if report["name"] == POOL else "reasoners"].append(report["pid"])
    return found


def row(runs: Sequence[Waiting], sync: Sync) -> Row:
    """The row of one size: medians over its runs."""
    size = runs[0].size

    def middle(values: Sequence[float], digits: int) -> float:
        return round(median(values), digits)

    def latency(outcomes: Sequence[Outcome], percent: float) -> float:
        return middle([each.percentile_ms(percent) for each in outcomes], 2)

    crowds, idle, beside = [each.crowd for each in runs], [each.idle for each in runs], [each.beside for each in runs]
    return {
        "workload": "w4",
        "system": "shared",
        "n": size.waiting,
        "sync": sync,
        "plans_per_second": middle([each.plans_per_second for each in crowds], 1),
        "p50_ms": latency(crowds, 50),
        "p99_ms": latency(crowds, 99),
        "rss_mb": middle([each.rss_mb for each in runs], 1),
        "reasoners": size.reasoners,
        "concurrency": size.concurrency,
        "slots": size.slots,
        "model_seconds": size.model_seconds,
        "decisions_per_second": middle([each.decisions_per_second for each in runs], 1),
        "ideal_per_second": round(size.ideal, 1),
        "pool_ratio": middle([each.pool_ratio for each in runs], 3),
        "pool_ratio_spread": [round(each([run.pool_ratio for run in runs]), 3) for each in (min, max)],
        "in_hand": middle([each.asked.in_hand for each in runs], 1),
        "most_in_hand": max(each.asked.most_in_hand for each in runs),
        "model_late_ms": middle([each.asked.late_ms for each in runs], 1),
        "others_p50_ms": latency(beside, 50),
        "others_p99_ms": latency(beside, 99),
        "others_idle_p50_ms": latency(idle, 50),
        "others_idle_p99_ms": latency(idle, 99),
        "others_p50_ratio": middle([each.beside.percentile_ms(50) / each.idle.percentile_ms(50) for each in runs], 2),
        "others_p99_ratio": middle([each.beside.percentile_ms(99) / each.idle.percentile_ms(99) for each in runs], 2),
        "others": len(beside[0].latencies),
        "plans": len(crowds[0].latencies),
        "runs": len(runs),
        "driver": "bus",
        "processes": runs[0].processes,
        "cores_used": {
            kind: middle([run.cpu_seconds[kind] / run.crowd.seconds for run in runs], 3) for kind in runs[0].cpu_seconds
        },
    }


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    shown = Table(title="W4: plans that wait for a model, and others beside them")
    columns: dict[str, Any] = {
        "waiting": lambda each: f"{each['n']:,}",
        "slots": lambda each: f"{each['reasoners']} x {each['concurrency']}",
        "model s": lambda each: f"{each['model_seconds']:g}",
        "decisions/s": lambda each: f"{each['decisions_per_second']:,.1f}",
        "of ideal": lambda each: f"{each['pool_ratio']:.2f}",
        "plans/s": lambda each: f"{each['plans_per_second']:,.1f}",
        "others p50 ms": lambda each: f"{each['others_p50_ms']:.1f}",
        "idle p50": lambda each: f"{each['others_idle_p50_ms']:.1f}",
        "others p99 ms": lambda each: f"{each['others_p99_ms']:.1f}",
        "idle p99": lambda each: f"{each['others_idle_p99_ms']:.1f}",
        "p99 ratio": lambda each: f"{each['others_p99_ratio']:.2f}",
        "RSS MB": lambda each: f"{each['rss_mb']:,.0f}",
        "sync": lambda each: each["sync"],
    }
    for name in columns:
        shown.add_column(name, justify="left" if name == "sync" else "right")
    for each in rows:
        shown.add_row(*(tell(each) for tell in columns.values()))
    return shown
