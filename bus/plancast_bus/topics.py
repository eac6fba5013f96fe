"""Sources, the topics of each, and the part of a bounded stream that outside requests may fill."""

from __future__ import annotations

from typing import Literal

from plancast_bus.events.envelope import EventTopic

Source = Literal["results", "requests", "facts", "timers"]
"""A kind of input to consume: responses and signals for plans, requests (goals and tasks), facts, due timers."""

TOPICS: dict[Source, tuple[EventTopic, ...]] = {
    "results": (EventTopic.ACTION_RESULTS, EventTopic.PLAN_EVENTS),
    "requests": (EventTopic.ACTION_REQUESTS,),
    "facts": (
        EventTopic.BUSINESS_FACTS,
        EventTopic.BILLING_EVENTS,
        EventTopic.NOTIFICATION_EVENTS,
        EventTopic.SYSTEM_EVENTS,
        EventTopic.TASK_EVENTS,
    ),
}
"""Topics of each source. Results and requests must be processed; facts are optional reading."""

WORK_QUEUES: tuple[Source, ...] = ("results", "requests", "timers")
"""Sources whose messages are removed once acknowledged."""

SOURCES: dict[str, Source] = {topic.value: source for source, topics in TOPICS.items() for topic in topics}
"""Source of each topic."""


def admitted_bytes(max_bytes: int) -> int:
    """Bytes up to which a stream admits requests from outside: three quarters of its bound; -1 when it is unbounded."""
    return max_bytes - max_bytes // 4 if max_bytes > 0 else -1


def volume_full_message(held: int, bound: int) -> str:
    """The error text for a publisher of a goal who is refused since the volume is nearly full."""
    return (
        f"the streams take no new goals: they use {held:,} of the {bound:,} bytes of their volume (volume_bytes), and "
        "the last quarter is for plans that have begun. Wait until finished plans expire, shorten "
        "plans.retention_seconds, or enlarge the volume."
    )


def stream_full_message(stream: str, limit: str) -> str:
    """The error text for a publisher refused by a full stream."""
    return (
        f"the stream {stream} is full ({limit}): it takes no more until its messages are processed. Check that its "
        "consumers run, or raise max_stream_bytes or the server's storage limit."
    )
