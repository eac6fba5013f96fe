"""LiveEvents: publishes the events of task handlers at once."""

from __future__ import annotations

from typing import Any, NoReturn

from plancast.context import EventPort
from plancast.json_values.normalize import plain
from plancast.plan_tree import passed_on
from plancast.replaced_names import missing
from plancast.telemetry.trace_scope import current_trace
from plancast_bus.events.envelope import EventEnvelope, EventTopic, derived_id
from plancast_bus.events.trace_context import trace_id_of
from plancast_bus.ports.bus import Bus


class LiveEvents(EventPort):
    """Publishes events of a task's handler.

    Events inherit correlation id, tenant, session, user, plan and trace of their cause. Their ids are the cause's id
    with a number: a task that is executed again publishes the same ids, which streams drop as duplicates.
    """

    __slots__ = ("_bus", "_cause", "_count", "_source")

    def __init__(self, bus: Bus, cause: EventEnvelope, source: str) -> None:
        self._bus = bus
        self._cause = cause
        self._source = source
        self._count = 0

    def __getattr__(self, name: str) -> NoReturn:
        raise missing("context.bus", name)

    async def publish(
        self,
        event_type: str,
        data: Any = None,
        *,
        topic: str = EventTopic.BUSINESS_FACTS,
        correlation_id: str | None = None,
        **fields: Any,
    ) -> str:
        """Publish an event, wait until it is durable, and return its id.

        Raises:
            BusUnavailable, PublishRefused, PayloadTooLarge, InvalidSubject: it was not published.
            TypeError, ValueError: the data is no JSON, or a field is wrong.
        """
        cause = self._cause
        self._count += 1
        given = {key: value for key, value in fields.items() if value is not None}
        event = EventEnvelope.model_validate(
            {
                "id": derived_id(cause.id, str(self._count)),
                "source": self._source,
                "correlation_id": correlation_id or cause.correlation_id,
                "tenant_id": cause.tenant_id,
                "user_id": cause.user_id,
                "session_id": cause.session_id,
                "plan_id": cause.plan_id,
                "goal_id": cause.goal_id,
                "trace_id": cause.trace_id,
                "parent_event_id": cause.id,
                **given,
                "type": event_type,
                "topic": topic,
                "data": {} if data is None else plain(data),
            }
        )
        event.metadata |= passed_on(cause.metadata)
        trace = current_trace()
        if trace:
            event.trace_id = trace_id_of(trace)
        await self._bus.publish(event, trace=trace)
        return event.id
