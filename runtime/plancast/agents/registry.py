"""AgentRegistry and Toolkit: the live agents, and the events that they act on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.errors import PlancastError
from plancast_bus.clock import Clock, SystemClock
from plancast_bus.errors import BusError, BusUnavailable, InvalidEnvelope
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.registry import Registry

logger = logging.getLogger(__name__)
TTL_SECONDS: Final = 45.0
"""Time to live of an agent after its last heartbeat."""
EVENT_SECONDS: Final = 86_400.0
"""Time to live of an event's definition; the event is actionable only while an agent that consumes it is live."""


class UnknownAgent(PlancastError, LookupError):
    """Raised for the heartbeat of an agent that is not registered, or has expired."""


class AgentRegistry:
    """``context.registry``: agents with a time to live, and the events that they consume and produce.

    Reads are cached for ``cache_seconds``, and shared by concurrent callers. Invalid registrations are skipped with a
    warning.

    Args:
        port: The store: ``bus.registry``.
        ttl: Seconds that an agent lives after its registration or last heartbeat.
        cache_seconds: Maximum age of cached reads.
        clock: By default the machine's.
    """

    def __init__(
        self, port: Registry, *, ttl: float = TTL_SECONDS, cache_seconds: float = 1.0, clock: Clock | None = None
    ) -> None:
        if ttl <= 0 or cache_seconds < 0:
            raise ValueError("ttl is more than 0 seconds, cache_seconds at least 0")
        self.port = port
        self.ttl = ttl
        self._cache_seconds = cache_seconds
        self._clock = clock or SystemClock()
        self._agents = _Definitions("agent", AgentDefinition.from_dict)
        self._events = _Definitions("event", EventDefinition.from_dict)
        self._own_agents: dict[str, AgentDefinition] = {}
        self._own_events: dict[str, EventDefinition] = {}
        self._listing: _Listing | None = None
        self._reading: asyncio.Task[_Listing] | None = None

    @classmethod
    def in_memory(cls, *, clock: Clock | None = None, **options: Any) -> Self:
        """Create a registry without a server, for tests; ``options`` as for the constructor."""
        from plancast_bus.memory import MemoryBus

        clock = clock or SystemClock()
        return cls(MemoryBus(clock=clock).registry, clock=clock, **options)

    async def register_event(self, definition: EventDefinition) -> None:
        """Register an event, or replace it.

        Raises:
            BusUnavailable: NATS cannot be reached; the next heartbeat of its agent registers the event.
        """
        self._own_events[_key(definition)] = definition
        await self._put_event(definition)

    async def register_agent(self, definition: AgentDefinition) -> None:
        """Register an agent; it expires ``ttl`` seconds after its last heartbeat.

        Raises:
            BusUnavailable: NATS cannot be reached; the next heartbeat registers the agent.
        """
        self._own_agents[definition.agent_id] = definition
        await self._put_agent(definition)

    async def heartbeat(self, agent_id: str) -> None:
        """Renew an agent, and the events that it consumes and produces.

        The registry that has registered the agent also renews it after it has expired; others do not.

        Raises:
            UnknownAgent: the agent is not registered.
            BusUnavailable: NATS cannot be reached.
        """
        agent = self._own_agents.get(agent_id)
        events: Iterable[EventDefinition] = self._own_events.values()
        if agent is None:
            self._forget_listing()
            listing = await self._listed()
            agent = next((each for each in listing.agents if each.agent_id == agent_id), None)
            events = listing.events
        if agent is None:
            raise UnknownAgent(
                f"agent {agent_id!r} is not registered, or has expired after {self.ttl:g} s: call register_agent first"
            )
        types = {*agent.consumes, *agent.produces}
        renewed = [self._put_event(each) for each in events if each.event_type in types]
        await _all(*renewed, self._put_agent(agent))

    async def deregister(self, agent_id: str) -> None:
        """Remove an agent, if it is registered."""
        self._own_agents.pop(agent_id, None)
        await self.port.delete(self._agents.kind, agent_id)
        self._forget_listing()

    async def discover(self, topic: str | None = None) -> list[EventDefinition]:
        """All registered events, with or without a live agent, sorted by type.

        Args:
            topic: Only events of this topic.
        """
        return [each for each in (await self._listed()).events if topic is None or each.topic == topic]

    async def human_events(self) -> dict[str, EventDefinition]:
        """The events that planners expect from people (``Planner.expects``), by type; none before a deployment."""
        try:
            return {each.event_type: each for each in await self.discover(EventTopic.PLAN_EVENTS)}
        except BusUnavailable:
            raise
        except BusError:  # nothing was ever deployed
            return {}

    async def agents(self, consuming: str | None = None) -> list[AgentDefinition]:
        """The live agents, sorted by id.

        Args:
            consuming: Only those that consume this event type.
        """
        return [each for each in (await self._listed()).agents if consuming is None or consuming in each.consumes]

    async def _put_event(self, definition: EventDefinition) -> None:
        await self.port.put(self._events.kind, _key(definition), definition.to_dict(), ttl=max(EVENT_SECONDS, self.ttl))
        self._forget_listing()

    async def _put_agent(self, definition: AgentDefinition) -> None:
        await self.port.put(self._agents.kind, definition.agent_id, definition.to_dict(), ttl=self.ttl)
        self._forget_listing()

    def _forget_listing(self) -> None:
        self._listing = self._reading = None

    async def _listed(self) -> _Listing:
        listing = self._listing
        if listing is not None and 0 <= self._clock.time() - listing.read_at < self._cache_seconds:
            return listing
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._keep)
        return await asyncio.shield(self._reading)  # a cancelled caller leaves it to the others

    async def _read(self) -> _Listing:
        read_at = self._clock.time()
        agents, events = await asyncio.gather(self._agents.read(self.port), self._events.read(self.port))
        return _Listing(
            read_at,
            tuple(sorted(agents, key=lambda each: each.agent_id)),
            tuple(sorted(events, key=lambda each: (each.event_type, each.topic))),
        )

    def _keep(self, reading: asyncio.Task[_Listing]) -> None:
        if self._reading is reading:  # nothing was written meanwhile
            self._reading = None
            if not reading.cancelled() and reading.exception() is None:
                self._listing = reading.result()


class _Discovery(Protocol):
    """The part of a registry that a toolkit uses."""

    async def discover(self, topic: str | None = None) -> list[EventDefinition]: ...

    async def agents(self, consuming: str | None = None) -> list[AgentDefinition]: ...


class Toolkit:
    """``context.toolkit``: the events that a planner may choose from.

    Args:
        registry: An :class:`AgentRegistry`.
    """

    def __init__(self, registry: _Discovery) -> None:
        self.registry = registry

    async def discover_actionable_events(self, topic: str | None = None) -> list[EventDefinition]:
        """The events that a live agent consumes, sorted by type.

        Args:
            topic: Only events of this topic, such as ``action-requests``.
        """
        events = await self.registry.discover(topic)
        consumed = {event_type for agent in await self.registry.agents() for event_type in agent.consumes}
        return [each for each in events if each.event_type in consumed]

    async def discover_events(self, topic: str | None = None) -> list[EventDefinition]:
        """All registered events, sorted by type; only of ``topic`` if it is given."""
        return await self.registry.discover(topic)


@dataclass(frozen=True)
class _Listing:
    read_at: float
    agents: tuple[AgentDefinition, ...]
    events: tuple[EventDefinition, ...]


_D = TypeVar("_D", bound=AgentDefinition | EventDefinition)


class _Definitions(Generic[_D]):
    """The registrations of a kind, as definitions; unchanged ones are not parsed again."""

    def __init__(self, kind: str, parse: Callable[[Mapping[str, Any]], _D]) -> None:
        self.kind = kind
        self._parse = parse
        self._known: dict[str, tuple[Any, _D | None]] = {}

    async def read(self, port: Registry) -> list[_D]:
        """All valid definitions."""
        try:
            stored = await port.list(self.kind)
        except InvalidEnvelope as error:
            logger.warning("registrations of kind %s cannot be read, the last ones are used: %s", self.kind, error)
        else:
            known = {}
            for key, fields in stored.items():
                before = self._known.get(key)
                if before is not None and before[0] == fields:
                    known[key] = before
                else:
                    known[key] = self._parsed(key, fields)
                    await asyncio.sleep(0)  # checking a schema takes time, and there may be many
            self._known = known
        return [definition for _, definition in self._known.values() if definition is not None]

    def _parsed(self, key: str, fields: Any) -> tuple[Any, _D | None]:
        try:
            return fields, self._checked(key, fields)
        except Exception as error:  # the others are usable
            logger.warning("the registration of %s %.200r is skipped: %.500s", self.kind, key, error)
            return fields, None

    def _checked(self, key: str, fields: Mapping[str, Any]) -> _D:
        definition = self._parse(fields)
        if not isinstance(definition.description, str):
            raise TypeError("its description is no text")
        if key != _key(definition):
            raise ValueError(f"it is registered under a key other than its own, {_key(definition)!r:.200}")
        return definition


def _key(definition: AgentDefinition | EventDefinition) -> str:
    if isinstance(definition, AgentDefinition):
        return definition.agent_id
    return f"{definition.topic}:{definition.event_type}"


async def _all(*writes: Any) -> None:
    """Await all concurrently, then raise the first failure."""
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
