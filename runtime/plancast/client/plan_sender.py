"""PlanSender: publishes events of people and controls for one plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from plancast.client.plan_lookup import PlanLookup
from plancast.client.results import PendingResult
from plancast.errors import InvalidAnswer, PlanFinished
from plancast.json_values.normalize import plain
from plancast.plan.status import PlanStatus
from plancast_bus.errors import AccessDenied
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.subjects import check_event_type

if TYPE_CHECKING:
    from plancast.plan_store.approvals import People


class PlanSender:
    """Events for one plan.

    Args:
        lookup: Finds the plan.
        pending: Its id, and the key of its checkpoints.
        publish: Publishes an event.
        people: Reads the events that people send, with their schemas.
    """

    def __init__(
        self,
        lookup: PlanLookup,
        pending: PendingResult,
        publish: Callable[[EventEnvelope], Awaitable[None]],
        people: Callable[[], Awaitable[People]],
    ) -> None:
        self._lookup = lookup
        self._pending = pending
        self._publish = publish
        self._people = people

    async def send(
        self,
        event_type: str,
        data: Any,
        user_id: str,
        event_id: str | None,
        request_id: str | None = None,
        *,
        is_signal: bool = False,
        also_finished: bool = False,
    ) -> tuple[EventEnvelope, Checkpoint | None]:
        """Publish an event for the plan; returns it with the checkpoint before it, None if there is none to read.

        Raises:
            PlanFinished: the plan is finished, and the event is not for finished plans, too.
            InvalidAnswer: a signal breaks the schema of its event, or is an answer in another name than the sender's.
            PlanNotFound: no plan has this id.
            BusUnavailable: the event may have been sent nevertheless.
        """
        check_event_type(event_type)
        try:
            checkpoint = await self._lookup.newest()
        except AccessDenied:
            if self._lookup.tenant_id is None:
                raise
            checkpoint = None  # this user may publish but not read; the plan's turn checks the event
        plan_id = self._pending.plan_id
        if not also_finished and checkpoint is not None and PlanStatus(checkpoint.summary.status).finished:
            raise PlanFinished(f"plan {plan_id} is {checkpoint.summary.status} and takes no {event_type}")
        said = {} if data is None else plain(data)
        if is_signal:
            await self._check(event_type, said, user_id)
        fields: dict[str, Any] = {"id": event_id} if event_id is not None else {}
        event = EventEnvelope(
            source="client",
            type=event_type,
            topic=EventTopic.PLAN_EVENTS,
            data=said,
            correlation_id=self._pending.key,
            tenant_id=self._lookup.tenant_id or None,
            session_id=checkpoint.summary.session_id or None if checkpoint is not None else None,
            user_id=user_id or None,
            parent_event_id=request_id,
            **fields,
        )
        await self._publish(event)
        return event, checkpoint

    async def _check(self, event_type: str, data: Any, user_id: str) -> None:
        """Check the data of an event that people send, as far as this user may know the event."""
        from plancast.plan_store.approvals import event_faults

        try:
            people = await self._people()
        except AccessDenied:
            return
        if faults := event_faults(people, event_type, data, user_id):
            raise InvalidAnswer(self._pending.plan_id, event_type, faults)


def checked_goal(plan_id: str, value: Any) -> dict[str, Any]:
    """The new data of a goal as JSON.

    Raises:
        TypeError: they are no mapping or pydantic model, or have no JSON form.
    """
    data = dict(value) if isinstance(value, Mapping) else value
    data = plain(data) if isinstance(data, (dict, BaseModel)) else None
    if not isinstance(data, dict):
        raise TypeError(
            f"plan {plan_id} cannot be redirected: goal_data must be a mapping or a pydantic model with "
            f"named fields, not {type(value).__name__}"
        )
    return data
