"""``python -m benchmarks.planners``: tasks that get done although the model is sometimes wrong.

A model that knows what is right is wrong with a given chance: it takes the wrong tool, gives bad arguments, invents an
event, repeats a step, stops too early, breaks its JSON or passes on an injected object. A naive loop and
``ChoreographyPlanner`` do the same tasks, with the same noise.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from benchmarks.planners.oracle import VALID_BUT_WRONG, Oracle
from benchmarks.planners.sides import SIDES, run
from benchmarks.planners.tasks import tasks
from benchmarks.reports.rows import machine
from benchmarks.sharding.tables import Table, show, write
from benchmarks.systems.ending import supervised
from benchmarks.systems.scratch import ROOT

DOCUMENT = ROOT / "docs" / "planners.md"


@dataclass(frozen=True)
class Figures:
    """The figures of a side at a level of noise."""

    side: str
    noise: float
    tasks: int
    succeeded: int
    detectable: int
    """Tasks in which no answer was valid but wrong."""
    detectable_succeeded: int
    repairs: int
    tokens: int
    unsafe: int
    wrong_answers: int
    """Answers that were valid but wrong."""

    @classmethod
    def of(cls, side: str, noise: float, oracle: Oracle) -> Figures:
        """Sum up what came of the tasks."""
        runs = list(oracle.runs.values())
        clear = [each for each in runs if each.detectable]
        return cls(
            side=side,
            noise=noise,
            tasks=len(runs),
            succeeded=sum(each.succeeded for each in runs),
            detectable=len(clear),
            detectable_succeeded=sum(each.succeeded for each in clear),
            repairs=sum(each.repairs for each in runs),
            tokens=sum(each.tokens for each in runs),
            unsafe=sum(each.unsafe for each in runs),
            wrong_answers=sum(each.noise[kind] for each in runs for kind in VALID_BUT_WRONG),
        )


def table(figures: Sequence[Figures], seed: int) -> Table:
    """A row for each side and level of noise.

    Columns: tasks done; tasks done, of those in which every fault can be detected, and their number; repairs; tokens of
    all calls by tasks done; effects outside the registry or a schema; answers that were valid but wrong.
    """
    columns = ("noise", "planner", "done", "clear", "of", "repairs", "tokens", "unsafe", "wrong")
    rows = [
        (
            f"{each.noise:.0%}",
            each.side,
            _part(each.succeeded, each.tasks),
            _part(each.detectable_succeeded, each.detectable),
            f"{each.detectable}",
            f"{each.repairs:,}",
            f"{each.tokens // each.succeeded:,}" if each.succeeded else "–",
            f"{each.unsafe:,}",
            f"{each.wrong_answers:,}",
        )
        for each in figures
    ]
    count = figures[0].tasks if figures else 0
    return Table("planner-quality", f"{count} tasks of 10 decisions, 60 events, seed {seed}", columns, rows, (0, 1))


def facts(seed: int, count: int) -> Table:
    """Describe the machine and the versions that the figures were measured with."""
    about = machine()
    rows = [(f"{count} tasks, seed {seed}; {about['cores']} cores, {about['cpu']}, Python {about['python']}",)]
    return Table("planner-quality-machine", "Measured with", ("measured with",), rows)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planners", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200, help="(200)")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.1, 0.2], help="(0 0.1 0.2)")
    parser.add_argument("--seed", type=int, default=1, help="of the tasks and the noise (1)")
    parser.add_argument("--write", action="store_true", help="also write the table into docs/planners.md")
    options = parser.parse_args(given)
    if options.tasks < 1 or not all(0 <= each <= 1 for each in options.noise):
        parser.error("--tasks is at least 1, --noise from 0 to 1")
    return options


async def measure(count: int, noises: Sequence[float], seed: int) -> list[Figures]:
    """Run the tasks by each side at each level of noise."""
    made = tasks(count, seed)
    return [Figures.of(side, noise, await run(side, made, noise, seed)) for noise in noises for side in SIDES]


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, and write it if requested."""
    options = arguments(given)
    console = Console()
    logging.getLogger("plancast_actors").setLevel(logging.CRITICAL)  # plans that fail are counted
    figures = asyncio.run(measure(options.tasks, options.noise, options.seed))
    listed = [table(figures, options.seed), facts(options.seed, options.tasks)]
    show(listed, console)
    if options.write:
        missing = write(listed, DOCUMENT)
        console.print(f"{DOCUMENT.relative_to(ROOT)} is up to date" + f", without {', '.join(missing)}" * bool(missing))


def _part(some: int, of: int) -> str:
    return f"{some / of:.1%}" if of else "–"


if __name__ == "__main__":
    sys.exit(supervised(main))
