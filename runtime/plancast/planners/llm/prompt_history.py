"""Renders the history of a run for a prompt: the newest entries as they are, older ones in short, the rest as counts.

A provider's cache of prompts serves what a prompt has in common with an earlier one, from its beginning on. So the
rendering of an entry never depends on other entries, and older ones are shortened a block at a time: between two
such compactions a history only grows at its end. docs/decisions/0023 computes why a compaction itself shares less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plancast.json_values.abbreviate import LEAST, cut, fair_share, to_json, to_json_within
from plancast.planners.contract import RunContext, TrajectoryEntry

BLOCK: Final = 12
"""Entries that are shortened at a time. Plans drop old entries in blocks of the same size, at the same moments."""
NEWEST: Final = 8
"""Entries that are never shortened for their number."""
_SUMMARY: Final = 1_000
_NOTE: Final = 500


class History:
    """The lines of a run's history, oldest first.

    Args:
        run: The view of the run.
        window: Characters of the newest entries, with the counts of the oldest.
        older: Characters of the results of entries before the newest ones.
    """

    def __init__(self, run: RunContext, window: int, older: int) -> None:
        entries = run.trajectory
        limit = max(window // 2, LEAST)
        whole = [to_json(_fields(entry)) for entry in entries]
        lines = [line if len(line) <= limit else render_entry(entries[i], limit) for i, line in enumerate(whole)]
        summary = min(_SUMMARY, window // 3)
        start = _start([len(line) + 1 for line in lines], window - summary)
        self.seen: dict[str, Any] = {}
        """Data of the last shown event of each type."""
        self._whole: list[TrajectoryEntry] = []
        """Events that are shown unabridged."""
        sizes = [len(line) for line in whole[:start]]
        head = self._older(entries[:start], sizes, run.results, older, summary) if start else []
        for index in range(start, len(entries)):
            if (entry := entries[index]).kind == "event":
                self.seen[entry.type] = entry.data
                if len(whole[index]) <= limit:
                    self._whole.append(entry)
        self.text = "\n".join([*head, *lines[start:]])

    def has(self, trigger: TrajectoryEntry) -> bool:
        """True if an event is shown unabridged."""
        return any(_is_trigger(entry, trigger) for entry in self._whole)

    def _older(
        self,
        entries: Sequence[TrajectoryEntry],
        sizes: Sequence[int],
        results: Mapping[str, Any],
        room: int,
        summary: int,
    ) -> list[str]:
        """Counts of the entries, and the last event of each type that is a result."""
        room = min(room, sum(sizes) // 4)
        last = {entry.type: i for i, entry in enumerate(entries) if entry.kind == "event" and entry.type in results}
        newest = sorted(last.values())[-(room // (2 * LEAST)) :] if room >= 2 * LEAST else []
        each = fair_share([sizes[index] + 1 for index in newest], room) - 1 if newest else 0
        self.seen |= {entries[index].type: entries[index].data for index in newest}
        return [_summary(entries, sum(sizes), summary), *(render_entry(entries[index], each) for index in newest)]


def _start(sizes: Sequence[int], room: int) -> int:
    """The first entry that is shown as it is; it moves in steps, by number and by size."""
    start = max(len(sizes) - NEWEST, 0) // BLOCK * BLOCK
    left = room
    for index in range(start, len(sizes)):
        left -= sizes[index]
        if left < 0:
            while start < index and left < room // 2:
                left += sizes[start]
                start += 1
    return start


def render_entry(entry: TrajectoryEntry, limit: int) -> str:
    """One entry as a line of JSON; data that does not fit is abbreviated."""
    fields = _fields(entry)
    whole = to_json(fields)
    content = next((name for name in ("data", "action") if name in fields), None)
    if len(whole) <= limit or content is None:
        return whole if len(whole) <= limit else to_json_within(fields, limit)
    rest = to_json({name: value for name, value in fields.items() if name != content})
    room = limit - len(rest) - len(content) - 6
    if room < LEAST:
        return to_json_within(fields, limit)
    return f"{rest[:-1]}, {to_json(content)}: {to_json_within(fields[content], room)}}}"


def _fields(entry: TrajectoryEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {"turn": entry.revision} if entry.revision else {}
    if entry.kind == "event":
        if entry.time.timestamp():
            fields["time"] = entry.time.isoformat(timespec="seconds").replace("+00:00", "Z")
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


def _is_trigger(entry: TrajectoryEntry, trigger: TrajectoryEntry) -> bool:
    if entry.kind != trigger.kind or (trigger.note and trigger.note != entry.note):
        return False
    if entry is trigger or (entry.event_id and trigger.event_id):
        return entry is trigger or entry.event_id == trigger.event_id
    return (entry.revision, entry.type, entry.data) == (trigger.revision, trigger.type, trigger.data)


def _summary(entries: Sequence[TrajectoryEntry], size: int, limit: int) -> str:
    """Counts by type, the most frequent first, and the number of characters left out."""
    counts = Counter(
        entry.type or "an event" if entry.kind == "event" else f"decision {entry.type}" for entry in entries
    )
    what = "event" if all(entry.kind == "event" for entry in entries) else "event and decision"
    head = f"[{len(entries)} earlier {what}{'' if len(entries) == 1 else 's'}: "
    note = entries[0].note
    before = f"; {to_json(cut(note, limit // 4))}" if note else ""
    tail = f"; {size} characters left out{before}]"
    listed: list[str] = []
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    for index, (name, count) in enumerate(ranked):
        if len(head) + sum(len(each) + 2 for each in listed) + len(name) + len(tail) > limit - 40:
            rest = ranked[index:]
            listed.append(f"{sum(each[1] for each in rest)} of {len(rest)} other types")
            break
        listed.append(f"{count}× {name}")
    return f"{head}{', '.join(listed)}{tail}"
