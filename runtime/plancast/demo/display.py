"""What the demo shows: progress while plans run, then tables."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plancast.demo.driver import SUBMITTED, Cost, Journey, PlanDrive
from plancast.demo.research_cases import Run
from plancast.terminal.output import cell, duration, plain, plural, table

STATES = (SUBMITTED, "searching", "retry_search", "ask_user", "analyzing", "done", "failed")
STYLES = {"done": "green", "failed": "red", "ask_user": "yellow", "retry_search": "magenta", SUBMITTED: "dim"}
TOPIC_WIDTH, PATH_WIDTH, MAX_ANSWER_WIDTH = 24, 30, 100
OTHER_WIDTH = 72
"""What a row has beside the answer, in characters, gaps included; the answer is cut to what is left."""
NOTES = 6
"""Notes that stay on the screen."""
PLAIN_STEPS = 4
"""Lines of progress without a terminal, for a whole run."""


class Board:
    """Live progress on a terminal; elsewhere a line now and then. ``quiet`` shows nothing."""

    states: Sequence[str] = STATES
    """Where plans may stand, in the order in which they are counted."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._drive: PlanDrive[Any, Any] | None = None
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._began = time.monotonic()
        self._told = 0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=10)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def follow(self, drive: PlanDrive[Any, Any]) -> None:
        """Show the progress of these plans from now on."""
        self._drive = drive

    def note(self, text: str) -> None:
        """Show what has happened, with the time since the beginning."""
        line = f"{time.monotonic() - self._began:5.1f} s  {plain(text)}"
        self._notes.append(line)
        if self._live is None and not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    def plan_ended(self) -> None:
        """Without a terminal, say from time to time how far the plans are."""
        drive = self._drive
        if drive is None or self._live is not None:
            return
        ended = sum(run.ended_at > 0 for run in drive.runs)
        if ended * PLAIN_STEPS // drive.planned > self._told:
            self._told = ended * PLAIN_STEPS // drive.planned
            self.note(f"{ended} of {plural(drive.planned, 'plan')} ended")

    def _draw(self) -> RenderableType:
        parts: list[RenderableType] = [Text(line, style="dim") for line in self._notes]
        if self._drive is not None:
            parts += [_progress(self._drive), _counts(self._drive.runs, self.states)]
        return Group(*parts)


def _progress(drive: PlanDrive[Any, Any]) -> RenderableType:
    ended = sum(run.ended_at > 0 for run in drive.runs)
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=drive.planned, completed=ended, width=40), f"{ended}/{drive.planned} plans")
    return row


def _counts(runs: Sequence[Journey[Any]], states: Sequence[str]) -> Text:
    counts = Counter(run.state for run in runs)
    text = Text()
    for state in states:
        text.append(f"{state} {counts[state]}  ", style=STYLES.get(state, "cyan") if counts[state] else "dim")
    return text


def print_runs(console: Console, runs: Sequence[Run]) -> None:
    """A row for each plan: topic, path through the states, answer, time."""
    shown = table("topic", "path", "answer", "time", "", right=("time",))
    topic, path = shown.columns[:2]
    topic.max_width, path.max_width = TOPIC_WIDTH, PATH_WIDTH
    room = min(max(console.width - OTHER_WIDTH, 20), MAX_ANSWER_WIDTH)
    for run in sorted(runs, key=lambda run: run.submitted_at):
        good = not run.faults()
        answer = run.error if run.error else run.analysis["answer"]
        shown.add_row(
            cell(run.case.topic),
            _path(run.path or (run.state,)),
            cell(_cut(answer, room), "red" if run.error else ""),
            cell(duration(run.seconds) if run.ended_at else "–"),
            cell("✓" if good else "✗", "green" if good else "bold red"),
        )
    console.print(shown)


def print_timeline(console: Console, run: Journey[Any], killed_at: float | None) -> None:
    """Every turn of one plan, and the moment of the kill in between."""
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
            _path(entry["path"]) if entry["path"] else cell(entry["state"], "dim"),
            cell(", ".join(event_type for event_type, _ in entry["sent"])),
            cell("; ".join(entry.get("notes", ()))),
        )
    console.print(shown)


def print_cost(console: Console, cost: Cost) -> None:
    """What the kill has cost."""
    console.print(Text(f"What kill -9 of {cost.host} cost", style="bold"))
    shown = table("", "")
    shown.show_header = False
    rows = {
        "in flight at that moment": plural(cost.in_flight, "plan"),
        "delayed by it": plural(cost.delayed, "plan"),
        "its process was back after": duration(cost.process_back),
        "first turn of a delayed plan after": duration(cost.first_turn) if cost.delayed else "–",
        "all delayed plans moved again after": duration(cost.all_moved) if cost.delayed else "–",
        "taken up from their checkpoints": plural(cost.taken_up, "plan"),
        "lost, doubled (by their final responses on NATS)": f"{cost.lost}, {cost.doubled}",
    }
    for name, value in rows.items():
        shown.add_row(cell(name, "dim"), cell(value))
    console.print(shown)


def print_faults(console: Console, runs: Sequence[Journey[Any]]) -> None:
    """What did not go as it should."""
    for run in runs:
        for fault in run.faults():
            console.print(Text(plain(f"{run.title} (plan {run.handle.plan_id}) {fault}"), style="red"))


def print_answer(console: Console, analysis: dict[str, Any]) -> None:
    """An answer, each sentence with its source."""
    for sentence in analysis["sentences"]:
        console.print(Text(plain(sentence["text"])))
        console.print(Text(f"    {plain(sentence['source'])}", style="dim"))


def _path(states: Sequence[str]) -> Text:
    text = Text()
    for index, state in enumerate(states):
        text.append(" → " if index else "", style="dim")
        text.append(state, style=STYLES.get(state, ""))
    return text


def _cut(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
