"""W6: a process dies with plans in flight. Measures the time until each plan moves again, and counts lost plans.

Plans of :mod:`benchmarks.apps.w6_app` are submitted until the given number live in one plan host; the others get theirs
meanwhile. When each has taken its first turn, and none its last, that host is killed with SIGKILL, and other hosts take
its plans: there are two at least. A second row is for as many plans whose dispatcher is killed. Each has a control: the
time until as many plans move after the same moment, in the same deployment, while nothing is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal
from uuid import uuid4

from benchmarks.apps.w6_app import WORK_SECONDS
from benchmarks.load.flight import Flight, flight_over
from benchmarks.load.outcome import BenchmarkFailed, Outcome
from benchmarks.reports.rows import Row, Say, Scale, Sync
from benchmarks.systems.launcher import Running, durability, plancast
from benchmarks.systems.processes import memory
from plancast.settings import Settings
from plancast_actors.deployment.deployment import host_count
from plancast_actors.dispatch import slots

Killed = Literal["host", "dispatcher"]

ADDRESS = "benchmarks.apps.w6_app:app"
IN_FLIGHT: dict[Scale, int] = {"quick": 50, "short": 1000, "full": 1000}
"""Plans of the killed process."""
NAMES: dict[Killed, str] = {"host": "host-0", "dispatcher": "dispatcher-0"}
WARM_UP = 200
MIN_HOSTS = 2
"""So that the plans of a host that is killed have others to go to."""
TIMEOUT = 120.0
"""Seconds in which all plans have to end."""
NEARLY = 0.8
"""Time of the kill as a share of the worker's time: late, so that the worker's time does not count."""
AFTERMATH = 1.0
"""Seconds after the last final response in which duplicates are detected."""


async def measure(scale: Scale, sync: Sync, say: Say, *, kills: Sequence[Killed] = tuple(NAMES)) -> list[Row]:
    """Measure a row for each kill: of a plan host, then, in another deployment, of the dispatcher.

    Raises:
        BenchmarkFailed: a plan did not complete exactly once, or they were not all in flight.
    """
    rows = []
    settings = Settings()
    settings.hosts.count = max(MIN_HOSTS, host_count(settings))
    for killed in kills:
        say(f"{IN_FLIGHT[scale]:,} plans in flight, the {killed} is killed")
        async with plancast("shared", sync, ADDRESS, settings=settings) as running:
            row = await _measure(running, IN_FLIGHT[scale], sync, killed)
        control = f"without a kill p99 {row['control_p99_ms']:,.0f} ms"
        say(f"  all move again after {row['recovery_max_ms']:,.0f} ms, p99 {row['recovery_p99_ms']:,.0f} ms; {control}")
        rows.append(row)
    return rows


async def _measure(running: Running, count: int, sync: Sync, killed: Killed) -> Row:
    assert running.deployment is not None
    async with flight_over(running) as flight:
        await flight.submit([uuid4().hex for _ in range(WARM_UP)])
        await flight.until(flight.all_ended, TIMEOUT)
        hit, _ = await _take_off(running, flight, count, killed)
        unharmed_at = time.time()
        await flight.until(flight.all_ended, TIMEOUT)
        control = recovery(flight, hit, unharmed_at, None)
        hit, others = await _take_off(running, flight, count, killed)
        await running.deployment.kill(NAMES[killed])
        killed_at = time.time()
        if flight.ended:
            raise BenchmarkFailed(f"{len(flight.ended)} plans had ended before the {killed} was killed")
        await flight.until(flight.all_ended, TIMEOUT)
        await asyncio.sleep(AFTERMATH)
        flight.check()
        used = memory(await running.pids())
        moved = recovery(flight, hit, killed_at, killed)
        mine, theirs = flight.outcome(hit), flight.outcome(others) if others else None
    return {
        "workload": "w6",
        "system": "shared",
        "n": count,
        "variant": killed,
        **durability(sync),
        "plans_per_second": None,
        "p50_ms": round(mine.percentile_ms(50), 1),
        "p99_ms": round(mine.percentile_ms(99), 1),
        **used,
        "killed": killed,
        "recovery_p50_ms": round(moved.percentile_ms(50), 1),
        "recovery_p99_ms": round(moved.percentile_ms(99), 1),
        "recovery_max_ms": round(moved.percentile_ms(100), 1),
        "control_p50_ms": round(control.percentile_ms(50), 1),
        "control_p99_ms": round(control.percentile_ms(99), 1),
        "all_ended_ms": round((flight.last_end(hit) - killed_at) * 1000, 1),
        "lost": flight.lost,
        "others": len(others),
        "others_p50_ms": None if theirs is None else round(theirs.percentile_ms(50), 1),
        "others_p99_ms": None if theirs is None else round(theirs.percentile_ms(99), 1),
    }


async def _take_off(running: Running, flight: Flight, count: int, killed: Killed) -> tuple[list[str], list[str]]:
    """Submit affected plans, and others, until the moment of the kill; return their ids."""
    flight.forget()
    hit, others = _plans(count, host_count(running.settings), killed)
    await flight.submit([*hit, *others])
    await flight.until(flight.all_moved, TIMEOUT)
    await asyncio.sleep(NEARLY * WORK_SECONDS)
    return hit, others


def _plans(count: int, hosts: int, killed: Killed) -> tuple[list[str], list[str]]:
    """Return ids of affected plans, and of others: dispatchers place plans by their ids."""
    hit: list[str] = []
    others: list[str] = []
    while len(hit) < count:
        plan = uuid4().hex
        is_hit = killed == "dispatcher" or slots.host_of(plan, hosts) == 0
        (hit if is_hit else others).append(plan)
    return hit, others


def recovery(flight: Flight, plans: Sequence[str], killed_at: float, killed: Killed | None) -> Outcome:
    """Return the time from the kill to the next turn, for each plan.

    The last commits of a host may reach the server after its death. So for a killed host, only turns
    committed by a new incarnation count.

    Raises:
        BenchmarkFailed: the plans were not in the killed host.
    """
    before = {turn.life for plan in plans for turn in flight.turns[plan] if turn.time <= killed_at}
    taken = []
    for plan in plans:
        after = (turn.time for turn in flight.turns[plan] if turn.time > killed_at)
        if killed == "host":
            after = (turn.time for turn in flight.turns[plan] if turn.life not in before)
        first = next(after, None)
        if first is None:
            raise BenchmarkFailed(f"plan {plan} has taken no turn after the {killed} was killed")
        taken.append(first - killed_at)
    return Outcome(max(taken), taken)
