"""Registration: keeps the agents of a process registered while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.agents.registry import AgentRegistry
from plancast.app import App
from plancast.json_values.normalize import plain
from plancast.planners.planner import Planner
from plancast.state_machine.machine import failed_event
from plancast.worker import Worker
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.registry import Registry

logger = logging.getLogger(__name__)
APP = "app"
MAX_SCHEMAS_BYTES = 256 * 1024
"""Most bytes of goals' schemas in the registration of an app; with more, only hosts check goals."""
LEAVE_SECONDS = 2.0
"""Seconds for which an ending process tries to deregister its agents; they expire anyway."""


@dataclass(frozen=True)
class Declaration:
    """An agent and the definitions of its events."""

    agent: AgentDefinition
    events: tuple[EventDefinition, ...]


def declare_worker(worker: Worker, process: str) -> Declaration:
    """Describe a worker of a process as an agent.

    Raises:
        InvalidApp: a schema of a task is neither a JSON Schema nor a pydantic model.
    """
    tasks = list(worker.offered.values())
    answers = [task.response_event for task in tasks if task.response_event]
    agent = AgentDefinition(
        agent_id=f"{worker.name}@{process}",
        name=worker.name,
        consumes=[task.event_type for task in tasks],
        produces=[*answers, *map(failed_event, answers)],
    )
    events = tuple(
        EventDefinition(
            task.event_type,
            EventTopic.ACTION_REQUESTS,
            task.description,
            task.schema,
            task.response_event,
            task.response_schema,
            effect=task.is_recorded,
        )
        for task in tasks
    )
    return Declaration(agent, events)


def declare_planner(planner: Planner, app: str) -> Declaration:
    """Describe a planner as an agent, with its goals and the events that people or webhooks send to its plans."""
    goals = sorted(planner.goals)
    agent = AgentDefinition(
        agent_id=f"{planner.name}@{app}",
        name=planner.name,
        consumes=[*goals, *planner.config.events_consumed],
        produces=planner.config.events_produced,
        description=planner.description,
    )
    taken = [
        EventDefinition(
            goal, EventTopic.ACTION_REQUESTS, planner.description, planner.goal_schema(goal), f"{goal}.completed"
        )
        for goal in goals
    ]
    expected = [
        EventDefinition(event_type, EventTopic.PLAN_EVENTS, description, planner.expected_schema(event_type))
        for event_type, description in planner.expected.items()
    ]
    return Declaration(agent, (*taken, *expected))


async def register_app(port: Registry, app: App, ttl: float) -> None:
    """Register the goals and tasks of an app for clients; expires after ``ttl`` seconds."""
    decided = [goal for goal, planner in app.goals.items() if planner.decider(goal) is not None]
    fields: dict[str, Any] = {"name": app.name, "goals": sorted(app.goals), "tasks": sorted(app.tasks)}
    if decided:  # the default is a state machine or a handler
        fields["kinds"] = dict.fromkeys(sorted(decided), "autonomous")
    schemas = {
        goal: plain(schema) for goal, each in app.goals.items() if (schema := each.goal_schema(goal)) is not None
    }
    if schemas and len(pack(schemas)) <= MAX_SCHEMAS_BYTES:
        fields["schemas"] = schemas
    effects = sorted(task for task, (_, definition) in app.tasks.items() if definition.is_recorded)
    if effects:
        fields["effects"] = effects
    await port.put(APP, app.name, fields, ttl=ttl)


async def deregister_app(port: Registry, app: str) -> None:
    await port.delete(APP, app)
    for agent_id in await port.list("agent"):
        if agent_id.endswith(f"@{app}"):
            await port.delete("agent", agent_id)


class Registration:
    """Registers agents and their events, and renews them before they expire; outlasts outages of NATS.

    The agents are those of this process, or shared by several processes. An ``app`` is registered with them.
    """

    def __init__(
        self, registry: AgentRegistry, declarations: Sequence[Declaration], clock: Clock, *, app: App | None = None
    ) -> None:
        self.registry = registry
        self.declarations = declarations
        self.app = app
        self._clock = clock
        self._failing = False
        self._task = asyncio.get_running_loop().create_task(self._beat())

    @classmethod
    def of_app(cls, app: App, registry: AgentRegistry, clock: Clock) -> Self:
        """Register an app and its planners; each of its hosts does so."""
        return cls(registry, [declare_planner(planner, app.name) for planner in app.planners], clock, app=app)

    @classmethod
    def of_workers(cls, workers: Iterable[Worker], registry: AgentRegistry, clock: Clock) -> Self:
        """Register the workers of this process.

        Raises:
            InvalidApp: a schema of a task is neither a JSON Schema nor a pydantic model.
        """
        process = uuid4().hex[:12]
        return cls(registry, [declare_worker(worker, process) for worker in workers], clock)

    async def end(self) -> None:
        """Stop renewing; registrations expire unless another process renews them."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self) -> None:
        """Stop renewing, and deregister the agents if NATS can be reached."""
        await self.end()
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*(self.registry.deregister(each.agent.agent_id) for each in self.declarations))

    async def _beat(self) -> None:
        while True:
            registered = await self._register()
            await self._clock.sleep(self.registry.ttl / (3 if registered else 9))

    async def _register(self) -> bool:
        writes: list[Any] = [
            self.registry.register_event(event) for declared in self.declarations for event in declared.events
        ]
        writes += [self.registry.register_agent(declared.agent) for declared in self.declarations]
        if self.app is not None:
            writes.append(register_app(self.registry.port, self.app, self.registry.ttl))
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        failure = next((each for each in outcomes if isinstance(each, Exception)), None)
        if failure is not None and not self._failing:
            names = ", ".join(declared.agent.agent_id for declared in self.declarations)
            logger.warning("cannot register %s, retrying: %s: %s", names, type(failure).__name__, failure)
        self._failing = failure is not None
        return failure is None
