"""Measures dedicated hosts: the time to a plan's first turn, W1's rate with N plans at once, and a host's memory.

Shared and dedicated placement alternate in one run, each with a deployment of its own. A first turn is over when the
request that it sends is seen, since nothing is sent before the turn is committed. Memory is the proportional set size
(PSS) of each dedicated host's process, and of an empty Ray actor, below which no host can be.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import ray

from benchmarks.apps import w1
from benchmarks.load.driver import Driver
from benchmarks.load.measuring import driven, measurement
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import SYSTEMS, Running, SystemName
from benchmarks.systems.processes import cpu_used
from plancast_actors.ray.process import MAX_CONCURRENCY
from plancast_bus.jetstream import connect
from plancast_bus.ports.effects import Publish

COUNT = 50
"""Plans at once."""
ROUNDS: dict[Scale, int] = {"quick": 2, "short": 7, "full": 20}
FIRST_TURNS: dict[Scale, int] = {"quick": 10, "short": 100, "full": 300}
WARM_UP = 3
"""Rounds before those that count, without a start of a host: the pool grows to what the plans need."""
WARM_SECONDS = 180.0


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """Measure a row for each placement.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    rows = []
    for system in ("dedicated", "shared"):
        say(f"{system}: {FIRST_TURNS[scale]} plans alone, then {ROUNDS[scale]} times {COUNT} plans at once")
        rows.append(await _measure(system, scale, sync))
        say("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items() if key in _SHOWN))
    return rows


_SHOWN = frozenset(
    {"plans_per_second", "first_turn_p50_ms", "first_turn_p99_ms", "host_mb", "empty_actor_mb", "cpu_ms", "load"}
)


async def _measure(system: SystemName, scale: Scale, sync: Sync) -> Row:
    async with SYSTEMS[system](sync) as running, driven(running) as driver:
        pool = await _warm(running) if system == "dedicated" else {}
        first = await _first_turns(running, driver, FIRST_TURNS[scale])
        await _warm_up(running, driver)
        before, loads = cpu_used(await running.pids()), [os.getloadavg()[0]]
        outcomes = [await driver.together(COUNT) for _ in range(ROUNDS[scale])]
        middle = sorted(outcomes, key=lambda outcome: outcome.plans_per_second)[len(outcomes) // 2]
        measured = await measurement(system, running, middle, before)
        loads.append(os.getloadavg()[0])
        assert running.deployment is not None
        status = await running.deployment.status()
        hosts = [report["memory_mb"] for report in status["dedicated"] if report["alive"]]
        pool = status["pools"][0] if status["pools"] else pool
        empty = await _empty_actor_mb()
    row = measured.row("dedicated", COUNT, sync)
    row["cpu_ms_per_plan"] = {kind: round(ms / len(outcomes), 3) for kind, ms in row["cpu_ms_per_plan"].items()}
    cuts = statistics.quantiles(first, n=100)
    return {
        **row,
        "plans_per_second_spread": [
            round(min(each.plans_per_second for each in outcomes), 1),
            round(max(each.plans_per_second for each in outcomes), 1),
        ],
        "first_turn_p50_ms": round(1000 * cuts[49], 2),
        "first_turn_p99_ms": round(1000 * cuts[98], 2),
        "cpu_ms": round(sum(ms for kind, ms in row["cpu_ms_per_plan"].items() if kind != "driver"), 2),
        "host_mb": round(statistics.median(hosts), 1) if hosts else None,
        "empty_actor_mb": round(empty, 1),
        "load": [round(load, 1) for load in loads],
        **{key: pool[key] for key in ("hosts", "max", "granted", "delayed", "replaced", "lost") if key in pool},
    }


async def _warm(running: Running) -> dict[str, Any]:
    """Wait until the pool has started its warm hosts."""
    assert running.deployment is not None
    async with asyncio.timeout(WARM_SECONDS):
        while True:
            pool: dict[str, Any] = (await running.deployment.status())["pools"][0]
            if pool.get("free", 0) >= running.settings.hosts.dedicated_warm:
                return pool
            await asyncio.sleep(0.2)


async def _warm_up(running: Running, driver: Driver) -> None:
    """Run rounds until the pool grows no more."""
    assert running.deployment is not None
    hosts, rounds = -1, 0
    async with asyncio.timeout(WARM_SECONDS):
        while rounds < WARM_UP:
            await driver.together(COUNT)
            pools = (await running.deployment.status())["pools"]
            found = pools[0]["hosts"] if pools and not pools[0]["starting"] else 0
            rounds = rounds + 1 if found == hosts else 0
            hosts = found


async def _first_turns(running: Running, driver: Driver, count: int) -> list[float]:
    """Seconds to the first turn of plans, one after the other."""
    bus = await connect(running.settings.nats, running.settings.bus)
    sent: dict[str, float] = {}
    requests: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    async def requested(subject: str, payload: bytes, content_type: str | None) -> None:
        requests.put_nowait((subject.split(".", 3)[2], time.perf_counter()))

    def note(goals: Sequence[Publish]) -> None:
        now = time.perf_counter()
        sent.update((each.message_id, now) for each in goals)

    subscription = await bus.subscribe(f"{bus.subjects.prefix}.action-requests.*.{w1.REQUEST}", requested)
    seconds = []
    try:
        for _ in range(count + 5):
            sent.clear()
            await driver.alone(1, note)
            plan, began = await requests.get()
            while plan not in sent:  # later requests of the plan before
                plan, began = await requests.get()
            seconds.append(began - sent[plan])
    finally:
        await subscription.close()
        await bus.close()
    return seconds[5:]


async def _empty_actor_mb() -> float:
    """PSS of a detached, async Ray actor without code that has answered a call: Ray imports much to serialize a result.

    Its class is local, so that nothing of this package is imported for it.
    """

    class Empty:
        async def megabytes(self) -> float:
            with open("/proc/self/smaps_rollup", "rb") as file:  # noqa: ASYNC230 - no I/O
                return next(int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:"))

    remote: Any = ray.remote(Empty)
    actor = remote.options(num_cpus=0, lifetime="detached", max_concurrency=MAX_CONCURRENCY).remote()
    try:
        await actor.megabytes.remote()
        return float(await actor.megabytes.remote())
    finally:
        ray.kill(actor)
