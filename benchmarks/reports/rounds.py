"""Runs rounds: every measurement once, then every measurement again, so that drift affects them alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.reports.rows import Row, Say, merge, relate


@dataclass(frozen=True)
class Job:
    """One measurement of a round."""

    title: str
    measure: Callable[[Say], Awaitable[list[Row]]]


@dataclass
class Found:
    """Results of rounds."""

    rows: list[Row]
    """Rows, merged over the rounds."""
    failures: list[str]
    """Error messages, one line each."""


async def run(jobs: Sequence[Job], repeat: int, console: Console, keep: Callable[[list[Row]], None]) -> Found:
    """Run all jobs ``repeat`` times, and pass the merged rows to ``keep`` after each round.

    A failing job is recorded, and the others continue.
    """
    runs: list[Row] = []
    found = Found([], [])
    with _progress(console) as progress:
        bar = progress.add_task("", total=repeat * len(jobs))
        for number in range(repeat):
            for job in jobs:
                title = f"run {number + 1} of {repeat}: {job.title}" if repeat > 1 else job.title
                progress.update(bar, description=title)
                console.print(title, highlight=False)
                try:
                    runs += await job.measure(lambda words: console.print(f"  {words}", highlight=False))
                except Exception as error:
                    found.failures.append(f"{title}: {_told(error)}")
                    console.print(f"  failed: {_told(error)}", style="red", highlight=False, markup=False)
                progress.advance(bar)
            found.rows = merge(runs)
            relate(found.rows)
            keep(found.rows)
    return found


def _told(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return "; ".join(map(_told, error.exceptions))
    return str(error) if isinstance(error, BenchmarkFailed) else f"{type(error).__name__}: {error}"


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
