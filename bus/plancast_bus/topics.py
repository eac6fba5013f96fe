"""Which stream takes which topic."""

from __future__ import annotations

from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Source

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
