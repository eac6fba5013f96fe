"""What handlers are given to talk to the world: events, plans, registrations, models."""

from __future__ import annotations

from typing import Any, Protocol

from plancast_bus.events.envelope import EventTopic


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
