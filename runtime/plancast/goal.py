"""GoalContext and TransitionContext: what planners' handlers are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from plancast.plan.tree import TOP, Place, read_place
from plancast_bus.events.envelope import EventEnvelope

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
