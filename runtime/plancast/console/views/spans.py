"""Places a plan on a time axis: its turns, states, pauses, tasks, child plans and model calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from plancast.console.schemas.plans import Span, Spans
from plancast.console.views.plans import moved
from plancast.plan.event_fields import answered_request
from plancast.plan.status import PlanStatus
from plancast.plan_store import timeline
from plancast.plan_store.approvals import requests_of

MAX_SPANS = 500
"""Maximum number of spans; the oldest are left out."""
Fields = Mapping[str, Any]


def spans_of(state: Fields, history: Sequence[Fields], children: Collection[str], now: float) -> Spans:
    """The spans of a plan, oldest first.

    Args:
        state: The plan.
        history: Its turns, oldest first.
        children: Ids of its child plans.
        now: Seconds since the epoch.
    """
    if not history:
        return Spans(items=[], start=now, end=now)  # type: ignore[arg-type]
    end = _ended(history[-1]) if PlanStatus(state["status"]).finished else None
    found = [
        *_turns(history),
        *_states(history, end),
        *_pauses(history, end),
        *_requests(state, history, children, end),
    ]
    found.sort(key=lambda span: span.start)
    shown = found[-MAX_SPANS:]
    last = max([now if end is None else end, *(span.end.timestamp() for span in found if span.end is not None)])
    return Spans(items=shown, start=shown[0].start, end=last, more=len(found) - len(shown))  # type: ignore[arg-type]


def _span(kind: str, label: str, start: float, end: float | None, entry: Fields, **more: Any) -> Span:
    return Span.model_validate(
        {"kind": kind, "label": label, "start": start, "end": end, "revision": entry["revision"], **more}
    )


def _ended(turn: Fields) -> float:
    """When a turn was over: its decisions were taken, and its requests are sent."""
    return float(turn["time"]) + sum(float(taken.get("seconds") or 0.0) for taken in turn.get("decisions") or ())


def _turns(history: Sequence[Fields]) -> Iterator[Span]:
    """Turns; within each the calls of models, one after the other."""
    for entry in history:
        now = float(entry["time"])
        for taken in entry.get("decisions") or ():
            seconds = float(taken.get("seconds") or 0.0)
            if calls := taken.get("calls"):
                yield _span("model", str(calls[-1]["model"]), now, now + seconds, entry)
            now += seconds
        failed = "failed" if entry.get("status") == PlanStatus.FAILED else ""
        yield _span("turn", timeline.event_type(entry), float(entry["time"]), _ended(entry), entry, outcome=failed)


def _states(history: Sequence[Fields], end: float | None) -> Iterator[Span]:
    """The times that the plan spent in each state; in none as long as only decisions move it."""
    moves = [entry for entry in history if moved(entry)]
    for entry, left in zip(moves, [*map(_ended, moves[1:]), end], strict=False):
        if left is None or left > _ended(entry):
            yield _span("state", str(entry["state"]), _ended(entry), left, entry)


def _pauses(history: Sequence[Fields], end: float | None) -> Iterator[Span]:
    begun: Fields | None = None
    for entry in history:
        paused = entry.get("status") == PlanStatus.PAUSED
        if paused and begun is None:
            begun = entry
        elif not paused and begun is not None:
            yield _pause(begun, _ended(entry))
            begun = None
    if begun is not None:
        yield _pause(begun, end)


def _pause(begun: Fields, end: float | None) -> Span:
    return _span("pause", str(begun.get("pause_reason") or "paused"), _ended(begun), end, begun)


def _requests(state: Fields, history: Sequence[Fields], children: Collection[str], end: float | None) -> Iterator[Span]:
    """Tasks and child plans, from the turn that sent the request to the one that took its answer or timeout."""
    answers: dict[str | None, Fields] = {}
    for entry in history:
        answers.setdefault(answered_request(entry.get("event") or {}), entry)
    still_open = requests_of(state)
    for entry in history:
        for label, name in entry.get("sent") or ():
            answer = answers.get(name)
            if answer is None and name not in still_open:
                continue  # an event that needs no answer
            child = name in children
            left, outcome = (end, "") if answer is None else (float(answer["time"]), _outcome(answer))
            more = {"outcome": outcome, "plan_id": name if child else None}
            yield _span("child" if child else "task", str(label), _ended(entry), left, entry, **more)


def _outcome(answer: Fields) -> Literal["", "failed", "timed out"]:
    if answer.get("timer"):
        return "timed out"
    data = answer["event"].get("data")
    failed = isinstance(data, Mapping) and (
        data.get("success") is False or data.get("status") in ("failed", "cancelled")
    )
    return "failed" if failed else ""
