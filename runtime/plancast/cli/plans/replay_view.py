"""Output of `plancast plans replay`."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from plancast.json_values.diff import MISSING
from plancast.replay.report import Outcome, Replay, ReplayedTurn
from plancast.terminal.output import cell, out, plural, report_line, shorten, table, timestamp

VALUE_WIDTH = 80
"""Maximum number of characters of a value."""
SHOWN = 12
"""Maximum number of differences per turn; the JSON has all of them."""
_STYLES = {Outcome.SAME: "green", Outcome.DIFFERS: "bold red", Outcome.UNKNOWN: "yellow"}


def show_replay(replayed: Replay) -> None:
    """Print the turns with their differences, and the verdict."""
    made = table("#", "time (UTC)", "event", "current code", "difference", right=["#"])
    for column in made.columns[:2]:
        column.no_wrap = True
    for turn in replayed.turns:
        made.add_row(
            str(turn.revision),
            cell(timestamp(turn.time, fraction=True), "dim"),
            cell(turn.event_type, "cyan"),
            cell(turn.outcome, _STYLES[turn.outcome]),
            _differences(turn),
        )
    out().print(made)
    report_line(verdict(replayed), good=replayed.outcome is Outcome.SAME)


def verdict(replayed: Replay) -> str:
    """The result of a replay on one line."""
    turns, first = len(replayed.turns), replayed.first
    if first is None:
        return f"plan {replayed.plan_id}: the current code does the same in {plural(turns, 'turn')}"
    differs = next((each for each in replayed.turns if each.outcome is Outcome.DIFFERS), None)
    if differs is not None:
        return f"plan {replayed.plan_id}: the current code differs from revision {differs.revision} on"
    unknown = sum(each.outcome is Outcome.UNKNOWN for each in replayed.turns)
    return f"plan {replayed.plan_id}: nothing differs, but {unknown} of {plural(turns, 'turn')} could not be replayed"


def _differences(turn: ReplayedTurn) -> Text:
    lines = [cell(turn.why, "yellow")] if turn.why else []
    for each in turn.differences[:SHOWN]:
        then, now = _side(each.then), _side(each.now)
        lines.append(Text.assemble(cell(each.path, "bold"), ": ", cell(then, "red"), " → ", cell(now, "green")))
    if len(turn.differences) > SHOWN:
        lines.append(cell(f"and {plural(len(turn.differences) - SHOWN, 'more difference')}", "dim"))
    return Text("\n").join(lines)


def _side(value: Any) -> str:
    return "nothing" if value is MISSING else shorten(value, VALUE_WIDTH)
