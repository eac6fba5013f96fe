"""Renders the history of a run for a prompt: the newest entries in full, the oldest as counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from plancast.json_values.abbreviate import LEAST, cut, to_json, to_json_within
from plancast.planners.contract import RunContext, TrajectoryEntry

_SUMMARY = 1_000
_BEFORE = 250
_NOTE = 500


def history_of(run: RunContext, limit: int) -> str:
    """A line for each entry, oldest first, in at most ``limit`` characters, without the trigger.

    Older entries that do not fit are counted in the first line: ``12 earlier events: 5× web.search.completed, ...``.
    """
    entries = [entry for entry in run.trajectory if not _is_trigger(entry, run.trigger)]
    whole = [to_json(_fields(entry)) for entry in entries]
    if sum(map(len, whole)) + len(whole) <= limit:
        return "\n".join(whole)
    lines: list[str] = []
    left = max(limit - _SUMMARY, 0)
    for entry in reversed(entries):
        line = render_entry(entry, max(limit // 4, LEAST))
        if len(line) + 1 > left:
            break
        left -= len(line) + 1
        lines.insert(0, line)
    older = len(entries) - len(lines)
    return "\n".join([_summary(entries[:older], sum(map(len, whole[:older]))), *lines] if older else lines)


def render_entry(entry: TrajectoryEntry, limit: int) -> str:
    """One entry as a line of JSON; data that does not fit is abbreviated."""
    fields = _fields(entry)
    whole = to_json(fields)
    content = next((name for name in ("data", "action") if name in fields), None)
    if len(whole) <= limit or content is None:
        return whole if len(whole) <= limit else to_json_within(fields, limit)
    frame = to_json({**fields, content: 0})
    room = limit - len(frame)
    if room < LEAST:
        return frame
    rest = to_json({name: value for name, value in fields.items() if name != content})
    return f"{rest[:-1]}, {to_json(content)}: {to_json_within(fields[content], room)}}}"


def _fields(entry: TrajectoryEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {"time": entry.time.isoformat(timespec="seconds")} if entry.time.timestamp() else {}
    if entry.revision:
        fields["turn"] = entry.revision
    if entry.kind == "event":
        fields |= {name: value for name, value in (("event", entry.type), ("topic", entry.topic)) if value}
        fields |= {} if entry.data is None else {"data": entry.data}
    else:
        fields["decision"] = entry.type
        if entry.decision is not None:
            action = entry.decision.next_action.model_dump(mode="json", exclude_defaults=True)
            reasons = (entry.decision.reasoning, action.pop("reasoning", ""))
            fields["decision"] = str(entry.decision.next_action.action)
            fields["action"] = action
            fields["reasoning"] = cut("; ".join(dict.fromkeys(filter(None, reasons))), _NOTE)
    if entry.note:
        fields["note"] = cut(entry.note, _NOTE * 4)
    return fields


def _is_trigger(entry: TrajectoryEntry, trigger: TrajectoryEntry | None) -> bool:
    if trigger is None or entry.kind != trigger.kind:
        return False
    if entry is trigger or (entry.event_id and trigger.event_id):
        return entry is trigger or entry.event_id == trigger.event_id
    return (entry.revision, entry.type, entry.data) == (trigger.revision, trigger.type, trigger.data)


def _summary(entries: Sequence[TrajectoryEntry], size: int) -> str:
    """Counts by type, the most frequent first, and the number of characters left out."""
    counts = Counter(
        entry.type or "an event" if entry.kind == "event" else f"decision {entry.type}" for entry in entries
    )
    what = "event" if all(entry.kind == "event" for entry in entries) else "event and decision"
    head = f"[{len(entries)} earlier {what}{'' if len(entries) == 1 else 's'}: "
    listed: list[str] = []
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    for index, (name, count) in enumerate(ranked):
        if len(head) + sum(map(len, listed)) + len(name) > _SUMMARY - 2 * _BEFORE:
            rest = ranked[index:]
            listed.append(f"{sum(each[1] for each in rest)} of {len(rest)} other types")
            break
        listed.append(f"{count}× {name}")
    before = f"; {to_json(cut(entries[0].note, _BEFORE - 50))}" if entries and entries[0].note else ""
    return f"{head}{', '.join(listed)}; {size} characters left out{before}]"
