"""``context.bus`` inside a turn: events are staged, and sent after the turn is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plancast_bus.events.envelope import EventTopic

if TYPE_CHECKING:
    from plancast.turn.outbox import Outbox

REQUESTS = EventTopic.ACTION_REQUESTS


class StagedEvents:
    """Stages what handlers send; see :class:`plancast.context.EventPort`."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def publish(
        self,
        event_type: str,
        data: Any = None,
        *,
        topic: str = EventTopic.BUSINESS_FACTS,
        correlation_id: str | None = None,
        **fields: Any,
    ) -> str:
        """Stage an event; returns its id. One that names a ``response_event`` is a request."""
        said = _fields(event_type, data, topic, correlation_id, fields)
        return self._outbox.request(said) if fields.get("response_event") else self._outbox.send(said)

    async def request(
        self,
        event_type: str,
        data: Any = None,
        response_event: str = "",
        *,
        correlation_id: str | None = None,
        topic: str = EventTopic.ACTION_REQUESTS,
        **fields: Any,
    ) -> str:
        """Stage a request; returns its id."""
        fields["response_event"] = response_event
        return self._outbox.request(_fields(event_type, data, topic, correlation_id, fields))

    def ask(self, event_type: str, data: Any, response_event: str, correlation_id: str) -> str:
        """Stage the request of a state's action as :meth:`request` does, but at once; returns its id."""
        return self._outbox.request(
            {
                "response_event": response_event,
                "type": event_type,
                "topic": REQUESTS,
                "data": {} if data is None else data,
                "correlation_id": correlation_id,
            }
        )

    async def respond(
        self,
        event_type: str,
        data: Any = None,
        correlation_id: str | None = None,
        *,
        topic: str = EventTopic.ACTION_RESULTS,
        **fields: Any,
    ) -> str:
        """Stage an answer; returns its id."""
        return self._outbox.respond(_fields(event_type, data, topic, correlation_id, fields))

    async def announce(self, event_type: str, data: Any = None, **fields: Any) -> str:
        """Stage a business fact; returns its id."""
        correlation_id = fields.pop("correlation_id", None)
        return self._outbox.send(_fields(event_type, data, EventTopic.BUSINESS_FACTS, correlation_id, fields))


def _fields(
    event_type: str, data: Any, topic: str, correlation_id: str | None, fields: dict[str, Any]
) -> dict[str, Any]:
    said = {key: value for key, value in fields.items() if value is not None}
    said |= {"type": event_type, "topic": topic, "data": {} if data is None else data}
    if correlation_id is not None:
        said["correlation_id"] = correlation_id
    return said
