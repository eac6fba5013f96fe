"""GoalContext and TransitionContext: what planners' handlers are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


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
    _raw_event: Any = field(default=None, repr=False, compare=False)
    _context: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_event(cls, event: Any, context: Any) -> Self:
        """The goal in an event. Fields that the envelope lacks are looked for in its metadata."""
        metadata = event.metadata if isinstance(getattr(event, "metadata", None), dict) else {}

        def said(name: str) -> str | None:
            value = metadata.get(name)
            return value if isinstance(value, str) else None

        def read(name: str) -> str | None:
            value = getattr(event, name, None)
            return value if isinstance(value, str) else said(name)

        return cls(
            event_type=event.event_type,
            data=event.data if isinstance(event.data, dict) else {} if event.data is None else {"data": event.data},
            correlation_id=event.correlation_id,
            response_event=read("response_event") or "",
            session_id=read("session_id"),
            user_id=read("user_id") or "",
            tenant_id=read("tenant_id") or "",
            response_topic=read("response_topic"),
            event_id=read("id"),
            trace_id=read("trace_id"),
            parent_plan_id=said("parent_plan_id"),
            # A plan may have its child's response come to it; nobody else chooses whose response it looks like.
            reply_to=said("reply_to") if said("parent_plan_id") else None,
            notify=said("notify"),
            _raw_event=event,
            _context=context,
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
