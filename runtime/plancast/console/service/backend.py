"""Backend: a deployment as the API's routes use it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

from cachetools import FIFOCache, LRUCache
from fastapi import Depends, Request

from plancast.agents.definitions import EventDefinition
from plancast.agents.registry import AgentRegistry
from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.console.service.approvals import ApprovalBoard
from plancast.console.service.effects import EffectBoard
from plancast.console.service.errors import Refused
from plancast.console.service.goal_data import GoalData
from plancast.console.service.limits import Slots
from plancast.console.service.nats_probe import NatsProbe
from plancast.console.service.plan_index import PlanIndex, PlanQuery, Row
from plancast.errors import PlanNotFound
from plancast.plan_store.listed_status import ListedStatuses
from plancast.plan_store.store import find_checkpoint, plan_fields
from plancast.settings import Settings
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

Entries = list[dict[str, Any]]
Actors = Callable[[], Awaitable[dict[str, Any] | None]]
"""Queries the actors, as ``Deployment.status()`` does; None when they are unreachable."""
KEPT_HISTORIES = 16
"""Size of the LRU cache of decoded histories."""
KEPT_SUBMITTED = 10_000
"""Maximum number of submitted plans without a first turn to remember."""
KEPT_COUNTS = 64
"""Size of the LRU cache of counts for streams."""
MOST_LOOKS = 16
"""Maximum number of concurrent requests that search all plans or read many; half of them per user."""
LOOK_SECONDS = 10.0
LOAD_SECONDS = 10.0
"""Maximum wait for the list of plans to be complete."""


class Backend:
    """A deployment, for the API.

    Args:
        bus: Connection to the deployment; its creator closes it.
        settings: Settings of the deployment and the console.
        actors: Queries the actors on Ray; None without Ray.
    """

    def __init__(self, bus: Bus, settings: Settings, actors: Actors | None = None) -> None:
        self.bus = bus
        self.settings = settings
        self.client = Client(bus)
        self.registry = AgentRegistry(bus.registry)
        self.index = PlanIndex(bus.checkpoints, ListedStatuses(bus.checkpoints, self.registry.human_events))
        self.approvals = ApprovalBoard(bus, self.index)
        self.effects = EffectBoard(bus, self.index)
        self.goal_data = GoalData(bus.checkpoints)
        self.nats_probe = NatsProbe(bus.registry)
        self.actors = actors
        self.closing = asyncio.Event()
        """Set when the server shuts down, which ends streams and long polls."""
        most, users = settings.console.max_streams, len(settings.console.tokens)
        self.streams = Slots("streams and long polls", most, max(1, most // 2) if users > 1 else most)
        self.looks = Slots("searches of all plans", MOST_LOOKS, MOST_LOOKS // 2 if users > 1 else MOST_LOOKS)
        self._counts: LRUCache[PlanQuery, tuple[int, dict[str, int]]] = LRUCache(KEPT_COUNTS)
        self._counting = asyncio.Semaphore(1)
        self._submitted: FIFOCache[str, None] = FIFOCache(KEPT_SUBMITTED)
        self._histories: LRUCache[str, tuple[int, Entries]] = LRUCache(KEPT_HISTORIES)

    async def start(self) -> None:
        self.index.start()

    async def stop(self) -> None:
        """Stop everything but the bus."""
        self.closing.set()
        await self.index.stop()
        await self.client.close()

    async def plans(self) -> PlanIndex:
        """The plan index, once it is complete or after 10 seconds."""
        await self.index.wait(LOAD_SECONDS)
        return self.index

    async def goals(self) -> dict[str, EventDefinition]:
        """The goals of the deployed apps, sorted by name."""
        try:
            apps = await self.bus.registry.list("app")
            known = {each.event_type: each for each in await self.registry.discover(EventTopic.ACTION_REQUESTS)}
        except (BusUnavailable, AccessDenied):
            raise
        except BusError:  # nothing was ever deployed
            return {}
        goals = {str(goal) for app in apps.values() for goal in app.get("goals", ())}
        return {goal: known.get(goal) or EventDefinition(goal) for goal in sorted(goals)}

    async def found(self, asked: PlanQuery) -> list[Row] | None:
        """Plans that match a query, whatever their status, in the order of their commits; None for all.

        Raises:
            Refused: the search takes too long.
        """
        if asked.matches_all:
            return None
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self.index.found(asked)
        except TimeoutError as error:
            detail = f"too many plans to search in {LOOK_SECONDS:g} s; filter by session, goal or tenant"
            raise Refused(503, detail, headers={"Retry-After": "10"}) from error

    async def counts(self, asked: PlanQuery) -> dict[str, int]:
        """Number of matching plans by status, cached so that streams with the same query share it."""
        if asked.matches_all:
            return self.index.counts()
        asked = replace(asked, status=frozenset())
        async with self._counting:
            cached = self._counts.get(asked)
            if cached is None or cached[0] != self.index.changes:
                changes = self.index.changes
                found = await self.index.found(asked)
                cached = self._counts[asked] = (changes, dict(Counter([row.summary.status for row in found])))
            return cached[1]

    def handle(self, plan_id: str) -> PlanHandle:
        return self.client.plan(plan_id)

    async def checkpoint(self, plan_id: str) -> Checkpoint:
        """The newest checkpoint of a plan.

        Raises:
            PlanNotFound: there is none.
        """
        looked = self.index.version
        found = await find_checkpoint(self.bus.checkpoints, plan_id)
        if found is None:
            self.index.drop(plan_id, looked)
            raise PlanNotFound(f"plan {plan_id[:200]} is unknown, or was deleted after its retention")
        return found

    def submitted(self, plan_id: str) -> None:
        """Remember a submitted plan: it is pending, not unknown, until its first turn."""
        self._submitted[plan_id] = None

    async def begun(self, plan_id: str) -> Checkpoint | None:
        """The newest checkpoint of a plan; None for a submitted plan before its first turn.

        Raises:
            PlanNotFound: the plan is unknown.
        """
        try:
            found = await self.checkpoint(plan_id)
        except PlanNotFound:
            if plan_id in self._submitted:
                return None
            raise
        self._submitted.pop(plan_id, None)
        return found

    async def state(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The plan as ``PlanContext.to_dict()`` gives it, with its state machine."""
        return await plan_fields(self.bus.checkpoints, checkpoint)

    async def history(self, checkpoint: Checkpoint) -> Entries:
        """The timeline of a plan, at least up to a checkpoint, oldest first. Treat it as read-only."""
        key = checkpoint.correlation_id
        kept = self._histories.get(key)
        if kept is None or kept[0] != checkpoint.version:
            entries = [unpack(entry) for entry in checkpoint.timeline]
            if checkpoint.sealed or not entries or entries[0]["revision"] != 1:
                entries = [unpack(entry) for entry in await self.bus.checkpoints.history(key)]
            kept = self._histories[key] = (checkpoint.version, entries)
        return kept[1]


async def _backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


Here = Annotated[Backend, Depends(_backend)]
"""The backend, as a route's argument."""
