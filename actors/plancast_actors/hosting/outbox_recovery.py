"""What of a turn's effects is still to be sent, when streams no longer know repetitions by themselves.

A stream drops a repeated message id for `duplicate_window` seconds. Effects that are sent again later than that,
because a plan comes back after a long rest or NATS was away for long, are looked for first: in the stream, where a
request stays until a worker has answered it, and among the answers that the plan has not taken yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from plancast.plan.context import PlanContext
from plancast.plan.event_fields import answered_request
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.ports.effects import Effect, Publish


async def still_unsent(
    bus: Bus, plan: PlanContext | None, effects: Sequence[Effect]
) -> tuple[tuple[Effect, ...], dict[str, int]]:
    """The effects that are still to be sent; and those that are out, as their place in the stream by message id.

    Effects other than events can be repeated at any time. A request without an answer leaves no trace once it is
    taken, and is sent again: its worker may see it twice.

    Raises:
        BusUnavailable: the streams cannot be read now.
    """
    sent: dict[str, int] = {}
    looked: set[tuple[str, str]] = set()
    for effect in effects:
        if isinstance(effect, Publish):
            address = bus.subjects.parse_event(effect.subject)
            place = (address.topic, address.correlation_id)
            if place not in looked:
                looked.add(place)
                held = await bus.stored_events(*place)
                sent |= {each.message_id: each.sequence for each in held if each.message_id is not None}
    # A worker answers before it acknowledges: a request that is gone was answered, or never sent.
    asked = {each.message_id for each in effects if isinstance(each, Publish)} - set(sent)
    if plan is not None and asked & set(plan.requests):
        answers = await bus.stored_events(EventTopic.ACTION_RESULTS, plan.correlation_id)
        sent |= {parent: 0 for each in answers if (parent := _answered(each, plan.correlation_id)) is not None}
    todo = tuple(each for each in effects if not isinstance(each, Publish) or each.message_id not in sent)
    return todo, sent


def _answered(stored: Delivery, correlation_id: str) -> str | None:
    defaults = {
        "id": "unknown",
        "source": "unknown",
        "type": "unknown",
        "topic": str(EventTopic.ACTION_RESULTS),
        "correlation_id": correlation_id,
    }
    try:
        return answered_request(decode(stored.payload, stored.content_type, defaults=defaults))
    except InvalidEnvelope:
        return None
