"""``context.bus`` inside a turn: events are staged, and sent after the turn is committed."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from plancast.effects.effect import ATTEMPT_OF
from plancast.replaced_names import missing
from plancast_bus.events.envelope import EventTopic

REQUESTS = EventTopic.ACTION_REQUESTS


class Stage(Protocol):
    """Stages events as effects (:class:`plancast.turn_record.outbox.Outbox`); each method returns the event's id."""

    @property
    def sent(self) -> list[list[str]]: ...

    def send(self, fields: dict[str, Any]) -> str: ...

    @property
    def staged_bytes(self) -> int: ...

    def next_id(self) -> str: ...

    def request(self, fields: dict[str, Any]) -> str: ...

    def respond(self, fields: dict[str, Any]) -> str: ...


class StagedEvents:
    """Stages the events that handlers send; implements :class:`plancast.context.EventPort`."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Stage) -> None:
        self._outbox = outbox

    def __getattr__(self, name: str) -> NoReturn:
        raise missing("context.bus", name)

    @property
    def sent(self) -> list[list[str]]:
        """Type and id of every event that the turn has staged."""
        return self._outbox.sent

    @property
    def staged_bytes(self) -> int:
        """Bytes of these events."""
        return self._outbox.staged_bytes

    def next_id(self) -> str:
        """Allocate the id of the next event, for a request that is not sent."""
        return self._outbox.next_id()

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
        event = _fields(event_type, data, topic, correlation_id, fields)
        return self._outbox.request(event) if fields.get("response_event") else self._outbox.send(event)

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

    def stage_request(
        self, event_type: str, data: Any, response_event: str, correlation_id: str, first: str = ""
    ) -> str:
        """Stage the request of a state's action without a coroutine; returns its id.

        ``first``: id of the first request for the same task, which its effect is known by; empty for that one.
        """
        fields = {
            "response_event": response_event,
            "type": event_type,
            "topic": REQUESTS,
            "data": {} if data is None else data,
            "correlation_id": correlation_id,
        }
        if first:
            fields["metadata"] = {ATTEMPT_OF: first}
        return self._outbox.request(fields)

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

    async def announce(
        self, event_type: str, data: Any = None, *, topic: str = EventTopic.BUSINESS_FACTS, **fields: Any
    ) -> str:
        """Stage a fact; returns its id."""
        correlation_id = fields.pop("correlation_id", None)
        return self._outbox.send(_fields(event_type, data, topic, correlation_id, fields))


def _fields(
    event_type: str, data: Any, topic: str, correlation_id: str | None, fields: dict[str, Any]
) -> dict[str, Any]:
    event = {key: value for key, value in fields.items() if value is not None}
    event |= {"type": event_type, "topic": topic, "data": {} if data is None else data}
    if correlation_id is not None:
        event["correlation_id"] = correlation_id
    return event
