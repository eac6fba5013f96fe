"""Measures how long commits of other plans wait while plans that have rested wake.

``python -m benchmarks.rested`` starts a nats-server, and commits two turns of each plan, which then rest until the
server has dropped from its memory where in the stream's blocks their checkpoints are. Then plans chosen at random wake
for ``--turns`` turns each, the last of which ends the plan with ``--end``, while other plans, which have not rested,
commit at a constant rate. The figures are the longest wait of these, and the bytes that the server has read meanwhile,
which do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from benchmarks.load.outcome import Outcome
from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import scratch
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

BYTES = 1000
"""Bytes of a plan's state, which are not compressible, as the server does not compress them either."""
IN_FLIGHT = 500
"""Commits at a time while plans are parked."""
OTHERS = 50
"""Plans that have not rested."""
RETENTION = 3600.0


@dataclass(frozen=True)
class Load:
    """Parameters of a measurement."""

    plans: int = 300_000
    rest: float = 150.0
    """Seconds between the last commit of the plans that rest and their waking."""
    wake: int = 2_000
    """Plans that wake."""
    at_once: int = 16
    """Most of them at a time."""
    turns: int = 4
    end: bool = False
    """The last turn of a plan that wakes ends it."""
    loads: bool = True
    """A plan that wakes is loaded first, as one is that its host has passivated."""
    rate: float = 200.0
    """Commits of other plans per second."""
    alone: float = 10.0
    """Seconds for which they commit before any plan wakes."""


@dataclass
class Plans:
    """The plans of a measurement, and the versions of their checkpoints."""

    bus: Bus
    versions: dict[str, int] = field(default_factory=dict)

    async def turn(self, plan: str, revision: int, *, end: bool = False) -> None:
        """Commit a turn."""
        version = self.versions.get(plan, 0)
        summary = PlanSummary(plan, "completed" if end else "waiting", "rested.goal", "waiting", revision)
        state = random.randbytes(BYTES)
        checkpoint = Checkpoint(plan, revision, f"{plan}-{revision}", state, summary, version=version)
        if end:
            checkpoint = replace(checkpoint, expires_after=RETENTION)
        self.versions[plan] = await self.bus.checkpoints.commit(checkpoint)

    async def park(self, plans: Iterable[str]) -> None:
        """Commit two turns of each plan."""
        waiting = iter(plans)

        async def work() -> None:
            for plan in waiting:
                await self.turn(plan, 1)
                await self.turn(plan, 2)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

    async def wake(self, plans: Iterable[str], load: Load) -> list[float]:
        """Take the turns of plans that have rested; returns the seconds of each turn."""
        waiting, seconds = iter(plans), []

        async def work() -> None:
            for plan in waiting:
                begin = time.perf_counter()
                if load.loads:
                    assert await self.bus.checkpoints.load(plan) is not None
                for number in range(load.turns):
                    end = load.end and number == load.turns - 1
                    await self.turn(plan, 3 + number, end=end)
                    seconds.append(time.perf_counter() - begin)
                    begin = time.perf_counter()

        await asyncio.gather(*(work() for _ in range(load.at_once)))
        return seconds

    @asynccontextmanager
    async def others(self, rate: float) -> AsyncIterator[list[float]]:
        """Commit turns of other plans at a rate meanwhile; yields the seconds that each took."""
        seconds: list[float] = []
        ended = asyncio.Event()

        async def work(number: int) -> None:
            await asyncio.sleep(number / rate)
            plan, revision = f"other-{number}", 0
            while not ended.is_set():
                begin, revision = time.perf_counter(), revision + 1
                await self.turn(plan, revision)
                seconds.append(time.perf_counter() - begin)
                await asyncio.sleep(max(0.0, begin + OTHERS / rate - time.perf_counter()))

        working = asyncio.gather(*(work(number) for number in range(OTHERS)))
        try:
            yield seconds
        finally:
            ended.set()
            await working


async def measure(load: Load, say: Callable[[str], object]) -> None:
    """Print the waits of other plans' commits, before and while plans wake."""
    with scratch() as folder, NatsServer(folder / "nats") as server:
        bus = await connect(NatsSettings(url=server.url), BusSettings())
        try:
            await bus.ensure_streams()
            plans, ids = Plans(bus), [f"{number:032x}" for number in range(load.plans)]
            begin = time.monotonic()
            await plans.park(ids)
            say(f"{load.plans:,} plans parked in {time.monotonic() - begin:.0f} s")
            await asyncio.sleep(load.rest)
            async with plans.others(load.rate) as alone:
                await asyncio.sleep(load.alone)
            say(f"other plans alone: {_waits(alone)}")
            picked = random.Random(0).sample(ids, load.wake)
            begin, before = time.monotonic(), _read_mb(server)
            async with plans.others(load.rate) as meanwhile:
                woken = await plans.wake(picked, load)
            read = _read_mb(server) - before
            say(f"{load.wake:,} plans woke in {time.monotonic() - begin:.1f} s; their turns: {_waits(woken)}")
            say(f"other plans meanwhile: {_waits(meanwhile)}; the server has read {read:,.0f} MB")
        finally:
            await bus.close()


def _waits(seconds: list[float]) -> str:
    outcome = Outcome(sum(seconds), seconds)
    found = ", ".join(f"p{percent:g} {outcome.percentile_ms(percent):,.1f} ms" for percent in (50, 99))
    return f"{found}, longest {1000 * max(seconds):,.1f} ms of {len(seconds):,}"


def _read_mb(server: NatsServer) -> float:
    """Return the megabytes that a server has read from files and sockets so far."""
    return int(Path(f"/proc/{server.pid}/io").read_text().split()[1]) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rested", description=__doc__)
    base = Load()
    parser.add_argument("--plans", type=int, default=base.plans)
    parser.add_argument("--rest", type=float, default=base.rest, help="seconds")
    parser.add_argument("--wake", type=int, default=base.wake, help="plans that wake")
    parser.add_argument("--at-once", type=int, default=base.at_once, help="of them at a time")
    parser.add_argument("--turns", type=int, default=base.turns)
    parser.add_argument("--rate", type=float, default=base.rate, help="commits of other plans per second")
    parser.add_argument("--end", action="store_true", help="the last turn of a plan ends it")
    parser.add_argument("--in-memory", action="store_true", help="plans that wake are in the memory of their hosts")
    options = parser.parse_args()
    load = Load(
        options.plans, options.rest, options.wake, options.at_once, options.turns, options.end,
        not options.in_memory, options.rate,
    )  # fmt: skip
    asyncio.run(measure(load, Console(soft_wrap=True).print))
    return 0


if __name__ == "__main__":
    raise SystemExit(supervised(main))
