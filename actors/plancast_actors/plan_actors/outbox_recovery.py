"""Finds effects that were already sent, when the deduplication window of streams has passed.

A stream drops a repeated message id for `duplicate_window` seconds. Effects that are sent again later, because a plan
is activated after a long rest or NATS was away, are first looked for: in the stream, where a request stays until a
worker has replied, and among the replies that the plan has not taken yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from plancast.plan.context import PlanContext
from plancast.plan_store.lost_requests import replied_to
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.effects import Effect, Publish


async def unsent_effects(
    bus: Bus, plan: PlanContext | None, effects: Sequence[Effect]
) -> tuple[tuple[Effect, ...], dict[str, int]]:
    """Split effects into those to send, and the stream sequences of those that were sent, by message id.

    Effects other than events are idempotent. A request that a worker has taken and not replied to leaves no trace, and
    is sent again: the worker may see it twice.

    Raises:
        BusUnavailable: the streams cannot be read now.
    """
    sent: dict[str, int] = {}
    searched: set[tuple[str, str]] = set()
    for effect in effects:
        if isinstance(effect, Publish):
            address = bus.subjects.parse_event(effect.subject)
            place = (address.topic, address.correlation_id)
            if place not in searched:
                searched.add(place)
                held = await bus.stored_events(*place)
                sent |= {each.message_id: each.sequence for each in held if each.message_id is not None}
    # A worker replies before it acknowledges: a request that is gone was replied to, or never sent.
    missing = {each.message_id for each in effects if isinstance(each, Publish)} - set(sent)
    if plan is not None and missing & set(plan.requests):
        replies = await bus.stored_events(EventTopic.ACTION_RESULTS, plan.correlation_id)
        sent |= {parent: 0 for each in replies if (parent := replied_to(each, plan.correlation_id)) is not None}
    todo = tuple(each for each in effects if not isinstance(each, Publish) or each.message_id not in sent)
    return todo, sent
