"""Restate as a peer: its server from npm, and plans as a service of its Python SDK; see ``restate/plans.py``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.peers import conversation
from benchmarks.peers.peer import PeerSync
from benchmarks.peers.programs import environment
from benchmarks.peers.restate_server import NAME, Running, fetch, restate
from benchmarks.reports.rows import Row, Say
from benchmarks.systems.processes import cpu_used, memory_mb

ALONE, ALONE_WARM_UP = 300, 50
WARM_UP = 1000
TURNS = 4
"""Turns of a W1 plan: its start and three responses."""
CRASH_STEPS, CRASH_SECONDS, CRASH_NEARLY = 8, 1.0, 0.8
"""From our W6: steps of a plan, seconds of each, and the share of a step after which the kill follows."""


def durability(sync: PeerSync) -> Row:
    """Return the durability fields of a row."""
    setting = "false, the default: synced, many writes together" if sync == "always" else "true"
    return {
        "sync": sync,
        "durability": f"restate-server with log-server.rocksdb-disable-wal-fsync = {setting}",
        "is_default": sync == "always",
    }


class Restate:
    """Restate as a peer."""

    name = NAME
    workloads = frozenset({"w1", "w2", "w5", "w6", "w8"})

    def setup(self, say: Say) -> None:
        """Create the environment of its SDK, and fetch its server with npm; the lock pins everything by hash."""
        environment(NAME, say)
        fetch(say)

    async def measure(self, workload: str, n: int, sync: PeerSync, say: Say) -> Row | list[Row]:
        """Run once; W6 kills all processes of plans with N in flight, and restarts them at once."""
        if workload == "w8":
            rows = [await conversation.on_restate(variant, n, sync) for variant in ("journal", "session")]
            return [{**row, **durability(sync)} for row in rows]
        async with restate(sync) as running:
            if workload == "w6":
                return {**await _crash(running, n), **durability(sync)}
            handler = "fan_out" if workload == "w2" else "steps"
            cold = await running.round(handler, 1)
            await running.round(handler, WARM_UP if n > 1 else ALONE_WARM_UP, together=n > 1)
            before = cpu_used(running.pids())
            done = await running.round(handler, n if n > 1 else ALONE, together=n > 1)
            row = {"workload": workload, "n": n, **durability(sync), **_figures(running, done, before)}
            if workload == "w5":
                row["p50_turn_ms"] = round(row["p50_ms"] / TURNS, 3)
                row["cold_ms"] = round(cold["latencies"][0] * 1000, 2)
            return row


peer = Restate()


def _figures(running: Running, done: Mapping[str, Any], cpu_before: Mapping[str, float]) -> Row:
    pids = running.pids()
    outcome, after = Outcome(done["seconds"], done["latencies"]), cpu_used(pids)
    plans = len(outcome.latencies)
    used = {"driver" if kind == "client" else kind: after[kind] - cpu_before[kind] for kind in pids}
    return {
        "system": NAME,
        "plans_per_second": round(outcome.plans_per_second, 1),
        "p50_ms": round(outcome.percentile_ms(50), 2),
        "p99_ms": round(outcome.percentile_ms(99), 2),
        "rss_mb": _memory_mb(pids),
        "pattern": "awakeables, resolved at the ingress",
        "plans": plans,
        "processes": {kind: len(each) for kind, each in pids.items()},
        "cpu_ms_per_plan": {kind: round(1000 * seconds / plans, 3) for kind, seconds in used.items()},
        "driver_busy": round(done["cpu_seconds"] / done["seconds"], 3),
    }


async def _crash(running: Running, n: int) -> Row:
    await running.round("steps", WARM_UP)
    await running.requests()
    flight = asyncio.create_task(running.round("steps", n, steps=CRASH_STEPS, seconds=CRASH_SECONDS))
    try:
        steps: list[list[float]] = []
        while len({plan for plan, *_ in steps}) < n:
            if flight.done():
                raise BenchmarkFailed(f"{n} plans had ended, or failed, before all were in flight")
            await asyncio.sleep(0.02)
            steps += await running.requests()
        await asyncio.sleep(CRASH_NEARLY * CRASH_SECONDS)
        killed_at = time.monotonic()
        running.kill("plans")
        running.serve()
        done = await flight
    finally:
        flight.cancel()
        await asyncio.wait([flight])
    steps += await running.requests()
    moved, outcome = recovery(steps, killed_at), Outcome(done["seconds"], done["latencies"])
    return {
        "workload": "w6",
        "system": NAME,
        "n": n,
        "variant": "host",
        "plans_per_second": None,
        "p50_ms": round(outcome.percentile_ms(50), 1),
        "p99_ms": round(outcome.percentile_ms(99), 1),
        "rss_mb": _memory_mb(running.pids()),
        "killed": "all processes of plans",
        "recovery_p50_ms": round(moved.percentile_ms(50), 1),
        "recovery_p99_ms": round(moved.percentile_ms(99), 1),
        "recovery_max_ms": round(moved.percentile_ms(100), 1),
        "lost": n - len(outcome.latencies),
    }


def recovery(steps: Sequence[Sequence[float]], killed_at: float) -> Outcome:
    """Return the time from the kill to the next step, for each plan; steps of killed processes do not count.

    Args:
        steps: Plan, step, process and monotonic time of each request to the echo processes.
        killed_at: Monotonic time of the kill.

    Raises:
        BenchmarkFailed: a plan has taken no step since.
    """
    killed = {life for _, _, life, at in steps if at <= killed_at}
    first: dict[float, float] = {}
    for plan, _, life, at in steps:
        if life not in killed:
            first[plan] = min(at, first.get(plan, at))
    still = {plan for plan, *_ in steps} - first.keys()
    if still:
        raise BenchmarkFailed(f"{len(still)} plans have taken no step after the kill")
    taken = [at - killed_at for at in first.values()]
    return Outcome(max(taken), taken)


def _memory_mb(pids: Mapping[str, Sequence[int]]) -> float:
    return round(memory_mb(pid for kind, each in pids.items() for pid in each if kind != "client"), 1)
