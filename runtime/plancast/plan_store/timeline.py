"""Reads a plan's timeline: states entered, control events, and open requests with their age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plancast.plan.control_events import CANCEL, INJECT, PAUSE, REDIRECT, REJECT, RESOLVE_EFFECT, RESUME
from plancast.plan.requests import Request

_VALUE_KEYS = {
    CANCEL: "reason",
    PAUSE: "reason",
    REJECT: "reason",
    RESUME: "input",
    REDIRECT: "goal_data",
    INJECT: "context",
    RESOLVE_EFFECT: "outcome",
}
"""Key of each control event's value in its data."""


@dataclass(frozen=True)
class Step:
    """A state that a plan entered."""

    state: str
    came_from: str
    """The state before; empty for the first."""
    event: str
    """The event that led to it."""
    time: float
    """Seconds since the epoch, UTC."""


@dataclass(frozen=True)
class Waiting:
    """An open request."""

    request_id: str
    event_type: str
    response_event: str
    state: str | None
    attempt: int
    child: bool
    asked_at: float | None
    """Seconds since the epoch, UTC; None when the timeline does not show it."""
    due: float | None
    asking_again: bool


@dataclass(frozen=True)
class Control:
    """A control event that a plan has handled."""

    event: str
    said: Any
    """Its reason, input, goal data or context; None when it has none."""
    time: float
    """Time of its turn, seconds since the epoch, UTC."""


def steps(history: Iterable[Mapping[str, Any]]) -> list[Step]:
    """The states entered, in order."""
    way: list[Step] = []
    for entry in history:
        before = way[-1].state if way else ""
        path = list(entry.get("path") or ())
        if not path and entry.get("state") not in ("", before, entry.get("from")):
            path = [entry["state"]]  # assigned by a handler
        for state in path:
            way.append(Step(state, way[-1].state if way else "", event_type(entry), float(entry["time"])))
    return way


def controls(history: Iterable[Mapping[str, Any]]) -> list[Control]:
    """The control events of a timeline, oldest first."""
    return [each for each in map(control, history) if each is not None]


def control(entry: Mapping[str, Any]) -> Control | None:
    """The control event of an entry; None for other events."""
    kind = event_type(entry)
    if kind not in _VALUE_KEYS:
        return None
    data = entry["event"].get("data")
    value = data.get(_VALUE_KEYS[kind]) if isinstance(data, Mapping) else None
    return Control(kind, value, float(entry["time"]))


def waits(state: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> list[Waiting]:
    """The open requests of a plan, oldest first."""
    sent_at = {sent[1]: float(entry["time"]) for entry in history for sent in entry.get("sent") or ()}
    return [
        Waiting(
            request_id,
            request.event_type,
            request.response_event,
            request.state,
            request.attempt,
            request.child,
            sent_at.get(request_id),
            request.due,
            request.asking_again,
        )
        for request_id, request in ((key, Request.read(value)) for key, value in (state.get("requests") or {}).items())
    ]


def listens_for(state: Mapping[str, Any]) -> list[str]:
    """The event types that can move a plan out of its current state."""
    current = (state.get("state_machine") or {}).get(state.get("current_state")) or {}
    return list(dict.fromkeys(transition["on_event"] for transition in current.get("transitions") or ()))


def confidence(taken: Mapping[str, Any]) -> tuple[bool | None, float | None]:
    """Confidence of a recorded decision, 0 to 1, and before it: was it given.

    Earlier versions recorded an omitted confidence as 1, so that of theirs a 1 tells nothing: (None, None).
    """
    if "confidence" in taken:
        return taken["confidence"] is not None, taken["confidence"]
    earlier = taken["decision"].get("confidence", 1.0)
    return (None, None) if earlier == 1 else (True, earlier)


def event_type(entry: Mapping[str, Any]) -> str:
    """The type of the event of an entry."""
    return str((entry.get("event") or {}).get("type", ""))
