"""Reads fields of event-like objects (envelopes, stored dicts, doubles), and texts of errors."""

from __future__ import annotations

from typing import Any

from plancast.telemetry.redaction import redact
from plancast_bus.events.envelope import EventEnvelope, EventTopic

MAX_ERROR = 2_000
"""Longest error text of a plan, in characters."""
_FACTS = frozenset(
    (
        EventTopic.BUSINESS_FACTS,
        EventTopic.BILLING_EVENTS,
        EventTopic.NOTIFICATION_EVENTS,
        EventTopic.SYSTEM_EVENTS,
        EventTopic.TASK_EVENTS,
    )
)


def event_type_of(event: Any) -> str:
    """The type of an event."""
    if type(event) is EventEnvelope:
        return event.type
    if isinstance(event, dict):
        return str(event.get("type") or event.get("event_type"))
    return str(event.event_type)


def event_data(event: Any) -> Any:
    """The data of an event; ``{}`` when it is not a JSON value."""
    data = event.get("data") if isinstance(event, dict) else getattr(event, "data", None)
    return data if data is None or isinstance(data, (dict, list, str, int, float, bool)) else {}


def answered_request(event: Any) -> str | None:
    """Id of the request that an event answers; None for facts, whose parent is only their cause."""
    if type(event) is EventEnvelope:
        return None if event.topic in _FACTS else event.parent_event_id
    if _event_topic(event) in _FACTS:
        return None
    parent = event.get("parent_event_id") if isinstance(event, dict) else getattr(event, "parent_event_id", None)
    return parent if isinstance(parent, str) else None


def is_fact(event: Any) -> bool:
    """True if an event is on a topic of facts, which answer nothing."""
    return _event_topic(event) in _FACTS


def _event_topic(event: Any) -> str:
    topic = event.get("topic") if isinstance(event, dict) else getattr(event, "topic", "")
    return topic if isinstance(topic, str) else ""


def event_view(event: Any) -> dict[str, Any]:
    """The root ``event`` of conditions."""
    return {"type": event_type_of(event), "data": event_data(event), "topic": _event_topic(event)}


def words_of(error: Any) -> str:
    """The text of an error, also when its ``__str__`` fails."""
    try:
        return str(error)
    except BaseException:  # such as a panic of an extension module
        return "its text cannot be read"


def error_text(error: Any) -> str:
    """The text of an error for a plan and its response: without credentials, at most ``MAX_ERROR`` characters."""
    text = redact(words_of(error).encode("utf-8", "replace").decode())
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 1]}…"
