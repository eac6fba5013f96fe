"""Output of `plancast plans history` and `plans watch`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from plancast.plan.control_events import INJECT, REDIRECT, RESUME, user_of
from plancast.plan_store import timeline
from plancast.terminal.output import cell, duration, iso, note, out, plain, shorten, status_text, table, timestamp

if TYPE_CHECKING:
    from plancast.client.changes import PlanChange, TaskReport

SAID_WIDTH = 120
"""Maximum number of characters of a control event's data in the table."""
_STEERED = {
    RESUME: "resumed with",
    REDIRECT: "redirected to",
    INJECT: "received the context",
}
"""Text for a control event; those that are missing show in the plan's error or pause reason."""


def show_table(entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries:
        note("no turns")
        return
    made = table("#", "time (UTC)", "after", "event", "from → to", "sent", "notes", right=["#", "after"])
    for column in made.columns[:3]:
        column.no_wrap = True
    before: float | None = None
    for entry in entries:
        at = float(entry["time"])
        made.add_row(
            str(entry["revision"]),
            cell(timestamp(at, fraction=True), "dim"),
            cell(f"+{duration(at - before)}" if before is not None else "", "dim"),
            _event(entry),
            _move(entry),
            cell(", ".join(str(kind) for kind, _event_id in entry.get("sent") or ())),
            _notes(entry),
        )
        before = at
    out().print(made)


def show_full(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a paragraph for each turn: its event with data, and the ids of the sent events."""
    console = out()
    for index, entry in enumerate(entries):
        if index:
            console.print()
        head = Text.assemble(
            (f"#{entry['revision']}", "bold"),
            (f"  {timestamp(float(entry['time']), fraction=True)}  ", "dim"),
            _event(entry),
            "  ",
            _move(entry),
        )
        console.print(head, soft_wrap=True)
        event = entry.get("event") or {}
        console.print(cell(f"  event {event.get('id', '?')} from {event.get('source', '?')}", "dim"), soft_wrap=True)
        data = json.dumps(event.get("data"), indent=2, ensure_ascii=False, default=str)
        console.print(cell("  " + data.replace("\n", "\n  ")), soft_wrap=True)
        for kind, event_id in entry.get("sent") or ():
            console.print(Text.assemble("  sent ", cell(kind, "cyan"), cell(f"  {event_id}", "dim")), soft_wrap=True)
        for remark in _remarks(entry):
            console.print(cell(f"  {remark}", "yellow"), soft_wrap=True)


def show_change(change: PlanChange) -> None:
    """Print a change of a watched plan."""
    from plancast.client.changes import TaskReport

    line = Text.assemble(
        (f"{timestamp(change.time, fraction=True)}  ", "dim"),
        (f"#{change.revision}  ", "dim"),
        status_text(change.status),
        "  ",
        cell(" → ".join(change.path) or change.current_state),
    )
    if isinstance(change, TaskReport):
        line = Text.assemble(
            (f"{timestamp(change.time, fraction=True)}  ", "dim"),
            ("⋯  ", "dim"),
            cell(str(change.event_type), "cyan"),
            "  ",
            cell(said_of(change)),
        )
    elif change.event_type:
        line.append_text(Text.assemble("  on ", cell(change.event_type, "cyan")))
    out().print(line, soft_wrap=True)


def change_document(change: PlanChange) -> dict[str, Any]:
    """The JSON of a change in `plans watch`."""
    return {"kind": change.kind, **asdict(change), "cursor": change.cursor, "time": iso(change.time)}


def said_of(report: TaskReport) -> str:
    """The report of a task, on one line."""
    from plancast.client.changes import DecisionText, TaskChunk, TaskProgress

    if isinstance(report, DecisionText):
        return report.text
    if isinstance(report, TaskChunk):
        return report.chunk if isinstance(report.chunk, str) else json.dumps(report.chunk, ensure_ascii=False)
    if not isinstance(report, TaskProgress):
        return ""
    share = "" if report.fraction is None else f"{report.fraction:.0%}"
    return "  ".join(filter(None, (share, report.message)))


def _event(entry: Mapping[str, Any]) -> Text:
    kind = cell(timeline.event_type(entry), "cyan")
    return Text.assemble(kind, ("  ⏲", "dim")) if entry.get("timer") else kind


def _move(entry: Mapping[str, Any]) -> Text:
    before, path = entry.get("from") or "", list(entry.get("path") or ())
    after = path or ([entry["state"]] if entry.get("state") not in (None, before) else [])
    line = cell(" → ".join([each for each in (before, *after) if each]) or "–")
    if not after:
        line.stylize("dim")
    if entry.get("status") not in ("pending", "running"):
        line = Text.assemble(line, " ", status_text(str(entry.get("status"))))
    return line


def _notes(entry: Mapping[str, Any]) -> Text:
    remarks = [each for each in (_steered(entry), *_remarks(entry)) if each]
    return cell("; ".join(remarks), "red" if entry.get("status") == "failed" else "yellow")


def _decision(taken: Mapping[str, Any]) -> str:
    """A planner's decision on one line: action, confidence, model, usage and reasoning."""
    decision = taken["decision"]
    action = decision["next_action"]
    what = action.get("event_type") or action.get("goal_event") or action.get("expected_event") or ""
    calls = taken.get("calls") or ()
    given, confidence = timeline.confidence(taken)
    facts = [f"{confidence:.0%} confidence"] if confidence is not None else []
    if calls:
        if not given:
            facts.append("confidence unknown" if given is None else "confidence not given")
        tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
        cached = sum(call.get("cached_tokens", 0) for call in calls)
        used = f"{tokens} tokens, {cached} cached" if cached else f"{tokens} tokens"
        facts += [str(calls[-1]["model"]), used, duration(float(taken.get("seconds", 0)))]
    if taken.get("repairs"):
        facts.append(f"{taken['repairs']} repairs")
    why = decision.get("reasoning") or action.get("reasoning") or action.get("reason") or ""
    known = f" ({', '.join(facts)})" if facts else ""
    return plain(f"decided to {action['action']} {what}".rstrip() + f"{known}: {why}")


def _steered(entry: Mapping[str, Any]) -> str:
    """The data of a control event as text; empty when there is none."""
    control = timeline.control(entry)
    if control is None or control.event not in _STEERED or control.said is None:
        return ""
    return plain(f"{_STEERED[control.event]} {shorten(control.said, SAID_WIDTH)}")


def _remarks(entry: Mapping[str, Any]) -> list[str]:
    by = user_of(entry.get("event") or {})
    remarks = [f"by {plain(by)}"] if by else []
    remarks += [_decision(each) for each in entry.get("decisions") or ()]
    remarks += [plain(str(each)) for each in entry.get("notes") or ()]
    for key, label in (("error", ""), ("pause_reason", "paused: ")):
        if entry.get(key):
            remarks.append(f"{label}{entry[key]}")
    return remarks
