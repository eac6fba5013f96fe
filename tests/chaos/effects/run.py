"""Chaos of effects: kills, freezes and lost answers at every point between the commit and the answer of a task.

``python -m tests.chaos.effects.run --kills 500 --legitimate 1000 --seed 7`` runs it on a real nats-server with real
worker processes; exit code 1 says that a promise was broken, or that the strikes prove nothing: unprotected tasks have
to be done twice at the same points.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.effects.cases import make_cases
from tests.chaos.effects.lane import Lane, Verdict
from tests.chaos.effects.repeats import Repeats, run_repeats
from tests.chaos.effects.report import Report
from tests.chaos.effects.traffic import Traffic

from plancast.demo.provider import Provider
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

LANES = 8
PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    seed: int
    kills: int = 500
    legitimate: int = 1000
    """Repeats that are no second call of the same, and may not be held up."""
    lanes: int = LANES
    quiet: bool = False


async def run(options: Options) -> Report:
    """Run all cases and repeats."""
    cases = make_cases(options.seed, options.kills)
    waiting = iter(cases)
    verdicts: list[Verdict] = []
    begun = time.monotonic()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="effects-", ignore_cleanup_errors=True)))
        server = await stack.enter_async_context(NatsServer(folder / "nats"))
        bus = await connect(NatsSettings(url=server.url), BusSettings())
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        provider = await stack.enter_async_context(Provider())
        traffic = Traffic(bus)
        lanes: list[Lane] = []
        for number in range(min(options.lanes, len(cases))):
            lanes.append(Lane(f"lane{number}", server.url, provider, traffic, folder / f"lane{number}"))
            stack.push_async_callback(lanes[-1].close)

        async def work(lane: Lane) -> Repeats:
            for case in waiting:
                verdicts.append(await lane.run(case))
            return await run_repeats(lane, traffic, provider, options.legitimate // len(lanes), options.seed)

        async def tell() -> None:
            while not options.quiet:
                await asyncio.sleep(PROGRESS_SECONDS)
                faults = sum(bool(each.faults) for each in verdicts)
                print(
                    f"{time.monotonic() - begun:6.0f} s  {len(verdicts)}/{len(cases)} cases, {faults} broken",
                    flush=True,
                )

        telling = asyncio.create_task(tell())
        repeats = await asyncio.gather(*map(work, lanes))
        telling.cancel()
    return Report(verdicts, Repeats.total(repeats), time.monotonic() - begun)


def read_options(arguments: list[str]) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.effects.run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=Options.kills, help="processes killed with SIGKILL (500)")
    parser.add_argument("--legitimate", type=int, default=Options.legitimate, help="repeats of other calls (1000)")
    parser.add_argument("--seed", default="random", help="a number, or random")
    parser.add_argument("--lanes", type=int, default=LANES, help="cases side by side (8)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    said = parser.parse_args(arguments)
    seed = Random().randrange(10**6) if said.seed == "random" else int(said.seed)
    if min(said.kills, said.lanes) < 1 or said.legitimate < 0:
        parser.error("--kills and --lanes are at least 1, --legitimate at least 0")
    return Options(seed, said.kills, said.legitimate, said.lanes, said.quiet)


def main(arguments: list[str]) -> int:
    """Run, and print a report; returns 1 if a promise was broken or the run proves nothing."""
    options = read_options(arguments)
    print(f"seed {options.seed}", flush=True)
    report = asyncio.run(run(options))
    report.print()
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
