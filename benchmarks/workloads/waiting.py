"""W4: plans that wait for a model, and their effect on plans that do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.apps import w4
from benchmarks.load.crowd import Crowd, crowd
from benchmarks.load.driver import Driver
from benchmarks.load.measuring import TIMEOUT, driven
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.model import Model, ModelCalls, model
from benchmarks.systems.processes import cpu_used, memory
from benchmarks.systems.scratch import scratch
from plancast.settings import ReasonerSettings, Settings
from plancast_actors.reasoning.client import POOL

CHUNK = 25
"""Plans of W1 run one after the other between two looks at the clock."""
START_SECONDS = 120.0
LOOK_SECONDS = 0.1
PROBE_SECONDS = 0.01


@dataclass(frozen=True)
class Size:
    """Size of a measurement."""

    waiting: int = 1000
    """Plans that wait for the model at a time."""
    model_seconds: float = 1.0
    """Latency of a decision."""
    reasoners: int = 4
    concurrency: int = 50
    """Concurrent calls of a reasoner."""
    others: int = 1000
    """Plans of W1 run one after the other on the idle deployment; beside the crowd as many if time permits."""
    warm_up: int = 200
    """Plans of W1 before the clock starts, at once, and as many again one after the other."""
    seconds: float = 20.0
    """Minimum duration of the measurement beside the crowd."""
    most_seconds: float = 40.0
    """Duration after which the other plans may be fewer than planned. The crowd's are never fewer than its size."""

    @property
    def slots(self) -> int:
        """Return the maximum number of concurrent calls of the pool."""
        return self.reasoners * self.concurrency

    @property
    def ideal(self) -> float:
        """Return the decisions per second if all slots were always busy."""
        return self.slots / self.model_seconds


SIZES: dict[Scale, Size] = {
    "quick": Size(30, 0.3, reasoners=1, concurrency=10, others=20, warm_up=10, seconds=2.0, most_seconds=10.0),
    "short": Size(400, seconds=15.0, most_seconds=25.0),
    "full": Size(others=2000, seconds=40.0, most_seconds=90.0),
}


@dataclass(frozen=True)
class Waiting:
    """Result of the measurement."""

    size: Size
    idle: Outcome
    """W1's plans on the idle deployment."""
    beside: Outcome
    """W1's plans beside the crowd."""
    crowd: Outcome
    calls: ModelCalls
    lag_ms: float
    """p99 of the event loop delay of the driver of W1's plans, beside the crowd; not a plan's latency."""
    memory: dict[str, float]
    """``rss_mb`` and ``hosts_rss_mb``, including the crowd."""
    processes: dict[str, int]
    cpu_seconds: dict[str, float]
    """CPU seconds by kind of process beside the crowd."""

    @property
    def decisions_per_second(self) -> float:
        """Return the decisions per second, by the model's own count."""
        return self.calls.decisions / self.crowd.seconds

    def row(self, sync: Sync) -> Row:
        """Return the row of this run; ``n`` is the number of plans that wait for the model at a time."""
        size, idle, beside = self.size, self.idle, self.beside
        others: Row = {}
        for percent in (50, 99):
            now, then = beside.percentile_ms(percent), idle.percentile_ms(percent)
            others[f"others_p{percent}_ms"] = round(now, 2)
            others[f"others_idle_p{percent}_ms"] = round(then, 2)
            others[f"others_p{percent}_ratio"] = round(now / then, 3)
        return {
            "workload": "w4",
            "system": "shared",
            "n": size.waiting,
            **durability(sync),
            "plans_per_second": round(self.crowd.plans_per_second, 1),
            "p50_ms": round(self.crowd.percentile_ms(50), 2),
            "p99_ms": round(self.crowd.percentile_ms(99), 2),
            **self.memory,
            "reasoners": size.reasoners,
            "reasoner_concurrency": size.concurrency,
            "slots": size.slots,
            "model_seconds": size.model_seconds,
            "decisions_per_second": round(self.decisions_per_second, 1),
            "ideal_per_second": round(size.ideal, 1),
            "pool_ratio": round(self.decisions_per_second / size.ideal, 3),
            "in_hand": round(self.calls.concurrent, 1),
            "most_in_hand": self.calls.most_concurrent,
            "model_late_ms": round(self.calls.late_ms, 1),
            **others,
            "others": len(beside.latencies),
            "driver_lag_p99_ms": round(self.lag_ms, 2),
            "plans": len(self.crowd.latencies),
            "processes": self.processes,
            "cpu_ms_per_decision": {
                kind: round(1000 * used / self.calls.decisions, 3) for kind, used in self.cpu_seconds.items()
            },
        }


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Run once.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice; or the model got an unexpected request.
    """
    size = SIZES[scale]
    say(
        f"shared: {size.waiting:,} plans wait for a model that takes {size.model_seconds:g} s, "
        f"{size.reasoners} x {size.concurrency} calls at once"
    )
    row = (await measure_size(size, sync)).row(sync)
    say(
        f"  {row['decisions_per_second']:,.1f} decisions/s, {row['pool_ratio']:.0%} of the ideal; "
        f"others p99 {row['others_p99_ms']:.1f} ms, idle {row['others_idle_p99_ms']:.1f} ms"
    )
    return [row]


async def measure_size(size: Size, sync: Sync) -> Waiting:
    """Measure W1's plans on an idle deployment, then beside a crowd that waits for the model, and the pool meanwhile.

    Raises:
        BenchmarkFailed: see :func:`measure`.
    """
    with model(size.model_seconds) as served, scratch() as folder:
        settings = Settings()
        settings.reasoners = ReasonerSettings(min=size.reasoners, max=size.reasoners, concurrency=size.concurrency)
        app = w4.write_app(folder, served.url)
        deployed = plancast("shared", sync, app, settings=settings, import_paths=[str(folder)])
        async with deployed as running, driven(running) as others:
            await _staffed(running, size.reasoners)
            await others.together(size.warm_up)
            await others.alone(size.warm_up)
            idle = await others.alone(size.others)
            async with crowd(running.settings, size.waiting) as plans:
                found = await _beside(plans, others, running, served, size, idle)
                await plans.disperse(TIMEOUT)
            return found


async def _beside(plans: Crowd, others: Driver, running: Running, served: Model, size: Size, idle: Outcome) -> Waiting:
    await _steady(plans, size)
    pids = await _pids(running)
    processes = {**pids, "model": [served.pid], "crowd": [plans.pid]}
    before = cpu_used(processes)
    begin = time.monotonic()
    async with _lags() as lags:
        beside = await _alone(others, plans, size, begin)
    end = time.monotonic()
    used = {kind: seconds - before[kind] for kind, seconds in cpu_used(processes).items()}
    return Waiting(
        size,
        idle,
        beside,
        Outcome(end - begin, await plans.between(begin, end)),
        served.calls(begin, end),
        Outcome(end - begin, lags).percentile_ms(99),
        memory(pids),
        {kind: len(each) for kind, each in processes.items()},
        used,
    )


async def _steady(plans: Crowd, size: Size) -> None:
    """Wait until as many plans of the crowd have ended as it holds.

    Raises:
        BenchmarkFailed: they do not end.
    """
    deadline = time.monotonic() + TIMEOUT
    while (ended := await plans.ended()) < size.waiting:
        _in_time(deadline, ended, size)
        await asyncio.sleep(LOOK_SECONDS)


async def _alone(others: Driver, plans: Crowd, size: Size, begin: float) -> Outcome:
    """Run W1's plans one after the other, until both their number and the duration suffice, and the crowd's plans, too.

    Raises:
        BenchmarkFailed: the crowd's plans do not end.
    """
    beside, deadline = Outcome(0.0), begin + TIMEOUT
    while True:
        chunk = await others.alone(min(CHUNK, size.others))
        beside.latencies.extend(chunk.latencies)
        beside.seconds += chunk.seconds
        passed, ended = time.monotonic() - begin, await plans.ended(begin)
        others_suffice = len(beside.latencies) >= size.others or passed >= size.most_seconds
        if passed >= size.seconds and others_suffice and ended >= size.waiting:
            return beside
        _in_time(deadline, ended, size)


def _in_time(deadline: float, ended: int, size: Size) -> None:
    if time.monotonic() > deadline:
        raise BenchmarkFailed(
            f"{ended} plans that wait for the model, of {size.waiting}, have ended in {TIMEOUT:.0f} s"
        )


@asynccontextmanager
async def _lags() -> AsyncIterator[list[float]]:
    """Record the delays of this process's event loop, in seconds."""
    found: list[float] = []

    async def probe() -> None:
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            found.append(max(0.0, time.perf_counter() - due))

    task = asyncio.create_task(probe())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _staffed(running: Running, count: int) -> None:
    """Wait until all reasoners have started."""
    deadline = time.monotonic() + START_SECONDS
    while len((await _pids(running))["reasoners"]) < count:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{count} reasoners did not start in {START_SECONDS:.0f} s")
        await asyncio.sleep(0.5)


async def _pids(running: Running) -> dict[str, list[int]]:
    """Return process ids by kind, with the pool separate from its reasoners."""
    assert running.deployment is not None
    reports: Sequence[dict[str, object]] = (await running.deployment.status())["reasoners"]
    pool = [pid for each in reports if each["alive"] and each["name"] == POOL and isinstance(pid := each["pid"], int)]
    pids = await running.pids()
    return {**pids, "pool": pool, "reasoners": [pid for pid in pids["reasoners"] if pid not in pool]}
