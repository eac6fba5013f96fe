"""Contexts of handlers: the ports to events, plans, registry and models; the goal; the transition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from plancast.plan_tree import TOP, Place, read_deadline, read_place
from plancast_bus.events.envelope import EventEnvelope, EventTopic


class EventPort(Protocol):
    """``context.bus``: how handlers send events. Inside a turn they are staged until the turn is committed."""

    __slots__ = ()

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
        """Publish a request whose answer has the type ``response_event``; returns the request's id."""
        fields["response_event"] = response_event or None
        return await self.publish(event_type, data, topic=topic, correlation_id=correlation_id, **fields)

    async def respond(
        self,
        event_type: str,
        data: Any = None,
        correlation_id: str | None = None,
        *,
        topic: str = EventTopic.ACTION_RESULTS,
        **fields: Any,
    ) -> str:
        """Publish an answer; returns its id."""
        return await self.publish(event_type, data, topic=topic, correlation_id=correlation_id, **fields)

    async def announce(
        self, event_type: str, data: Any = None, *, topic: str = EventTopic.BUSINESS_FACTS, **fields: Any
    ) -> str:
        """Publish a fact, on the topic of business facts unless another one is given; returns its id."""
        return await self.publish(event_type, data, topic=topic, **fields)


class PlanMemory(Protocol):
    """``context.memory``: finds stored plans, and what plans of a session have shared."""

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

    async def session(self, session_id: str | None) -> Any:
        """The values that plans of the session have shared (``PlanContext.share``), by key, the newest last.

        Those of a plan are there once its final response can be seen. Only plans of the same tenant share a session.
        """
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

    async def deliberation(self, planner: Any, plan: Any) -> Any:
        """The :class:`~plancast.planner_turn.deliberation.Deliberation` of a planner that a handler calls, or None.

        Args:
            planner: The planner.
            plan: The plan that it is called for; None: the turn's own.
        """
        ...


class PlatformContext:
    """The ``context`` argument of handlers. ``turn`` is None outside a plan's turn."""

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
        self.bus: EventPort = bus
        self.memory: PlanMemory = memory
        self.registry: Any = registry
        self.toolkit: Any = toolkit
        self.reasoner: Any = reasoner
        self.turn: TurnPort | None = turn

    @property
    def read_only(self) -> bool:
        """True if plans can be read but not saved through this context."""
        return self.turn is None


_READ = ("metadata", "response_event", "session_id", "user_id", "tenant_id", "response_topic", "id", "trace_id")
"""Fields that a goal reads from its event, if present."""


@dataclass
class GoalContext:
    """A goal; the first argument of goal handlers."""

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
    """Id of the requesting plan, when the goal is a step of another plan."""
    reply_to: str | None = None
    """Correlation id for the final response, when not the goal's own."""
    notify: str | None = None
    """Address on which the client that submitted the goal waits."""
    place: Place = TOP
    """Place of its plan in a tree of plans."""
    deadline: float | None = None
    """Time by which its plan has to end, seconds since the epoch, UTC; None: no deadline."""
    _raw_event: Any = field(default=None, repr=False, compare=False)
    _context: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_event(cls, event: Any, context: Any) -> Self:
        """Read a goal from an event. Fields that the envelope lacks are read from its metadata."""
        fields = (
            event.__dict__ if type(event) is EventEnvelope else {name: getattr(event, name, None) for name in _READ}
        )
        metadata = fields["metadata"] if isinstance(fields["metadata"], dict) else {}

        def from_metadata(name: str) -> str | None:
            value = metadata.get(name)
            return value if isinstance(value, str) else None

        def read(name: str) -> str | None:
            value = fields[name]
            return value if isinstance(value, str) else from_metadata(name) if metadata else None

        parent = from_metadata("parent_plan_id")
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
            # Only a parent plan may redirect the response: others could make it look like the response of another plan.
            from_metadata("reply_to") if parent else None,
            from_metadata("notify"),
            read_place(metadata) if metadata else TOP,
            read_deadline(metadata) if metadata else None,
            event,
            context,
        )


@dataclass
class TransitionContext:
    """An event that moves a plan. Attributes of the event can be read directly: ``transition.data``."""

    event: Any
    plan: Any
    next_state: str | None = None
    """Target of the state machine's transition; None when the plan has no machine."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "event":
            raise AttributeError(name)
        return getattr(self.event, name)
