"""Reads committed plans from the checkpoints, outside their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from plancast.errors import ForeignPlan, GoalConflict
from plancast.replaced_names import missing
from plancast_bus.errors import AccessDenied, InvalidEnvelope
from plancast_bus.event_data import delivered_in_full
from plancast_bus.events.codec import decode, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, CheckpointStore
from plancast_bus.ports.sessions import Sessions, session_name
from plancast_bus.subjects import Subjects

if TYPE_CHECKING:
    from plancast.plan.context import PlanContext


async def find_checkpoint(checkpoints: CheckpointStore, name: str, *, folded: bool = False) -> Checkpoint | None:
    """Load the newest checkpoint of a plan by its id or by a correlation id of its events; None when unknown.

    Its values are in full, unless it is wanted ``folded``.

    Raises:
        BusUnavailable: the store cannot be reached.
    """
    checkpoint = await checkpoints.load(name, folded=folded)
    if checkpoint is not None:
        return checkpoint
    plan = await checkpoints.get_alias(name)
    return await checkpoints.load(plan, folded=folded) if plan is not None and plan != name else None


async def plan_fields(checkpoints: CheckpointStore, checkpoint: Checkpoint) -> dict[str, Any]:
    """The plan in a checkpoint as the dict that ``PlanContext.to_dict()`` returns."""
    from plancast.state_machine.machine import Machine

    fields: dict[str, Any] = unpack(checkpoint.state)
    digest = fields.pop("machine", None)
    encoded = await checkpoints.get_machine(digest) if digest else None
    states = Machine.decode(encoded).states if encoded is not None else {}
    fields["state_machine"] = {name: state.model_dump(mode="json") for name, state in states.items()}
    return fields


async def unbegun_plan(bus: Bus, correlation_id: str) -> PlanContext | None:
    """The pending plan of a goal whose first turn is not committed (it is queued, or waits for a model).

    It has the fields that the goal gives it, and no state machine. None when there is no such goal, or this login may
    not read goals.

    Raises:
        BusUnavailable: the stream of goals cannot be read.
    """
    try:
        stored = await bus.stored_events(EventTopic.ACTION_REQUESTS, correlation_id, limit=1)
    except AccessDenied:
        return None
    for delivery in stored:
        goal = _decode_goal(await delivered_in_full(bus, delivery), bus.subjects)
        from plancast.context import GoalContext
        from plancast.plan.context import PlanContext

        apps = await bus.registry.list("app")
        if not apps or any(goal.type in app.get("goals", ()) for app in apps.values()):  # else it is a task
            return await PlanContext.create_from_goal(GoalContext.from_event(goal, None), {})
    return None


async def check_repetition(bus: Bus, correlation_id: str, tenant_id: str, event_type: str, data: Any) -> None:
    """Check that a tenant has no plan under a correlation id that was begun with another goal, or with other data.

    A goal whose first turn is not committed counts as well. A login that may not read plans is not checked.

    Raises:
        GoalConflict: there is one.
        BusUnavailable: the store cannot be reached.
    """
    if await _is_other_goal(bus, correlation_id, tenant_id, event_type, data):
        raise GoalConflict(
            f"the correlation id {correlation_id[:200]} is that of a plan with another goal or other data: use another "
            "id, or reuse (--reuse, reuse=True) to have that plan"
        )


async def _is_other_goal(bus: Bus, correlation_id: str, tenant_id: str, event_type: str, data: Any) -> bool:
    try:
        checkpoint = await bus.checkpoints.load(correlation_id)
        if checkpoint is None:
            queued = await unbegun_plan(bus, correlation_id)
            if queued is None or queued.tenant_id != tenant_id:
                return False
            return (queued.goal_event, queued.goal_data) != (event_type, data)
        if checkpoint.summary.tenant_id != tenant_id:
            return False
        state = unpack(checkpoint.state)
        if (state.get("goal_event"), state.get("goal_data")) == (event_type, data):
            return False
        entries = await bus.checkpoints.history(correlation_id)  # the plan may have been redirected since
    except (AccessDenied, InvalidEnvelope):
        return False
    begun = (unpack(entries[0]).get("event") or {}) if entries else {}
    return (begun.get("type"), begun.get("data")) != (event_type, data)


def _decode_goal(delivery: Delivery, subjects: Subjects) -> EventEnvelope:
    address = subjects.parse_stored(delivery.subject)
    defaults = {
        "id": delivery.message_id or f"{delivery.stream}-{delivery.sequence}",
        "source": "unknown",
        "topic": address.topic,
        "type": address.event_type,
        "correlation_id": address.correlation_id,
    }
    return decode(delivery.payload, delivery.content_type, defaults=defaults)


class StoredPlans:
    """``context.memory`` over the checkpoints; read-only, since plans change only in their own turns.

    Args:
        checkpoints: The store.
        sessions: The store of what plans share; None: all sessions are empty.
        tenant_id: Only plans and sessions of this tenant are found; None: all plans, and sessions without a tenant.
    """

    __slots__ = ("_checkpoints", "_sessions", "_tenant_id")

    def __init__(
        self, checkpoints: CheckpointStore, sessions: Sessions | None = None, tenant_id: str | None = None
    ) -> None:
        self._checkpoints = checkpoints
        self._sessions = sessions
        self._tenant_id = tenant_id

    def __getattr__(self, name: str) -> NoReturn:
        raise missing("context.memory", name)

    def of_tenant(self, tenant_id: str) -> StoredPlans:
        """A view of one tenant's plans and sessions."""
        return StoredPlans(self._checkpoints, self._sessions, tenant_id)

    async def store_plan_context(self, plan_id: str, *args: Any, **fields: Any) -> None:
        """Refuse to store.

        Raises:
            ForeignPlan: always; only its own turn writes a plan.
        """
        raise ForeignPlan(f"plan {plan_id} can only be changed in a turn of its own: send it an event instead")

    async def get_plan_context(self, plan_id: str) -> dict[str, Any] | None:
        """The plan as the dict that ``PlanContext.to_dict()`` returns; None when there is none."""
        checkpoint = await find_checkpoint(self._checkpoints, plan_id)
        if checkpoint is None or self._tenant_id not in (None, checkpoint.summary.tenant_id):
            return None
        return await plan_fields(self._checkpoints, checkpoint)

    async def get_plan_by_correlation(self, correlation_id: str) -> dict[str, Any] | None:
        """The plan that events with this correlation id belong to, as a dict; None when there is none."""
        return await self.get_plan_context(correlation_id)

    async def session(self, session_id: str | None) -> dict[str, Any]:
        """The values that plans of a session have shared, by key, the newest last; empty without a session.

        Raises:
            BusUnavailable: the store cannot be reached.
        """
        if self._sessions is None or not session_id:
            return {}
        return await self._sessions.read(session_name(self._tenant_id or "", session_id))
