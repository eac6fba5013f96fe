"""Chooses which events of a backup belong to its checkpoints: they were copied at somewhat different times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plancast.plan.event_fields import answered_request
from plancast.plan.requests import turn_of_request
from plancast.plan_store.store import find_checkpoint
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import decode, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.nats_binding import read_message
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

_ANSWER = "answer:"
"""Prefix of the ids of workers' answers, before that of the request."""


class RestoredEvents:
    """The events that plans still need, as they have been restored.

    Left out is what a turn has sent that is not restored, since the turn will be repeated and may send something else
    under the same id, and the answers to it; and requests whose answer was processed already.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def is_wanted(self, headers: Mapping[str, str], payload: bytes) -> bool:
        """Return whether an event has to be published again. What is no event is."""
        message = read_message(headers, payload)
        defaults = dict.fromkeys(("id", "source", "type", "correlation_id"), "unknown")
        try:
            event = decode(
                message.payload, message.content_type, defaults=defaults | {"topic": EventTopic.ACTION_RESULTS}
            )
        except InvalidEnvelope:
            return True
        for event_id in (event.id, answered_request(event)):
            sender = turn_of_request((event_id or "").removeprefix(_ANSWER))
            if sender is None:
                continue
            checkpoint = await self._checkpoint(sender[0])
            if checkpoint is None or checkpoint.revision < sender[1]:
                return False
            if event_id == event.id and _is_settled(event, checkpoint):
                return False
        return True

    async def _checkpoint(self, plan_id: str) -> Checkpoint | None:
        try:
            return await find_checkpoint(self._bus.checkpoints, plan_id, folded=True)
        except (InvalidEnvelope, InvalidSubject):
            return None


def _is_settled(event: EventEnvelope, checkpoint: Checkpoint) -> bool:
    """Return whether a plan that has sent a request waits for its answer no longer."""
    if event.topic != EventTopic.ACTION_REQUESTS or not event.response_event:
        return False
    state: dict[str, Any] = unpack(checkpoint.state)
    return not state.get("rollback") and event.id not in (state.get("requests") or {})
