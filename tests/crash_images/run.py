"""Crash images: runs plans on a recorded nats-server, and starts servers on what a loss of power may leave of it.

``python -m tests.crash_images.run --images 1000 --seed 7`` does it; exit code 1 says that something was lost that may
not be lost, or without being named. The seed fixes which images are made of a recording; no recording is like another.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal

from tests.crash_images.images import Image, Keep, damaged, make_image
from tests.crash_images.recording import why_not, without_syncs
from tests.crash_images.verdict import Verdict, judge
from tests.crash_images.workload import Take, record

Kind = Literal["always", "interval", "damaged"]
KINDS: tuple[Kind, ...] = ("always", "interval", "always", "interval", "damaged")
KEEPS: tuple[Keep, ...] = ("synced", "some", "some", "all")
INTERVAL = "2s"
"""Stands for the server's default of two minutes."""
AT_ONCE = 2


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    images: int = 1000
    seed: int = 7
    plans: int = 60
    unsynced: str = ""
    """Part of the names of files whose syncs are left out, as if the server made none: the run has to find it."""
    go_on: int = 10
    """Rounds of images of which one is run on until its plans have ended; 0: none."""
    quiet: bool = False


@dataclass
class Report:
    """Verdicts on all images."""

    images: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Plans that went back, by the kind of image."""
    named: Counter[str] = field(default_factory=Counter)
    young: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Images on which the server or the deployment refuses to start."""
    broken: list[str] = field(default_factory=list)
    """Promises that were broken."""

    def add(self, kind: Kind, verdict: Verdict) -> None:
        """Count the verdict on an image."""
        self.images[kind] += 1
        self.lost[kind] += len(verdict.lost)
        self.named[kind] += len(verdict.lost.keys() & verdict.named.keys())
        self.young[kind] += len(verdict.lost.keys() & verdict.young - verdict.named.keys())
        self.refused[kind] += bool(verdict.refused)
        if kind == "always":
            wrong = verdict.lost | ({"": f"no start: {verdict.refused}"} if verdict.refused else {})
        else:
            wrong = verdict.silent
        self.broken += [f"{kind}, {verdict.about}: {plan} {how}" for plan, how in wrong.items()]
        self.broken += [f"{kind}, {verdict.about}: {plan} stands still: {how}" for plan, how in verdict.stuck.items()]
        for key, plan in verdict.repeated.items():
            self.broken.append(f"{kind}, {verdict.about}: {plan} did {key} twice, and says nothing of a loss")

    def print(self, seconds: float) -> None:
        """Print it."""
        for kind in dict.fromkeys(KINDS):
            print(
                f"{kind:9} {self.images[kind]:5} images, {self.refused[kind]} refused; plans that went back: "
                f"{self.lost[kind]}, of which {self.named[kind]} were named, and {self.young[kind]} were too young"
            )
        for each in self.broken[:50]:
            print(f"BROKEN: {each}")
        print(f"{seconds:.0f} s; " + (f"{len(self.broken)} broken" if self.broken else "every promise was kept"))


def choose_image(take: Take, kind: Kind, random: Random) -> Image:
    """Choose a point of a recording, and what is kept."""
    line = random.randrange(take.begun, len(take.recording.times))
    # Two thirds of the deployments are older than what the kernel leaves unwritten.
    settled = take.begun if kind == "interval" and random.random() < 2 / 3 else 0
    image = make_image(take.recording, line, random, random.choice(KEEPS), settled=settled)
    return damaged(image, random) if kind == "damaged" else image


async def run(options: Options) -> Report:
    """Record, make the images, and judge them."""
    report, takes = Report(), dict[str, Take]()
    with tempfile.TemporaryDirectory(prefix="crash-images-") as folder:
        for name, interval in (("always", "always"), ("interval", INTERVAL)):
            take = await record(Path(folder) / name, options.plans, options.seed, interval)
            if options.unsynced:
                take = replace(take, recording=without_syncs(take.recording, options.unsynced))
            takes[name] = take
    waiting = iter(range(options.images))

    async def work() -> None:
        for number in waiting:
            kind = KINDS[number % len(KINDS)]
            take = takes["interval" if kind == "interval" else "always"]
            image = choose_image(take, kind, Random(f"{options.seed}:{number}"))
            chosen = options.go_on and number // len(KINDS) % options.go_on == options.go_on - 1
            go_on = bool(chosen) and kind != "damaged"
            try:
                verdict = await judge(image, take.oracle, take.sync_interval, go_on=go_on)
            except Exception as error:
                if kind != "damaged":
                    raise
                verdict = Verdict(image.about, refused=repr(error))  # an error of whatever kind is not silent
            report.add(kind, verdict)
            if not options.quiet and report.images.total() % 50 == 0:
                print(f"{report.images.total()}/{options.images} images, {len(report.broken)} broken", flush=True)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return report


def read_options(arguments: list[str]) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash_images.run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--images", type=int, default=Options.images, help="crash images (1000)")
    parser.add_argument("--seed", default="random", help="a number, or random")
    parser.add_argument("--plans", type=int, default=Options.plans, help="plans in each of the two recordings (60)")
    parser.add_argument("--go-on", type=int, default=Options.go_on, help="run on one of so many rounds (10); 0: none")
    parser.add_argument("--unsynced", default="", metavar="PART", help="leave out the syncs of files named so")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    said = parser.parse_args(arguments)
    if min(said.images, said.plans) < 1:
        parser.error("--images and --plans are at least 1")
    seed = Random().randrange(10**6) if said.seed == "random" else int(said.seed)
    return Options(said.images, seed, said.plans, said.unsynced, said.go_on, said.quiet)


def main(arguments: list[str]) -> int:
    """Run, and print a report; returns 1 if a promise was broken."""
    options = read_options(arguments)
    if reason := why_not():
        print(reason)
        return 2
    print(f"seed {options.seed}", flush=True)
    logging.disable(logging.CRITICAL)
    begun = time.monotonic()
    report = asyncio.run(run(options))
    report.print(time.monotonic() - begun)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
