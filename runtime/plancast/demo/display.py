"""Shows the demos: live progress, then tables."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plancast.demo.decision_log import Account, Spent, Step
from plancast.demo.driver import SUBMITTED, Journey, PlanDrive
from plancast.demo.host_kill import Cost
from plancast.terminal.output import cell, duration, plain, plural, table

STYLES = {"done": "green", "failed": "red", "ask_user": "yellow", "retry_search": "magenta", SUBMITTED: "dim"}
DECISION_STYLES = {"wait": "yellow", "delegate": "magenta", "complete": "green"}
NOTES = 6
"""Maximum number of notes on the screen."""
PLAIN_STEPS = 4
"""Number of progress lines for a whole run when stdout is no terminal."""


class Board:
    """Live progress on a terminal, else a few lines.

    Args:
        console: Receives the output.
        kind: The demo.
        quiet: Show nothing.
    """

    def __init__(self, console: Console, kind: type[PlanDrive[Any, Any]], *, quiet: bool = False) -> None:
        self._kind = kind
        self._console = console
        self._quiet = quiet
        self._drive: PlanDrive[Any, Any] | None = None
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._began = time.monotonic()
        self._steps = 0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=10)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def follow(self, drive: PlanDrive[Any, Any]) -> None:
        self._drive = drive

    def note(self, text: str) -> None:
        """Show a line with the seconds since the start."""
        line = f"{time.monotonic() - self._began:5.1f} s  {plain(text)}"
        self._notes.append(line)
        if self._live is None and not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    def plan_ended(self) -> None:
        """Without a terminal, print progress a few times in a run."""
        drive = self._drive
        if drive is None or self._live is not None:
            return
        ended = sum(run.ended_at > 0 for run in drive.runs)
        if ended * PLAIN_STEPS // drive.planned > self._steps:
            self._steps = ended * PLAIN_STEPS // drive.planned
            self.note(f"{ended} of {plural(drive.planned, self._kind.noun)} ended")

    def _draw(self) -> RenderableType:
        parts: list[RenderableType] = [Text(line, style="dim") for line in self._notes]
        if self._drive is not None:
            parts += [self._progress(self._drive), self._counts(self._drive.runs)]
        return Group(*parts)

    def _progress(self, drive: PlanDrive[Any, Any]) -> RenderableType:
        ended = sum(run.ended_at > 0 for run in drive.runs)
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=drive.planned, completed=ended, width=40)
        row.add_row(bar, f"{ended}/{drive.planned} {self._kind.noun}s")
        return row

    def _counts(self, runs: Sequence[Journey[Any]]) -> Text:
        counts = Counter(run.state for run in runs)
        text = Text()
        for state in dict.fromkeys([*self._kind.states, *counts]):
            style = self._kind.styles.get(state, "cyan") if counts[state] else "dim"
            text.append(f"{state} {counts[state]}  ", style=style)
        return text


def print_runs(console: Console, kind: type[PlanDrive[Any, Any]], runs: Sequence[Journey[Any]]) -> None:
    """Print a row for each plan, with its duration and a check mark."""
    shown = table(*kind.columns, "time", "", right=(*kind.numbers, "time"))
    for column in shown.columns:
        column.max_width = kind.widths.get(str(column.header))
    for run in runs:
        seconds = "–" if run.seconds is None else duration(run.seconds)
        verdict = cell("✗", "bold red") if run.faults() else cell("✓", "green")
        cells = (each if isinstance(each, Text) else cell(each) for each in run.cells())
        shown.add_row(*cells, cell(seconds), verdict)
    console.print(shown)


def print_timeline(console: Console, run: Journey[Any], killed_at: float | None) -> None:
    """Print the turns of a plan, with the kill among them."""
    console.print(Text(f"Timeline of plan {run.handle.plan_id}: {plain(run.title)}", style="bold"))
    shown = table("turn", "after", "event", "state", "sent", "notes", right=("turn", "after"))
    shown_kill = killed_at is None
    for entry in run.history:
        if not shown_kill and killed_at is not None and entry["time"] > killed_at:
            shown.add_row("", cell(f"{killed_at - run.submitted_at:.3f} s"), cell("kill -9 of a plan host", "bold red"))
            shown_kill = True
        shown.add_row(
            str(entry["revision"]),
            cell(f"{entry['time'] - run.submitted_at:.3f} s"),
            cell(entry["event"]["type"]),
            path_text(entry["path"]) if entry["path"] else cell(entry["state"], "dim"),
            cell(", ".join(event_type for event_type, _ in entry["sent"])),
            cell("; ".join(entry.get("notes", ()))),
        )
    console.print(shown)


def print_cost(console: Console, cost: Cost) -> None:
    console.print(Text(f"Cost of kill -9 of {cost.host}", style="bold"))
    shown = table("", "")
    shown.show_header = False
    rows = {
        "in flight at that moment": plural(cost.in_flight, "plan"),
        "delayed by it": plural(cost.delayed, "plan"),
        "its process was back after": duration(cost.process_back),
        "first turn of a delayed plan after": duration(cost.first_turn) if cost.delayed else "–",
        "all delayed plans moved again after": duration(cost.all_moved) if cost.delayed else "–",
        "restored from their checkpoints": plural(cost.taken_up, "plan"),
        "lost, duplicated (by their final responses on NATS)": f"{cost.lost}, {cost.doubled}",
    }
    for name, value in rows.items():
        shown.add_row(cell(name, "dim"), cell(value))
    console.print(shown)


def print_faults(console: Console, runs: Sequence[Journey[Any]]) -> None:
    for run in runs:
        for fault in run.faults():
            console.print(Text(plain(f"{run.title} (plan {run.handle.plan_id}) {fault}"), style="red"))


def print_verdict(console: Console, good: int, all_: int, text: str) -> None:
    """Print the last line: green when all plans are good."""
    console.print(Text(f"{good} of {text}", style="bold green" if good == all_ else "bold red"))


def print_decisions(console: Console, title: str, account: Account, since: float) -> None:
    """Print every decision of a plan with its trigger and its reasoning."""
    console.print(Text(plain(title), style="bold"))
    shown = table("turn", "after", "event", "decision", "reasoning", right=("turn", "after"))
    for step in account.steps:
        shown.add_row(
            str(step.revision),
            cell(duration(step.time - since)),
            cell(step.trigger, "cyan"),
            cell(f"{step.kind} {step.object}".strip(), DECISION_STYLES.get(step.kind, "")),
            cell(step.reasoning),
        )
    console.print(shown)


def print_spent(console: Console, model: str, spent: Spent, *, stand_in: bool) -> None:
    repairs = plural(spent.repairs, "repair") if spent.repairs else "no repairs"
    each = duration(spent.seconds / spent.calls) if spent.calls else "–"
    price = "(price unknown)" if spent.cost is None else f"for {dollars(spent.cost)}"
    cached = f" ({spent.cached_tokens:,} cached)" if spent.cached_tokens else ""
    console.print(
        Text(
            f"{plural(spent.calls, 'call')} of {model}, {repairs}; {spent.prompt_tokens:,} prompt{cached} and "
            f"{spent.completion_tokens:,} completion tokens {price}; {each} a call"
        )
    )
    if stand_in:
        console.print(
            Text(
                "No model made these decisions: a program that follows the example's rules stood in for one, called by "
                "litellm over HTTP. It counts one token per four characters. For a real model: --model gpt-4o",
                style="yellow",
            )
        )


def dollars(cost: float | None) -> str:
    return "–" if cost is None else f"${cost:.4f}"


def path_text(states: Sequence[str]) -> Text:
    """The states of a path, with arrows between them."""
    return _arrows([(state, STYLES.get(state, "")) for state in states])


def steps_text(steps: Sequence[Step]) -> Text:
    """The decisions of a plan, with arrows between them."""
    return _arrows([(plain(step.word), DECISION_STYLES.get(step.kind, "")) for step in steps])


def _arrows(parts: Sequence[tuple[str, str]]) -> Text:
    text = Text()
    for index, (word, style) in enumerate(parts):
        text.append(" → " if index else "", style="dim")
        text.append(word, style=style)
    return text
