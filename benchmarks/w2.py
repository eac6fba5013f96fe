"""W2: ten requests at once, joined: N plans of :mod:`benchmarks.fan_out`, all at once, on ours and on the baseline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

from benchmarks import fan_out
from benchmarks.baseline import Processes
from benchmarks.driver import Driver
from benchmarks.measuring import TIMEOUT, cpu_used, measurement
from benchmarks.rows import Row, Say, Scale
from benchmarks.script import W2, record
from benchmarks.systems import NAMESPACE, Running, Sync, plancast, scratch
from plancast.settings import Settings
from plancast_actors.deployment import host_count
from plancast_bus.effects import Publish
from plancast_bus.jetstream import connect
from plancast_bus.server import NatsServer, ServerOptions

COUNTS: dict[Scale, tuple[int, ...]] = {"quick": (50,), "short": (500,), "full": (1_000, 5_000)}
WARM_UP: dict[Scale, int] = {"quick": 20, "short": 100, "full": 100}
APP = "benchmarks.fan_out:app"
Ours = Literal["shared", "baseline"]
OURS: tuple[Ours, ...] = ("shared", "baseline")


class FanOutDriver(Driver):
    """Drives plans of W2."""

    async def open(self) -> None:
        """Listen for final responses."""
        prefix = self._bus.subjects.prefix
        self._subscription = await self._bus.subscribe(f"{prefix}.action-results.*.{fan_out.RESPONSE}", self._responded)

    def _goal(self, number: int, event_type: str = fan_out.GOAL) -> tuple[str, Publish]:
        return super()._goal(number, event_type)


async def measure(scale: Scale, sync: Sync, say: Say) -> list[Row]:
    """One run.

    Raises:
        BenchmarkFailed: a plan did not complete, or completed twice.
    """
    return [await _together(system, n, scale, sync, say) for n in COUNTS[scale] for system in OURS]


async def _together(system: Ours, n: int, scale: Scale, sync: Sync, say: Say) -> Row:
    say(f"{system}: {n:,} plans that ask {fan_out.BRANCHES} things each, at once")
    async with _started(system, sync) as running:
        bus = await connect(running.settings.nats, running.settings.bus)
        driver = FanOutDriver(bus, TIMEOUT)
        try:
            await driver.open()
            await driver.together(WARM_UP[scale])
            before = cpu_used(await running.pids())
            outcome = await driver.together(n)
            measured = await measurement(system, running, outcome, before)
        finally:
            await driver.close()
            await bus.close()
    row = measured.row("w2", n, sync)
    row["turns_per_second"] = round(outcome.plans_per_second * fan_out.TURNS, 1)
    say(
        f"  {row['plans_per_second']:,.0f} plans/s, {row['turns_per_second']:,.0f} turns/s, p99 {row['p99_ms']:,.0f} ms"
    )
    return {**row, "branches": fan_out.BRANCHES, "driver": "bus"}


def _started(system: Ours, sync: Sync) -> AbstractAsyncContextManager[Running]:
    return plancast("shared", sync, APP) if system == "shared" else _baseline(sync)


@asynccontextmanager
async def _baseline(sync: Sync) -> AsyncIterator[Running]:
    """What W2 does on JetStream, without plans; see :mod:`benchmarks.baseline`."""
    with scratch() as folder:
        settings = Settings()
        settings.ray.namespace = NAMESPACE
        recorded = await record(W2)
        options = ServerOptions(sync_interval="always" if sync == "always" else None)
        async with NatsServer(folder / "nats", options) as server:
            assert server.pid is not None
            settings.nats.url = server.url
            bus = await connect(settings.nats, settings.bus)
            await bus.ensure_streams()
            await bus.close()
            count = settings.dispatchers.count + host_count(settings)
            processes = Processes(settings.nats, settings.bus, recorded, count)
            try:
                await asyncio.to_thread(processes.start)
                yield Running(settings, server.pid, baseline=processes.pids)
            finally:
                await asyncio.to_thread(processes.stop)
