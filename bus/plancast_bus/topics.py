"""Which stream takes which topic."""

from __future__ import annotations

from typing import Literal

from plancast_bus.events.envelope import EventTopic

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
"""The topics of each source: results and requests must be processed, facts are for whoever looks."""

WORK_QUEUES: tuple[Source, ...] = ("results", "requests", "timers")
"""The sources whose messages are gone once they are acknowledged."""

SOURCES: dict[str, Source] = {topic.value: source for source, topics in TOPICS.items() for topic in topics}
"""The source of each topic."""


def admitted_bytes(max_bytes: int) -> int:
    """Bytes in a stream up to which requests from outside are let in; -1 where it has no bound."""
    return max_bytes - max_bytes // 4 if max_bytes > 0 else -1


def stream_full_message(stream: str, how: str) -> str:
    """What is said to those who are refused."""
    return (
        f"the stream {stream} is full ({how}): it takes no more until what it holds is processed. See whether its "
        "consumers run, or raise max_stream_bytes or the server's storage limit."
    )


Source = Literal["results", "requests", "facts", "timers"]
"""What can be consumed: answers and signals for plans, requests (goals and tasks), facts, due timers."""
