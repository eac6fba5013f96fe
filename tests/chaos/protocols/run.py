"""Kills of `plancast serve` between any two events that it sends, by each protocol.

``python -m tests.chaos.protocols.run --runs 500 --seed 7 --protocols sse,mcp``; exit code 1 says that a client has
missed an event, has seen one twice or in another order, or has not got the result once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.actors.on_nats import OnNats
from tests.chaos.protocols.followers import Case, Follower, Strikes, make_cases
from tests.chaos.protocols.parcels import parcels
from tests.chaos.protocols.protocols import PROTOCOLS, Protocol
from tests.chaos.protocols.serving import Serving

from plancast_bus.nats_server.process import NatsServer

TOGETHER = 25
"""Clients that one kill meets."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of the runs of a protocol."""

    protocol: str
    runs: int
    kills: int
    """Kills of the server."""
    struck: int
    """Kills, counted for each client that they met."""
    places: Counter[int]
    """Kills, by the number of events that a client had seen."""
    events: int
    lost: int
    """Connections that were lost while the server lived."""
    faults: list[str]
    seconds: float

    def __str__(self) -> str:
        kept = "each event once and in order, the result once" if not self.faults else f"{len(self.faults)} faults"
        return (
            f"{self.protocol}: {self.runs} runs, {self.kills} kills met clients {self.struck} times, at "
            f"{len(self.places)} places, {self.lost} connections were lost besides; {self.events} events: {kept} "
            f"({self.seconds:.0f} s)"
        )


async def run(protocol: Protocol, runs: int, seed: int) -> Verdict:
    """Run the cases of a protocol, some at a time."""
    began = time.monotonic()
    followers: list[Follower] = []
    faults: list[str] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protocols-", ignore_cleanup_errors=True)))
        nats = await stack.enter_async_context(NatsServer(folder / "nats"))
        env = await stack.enter_async_context(OnNats(nats, parcels()))
        serving = Serving(env.settings, folder)
        stack.push_async_callback(serving.end)
        await serving.start()
        for cases in _batches(make_cases(protocol, seed, runs)):
            strikes = Strikes(serving, len(cases))
            batch = [Follower(each, protocol, env.client, strikes) for each in cases]
            followers += batch
            striking = asyncio.create_task(strikes.run())
            found = await asyncio.gather(*(each.run() for each in batch))
            await striking
            for case, told in zip(cases, found, strict=True):
                faults += [f"run {case.number} of seed {seed}, kills after {case.stops}: {each}" for each in told]
        if (plans := len(await env.client.plans())) != runs:
            faults.append(f"{runs} runs have begun {plans} plans")
    places = Counter(stop for each in followers for stop in each.case.stops[: each.struck])
    return Verdict(
        protocol.name,
        runs,
        serving.kills,
        sum(each.struck for each in followers),
        places,
        sum(len(each.seen) for each in followers),
        sum(each.lost for each in followers),
        faults,
        time.monotonic() - began,
    )


def _batches(cases: list[Case]) -> Iterator[list[Case]]:
    for first in range(0, len(cases), TOGETHER):
        yield cases[first : first + TOGETHER]


def main(arguments: list[str]) -> int:
    """Run, and print a line for each protocol; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.protocols.run", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=500, help="runs of each protocol (500)")
    parser.add_argument("--seed", default="random", help="a number, or random")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help=f"some of {', '.join(PROTOCOLS)}")
    said = parser.parse_args(arguments)
    names = said.protocols.split(",")
    if said.runs < 1 or not set(names) <= PROTOCOLS.keys():
        parser.error(f"--runs is at least 1, --protocols some of {', '.join(PROTOCOLS)}")
    seed = Random().randrange(10**6) if said.seed == "random" else int(said.seed)
    print(f"seed {seed}", flush=True)
    logging.disable(logging.CRITICAL)  # clients log what they lose with the server
    broken = False
    for name in names:
        verdict = asyncio.run(run(PROTOCOLS[name], said.runs, seed))
        print(verdict, *verdict.faults[:20], sep="\n", flush=True)
        broken = broken or bool(verdict.faults)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
