"""Finds open requests that nothing will answer: they are in no stream, and no answer to them is on its way."""

from __future__ import annotations

from plancast.plan.context import PlanContext
from plancast.plan.effects.entries import waits_for_effects
from plancast.plan.event_fields import answered_request
from plancast.plan.requests import WAIT, Request
from plancast.plan.status import PlanStatus
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import decode
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.subjects import message_id_of


async def lost_requests(bus: Bus, plan: PlanContext) -> list[str]:
    """Return the ids of the plan's open requests without a timer that nothing has.

    A worker answers before it acknowledges, so one that is busy has its request in the stream. A plan that has gone on
    meanwhile may have had its answer: compare the version of its checkpoint afterwards.

    Raises:
        AccessDenied: this login may not read the streams of events.
        BusUnavailable: the streams cannot be read now.
    """
    if plan.status.finished or waits_for_effects(plan):
        return []
    kept = {answered_request(fields) for fields in plan.kept}
    return [
        request_id
        for request_id, request in plan.requests.items()
        if request.event_type != WAIT
        and request.due is None
        and request_id not in kept
        and await _is_lost(bus, plan, request_id, request)
    ]


async def _is_lost(bus: Bus, plan: PlanContext, request_id: str, request: Request) -> bool:
    sent_under = request_id if request.child else request.alias or plan.correlation_id
    held = await bus.stored_events(EventTopic.ACTION_REQUESTS, sent_under)
    if any(each.message_id == message_id_of(request_id) for each in held):
        return False
    if request.child:
        child = await bus.checkpoints.load(request_id, folded=True)
        if child is not None and not PlanStatus(child.summary.status).finished:
            return False
    # Looked for last: a request is gone only after its answer is stored.
    for correlation_id in dict.fromkeys((plan.correlation_id, request.alias or plan.correlation_id, plan.plan_id)):
        answers = await bus.stored_events(EventTopic.ACTION_RESULTS, correlation_id)
        if any(replied_to(each, correlation_id) == request_id for each in answers):
            return False
    return True


def replied_to(stored: Delivery, correlation_id: str) -> str | None:
    """Return the id of the request that a stored event answers; None for no answer."""
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
