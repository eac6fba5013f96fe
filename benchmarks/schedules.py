"""Measures how late firings of many schedules are, and what schedules cost that do not fire.

``python -m benchmarks.schedules --schedules 100000`` stores that many schedules on a nats-server of its own. They fire
every hour, spread evenly over it. One scheduler, in this process alone, sends their goals, which no host takes: the
lateness is that of the scheduler, up to the server's acknowledgement of the goal. Then all are moved to next year, and
the processor time of the scheduler is measured while nothing is due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rich.console import Console

from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import scratch
from plancast.schedules.definition import define
from plancast.schedules.record import ScheduleRecord
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_actors.telemetry.metrics import FIRING_LATENESS
from plancast_actors.telemetry.samples import Samples
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.bus import JetStreamBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PERIOD = 3_600.0
"""Seconds between two firings of a schedule."""
TOGETHER = 500
"""Schedules that are stored at the same time."""
LOOK_SECONDS = 0.5


async def measure(schedules: int, seconds: float) -> dict[str, Any]:
    """Run both parts, each for some seconds."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch())
        server = stack.enter_context(NatsServer(folder / "nats"))
        found: dict[str, Any] = {"schedules": schedules, "seconds": seconds, "load": os.getloadavg()[0]}
        for name, every in (("firing", PERIOD), ("idle", 366 * 86_400.0)):
            bus = await connect(NatsSettings(url=server.url), BusSettings(prefix=f"bench-{name}"))
            stack.push_async_callback(bus.close)
            await bus.ensure_streams()
            began = time.monotonic()
            await _store(bus, schedules, every)
            stored = time.monotonic() - began
            async with _running(bus, schedules) as scheduler:
                known = time.monotonic() - began - stored
                found[name] = await _follow(scheduler, seconds)
            found[name] |= {"stored in seconds": round(stored, 1), "known in seconds": round(known, 1)}
        return found


async def _store(bus: JetStreamBus, schedules: int, every: float) -> None:
    """Store schedules whose next firings are spread evenly over the period that begins now."""
    now = bus.clock.time() + 0.001 * schedules  # by then all are stored, and known to the scheduler

    async def store(number: int) -> None:
        begin = now - every + every * number / schedules
        definition = define(f"s{number}", "report.wanted", every=every, overlap="allow", now=begin)
        record = ScheduleRecord.create(definition, f"u{number}", begin)
        await bus.schedules.replace(definition.key, record.encode(), 0)

    for first in range(0, schedules, TOGETHER):
        await asyncio.gather(*map(store, range(first, min(first + TOGETHER, schedules))))


@asynccontextmanager
async def _running(bus: JetStreamBus, schedules: int) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(bus)
    scheduler.start()
    try:
        await _until(lambda: scheduler.known >= schedules)
        yield scheduler
    finally:
        await scheduler.stop()


async def _follow(scheduler: Scheduler, seconds: float) -> dict[str, Any]:
    """Lateness of the firings of a while, and the share of a core that this process has taken."""
    # Those that came due while others were stored.
    await _until(lambda: not scheduler.is_busy and scheduler.overdue() == 0)
    lateness: list[float] = []
    begin, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - begin < seconds:
        scheduler.samples = Samples()
        await asyncio.sleep(LOOK_SECONDS)
        lateness += scheduler.samples.take().get((FIRING_LATENESS, ()), [])
    share = (time.process_time() - cpu) / (time.monotonic() - begin)
    found: dict[str, Any] = {"firings": len(lateness), "share of a core": round(share, 4)}
    if len(lateness) > 1:
        found |= {
            "p50 seconds": round(statistics.median(lateness), 3),
            "p99 seconds": round(statistics.quantiles(lateness, n=100)[98], 3),
            "most seconds": round(max(lateness), 3),
        }
    return found


async def _until(reached: Callable[[], bool]) -> None:
    while True:
        if reached():
            return
        await asyncio.sleep(LOOK_SECONDS)


def main() -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=str(__doc__).split("\n")[0])
    parser.add_argument("--schedules", type=int, default=100_000, help="number of schedules (100,000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each part (60)")
    said = parser.parse_args()
    if said.schedules < 1 or said.seconds <= 0:
        parser.error("--schedules is at least 1, --seconds above 0")
    found = asyncio.run(measure(said.schedules, said.seconds))
    Console().print_json(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(supervised(main))
