"""What handlers are given to talk to the world: events, plans, registrations, models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from plancast.plan_tree import TOP, Place, read_place
from plancast_bus.events.envelope import EventEnvelope, EventTopic


class EventPort(Protocol):
    """``context.bus``: how handlers send events. Inside a turn they are staged until the turn is committed."""

    async def publish(
        self,
        event_type: str,
        data: Any = None,
        *,
        topic: str = EventTopic.BUSINESS_FACTS,
        correlation_id: str | None = None,
        **fields: Any,
    ) -> str:
        """Publish an event; returns its id. ``fields`` are further fields of the envelope."""
        ...

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
        """Ask for something that is answered with ``response_event``; returns the request's id."""
        ...

    async def respond(
        self,
        event_type: str,
        data: Any = None,
        correlation_id: str | None = None,
        *,
        topic: str = EventTopic.ACTION_RESULTS,
        **fields: Any,
    ) -> str:
        """Answer with an event; returns its id."""
        ...

    async def announce(self, event_type: str, data: Any = None, **fields: Any) -> str:
        """Publish a business fact; returns its id."""
        ...


class PlanMemory(Protocol):
    """``context.memory``: where plans are looked up."""

    async def store_plan_context(
        self,
        plan_id: str,
        session_id: str | None,
        goal_event: str,
        goal_data: dict[str, Any],
        response_event: str | None = None,
        state: dict[str, Any] | None = None,
        current_state: str | None = None,
        correlation_ids: list[str] | None = None,
    ) -> Any: ...

    async def get_plan_context(self, plan_id: str) -> Any:
        """The plan's fields as a dict, or None."""
        ...

    async def get_plan_by_correlation(self, correlation_id: str) -> Any:
        """The fields of the plan that events with this correlation id belong to, or None."""
        ...


class TurnPort(Protocol):
    """The turn that a context belongs to."""

    event: Any
    plan: Any

    def adopt(self, plan: Any) -> None:
        """Take a plan as the turn's own.

        Raises:
            ForeignPlan: the turn has another plan.
        """
        ...


class PlatformContext:
    """What handlers are given. ``turn`` is None outside a plan's turn."""

    __slots__ = ("bus", "memory", "reasoner", "registry", "toolkit", "turn")

    def __init__(
        self,
        bus: EventPort,
        memory: PlanMemory,
        registry: Any = None,
        toolkit: Any = None,
        reasoner: Any = None,
        turn: TurnPort | None = None,
    ) -> None:
        self.bus = bus
        self.memory = memory
        self.registry = registry
        self.toolkit = toolkit
        self.reasoner = reasoner
        self.turn = turn

    @property
    def read_only(self) -> bool:
        """Whether plans can be looked at but not saved through this context."""
        return self.turn is None


_READ = ("metadata", "response_event", "session_id", "user_id", "tenant_id", "response_topic", "id", "trace_id")
"""What a goal takes from its event, where the event has it."""


@dataclass
class GoalContext:
    """The goal that a planner's handler is to make a plan for."""

    event_type: str
    data: dict[str, Any]
    correlation_id: str
    response_event: str = ""
    """Event type that the requester wants the final response to have; may be empty."""
    session_id: str | None = None
    user_id: str = ""
    tenant_id: str = ""
    response_topic: str | None = None
    event_id: str | None = None
    trace_id: str | None = None
    parent_plan_id: str | None = None
    """The plan that asked, when the goal is a step of another plan."""
    reply_to: str | None = None
    """Correlation id for the final response, when not the goal's own."""
    notify: str | None = None
    """Where the client waits that submitted the goal."""
    place: Place = TOP
    """Where its plan stands in a tree of plans."""
    _raw_event: Any = field(default=None, repr=False, compare=False)
    _context: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_event(cls, event: Any, context: Any) -> Self:
        """The goal in an event. Fields that the envelope lacks are looked for in its metadata."""
        fields = (
            event.__dict__ if type(event) is EventEnvelope else {name: getattr(event, name, None) for name in _READ}
        )
        metadata = fields["metadata"] if isinstance(fields["metadata"], dict) else {}

        def said(name: str) -> str | None:
            value = metadata.get(name)
            return value if isinstance(value, str) else None

        def read(name: str) -> str | None:
            value = fields[name]
            return value if isinstance(value, str) else said(name) if metadata else None

        parent = said("parent_plan_id")
        return cls(  # by place: one in every turn that begins a plan
            event.event_type,
            event.data if isinstance(event.data, dict) else {} if event.data is None else {"data": event.data},
            event.correlation_id,
            read("response_event") or "",
            read("session_id"),
            read("user_id") or "",
            read("tenant_id") or "",
            read("response_topic"),
            read("id"),
            read("trace_id"),
            parent,
            # A plan may have its child's response come to it; nobody else chooses whose response it looks like.
            said("reply_to") if parent else None,
            said("notify"),
            read_place(metadata) if metadata else TOP,
            event,
            context,
        )


@dataclass
class TransitionContext:
    """An event that moves a plan. It reads as the event too: ``transition.data`` is ``transition.event.data``."""

    event: Any
    plan: Any
    next_state: str | None = None
    """Where the state machine would go; None when it has no say."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "event":
            raise AttributeError(name)
        return getattr(self.event, name)
