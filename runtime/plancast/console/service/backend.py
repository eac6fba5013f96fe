"""Backend: what the routes of the API work with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

from cachetools import FIFOCache, LRUCache
from fastapi import Depends, Request

from plancast.agents.registry import AgentRegistry
from plancast.client.client import Client
from plancast.client.handle import PlanHandle
from plancast.console.service.errors import Refused
from plancast.console.service.limits import Slots
from plancast.console.service.plan_index import PlanIndex, Row, Wanted
from plancast.errors import PlanNotFound
from plancast.plan.store import find_checkpoint, plan_fields
from plancast.settings import Settings
from plancast_bus.events.codec import unpack
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint

Entries = list[dict[str, Any]]
Actors = Callable[[], Awaitable[dict[str, Any] | None]]
"""Asks what runs in Ray, as ``Deployment.status()`` tells it; None when that cannot be known."""
KEPT_HISTORIES = 16
"""Histories that are kept decoded, those looked at last."""
KEPT_SUBMITTED = 10_000
"""Plans that were submitted here and have not begun, as far as is known."""
KEPT_COUNTS = 64
"""Counts that are kept for streams, those asked for last."""
MOST_LOOKS = 16
"""Requests at a time that look through all plans, or read many; of one user half of them."""
LOOK_SECONDS = 10.0
LOAD_SECONDS = 10.0
"""How long a request waits for the list of plans to be complete."""


class Backend:
    """A deployment as the API sees it.

    Args:
        bus: The connection to it; who made it closes it.
        settings: Of the deployment, and of the console.
        actors: Asks what runs in Ray; None where that cannot be known.
    """

    def __init__(self, bus: Bus, settings: Settings, actors: Actors | None = None) -> None:
        self.bus = bus
        self.settings = settings
        self.client = Client(bus)
        self.index = PlanIndex(bus.checkpoints)
        self.registry = AgentRegistry(bus.registry)
        self.actors = actors
        self.closing = asyncio.Event()
        """Set when the server ends: streams and long polls end then."""
        most, users = settings.console.max_streams, len(settings.console.tokens)
        self.streams = Slots("streams and long polls", most, max(1, most // 2) if users > 1 else most)
        self.looks = Slots("looks through all plans", MOST_LOOKS, MOST_LOOKS // 2 if users > 1 else MOST_LOOKS)
        self._counts: LRUCache[Wanted, tuple[int, dict[str, int]]] = LRUCache(KEPT_COUNTS)
        self._counting = asyncio.Semaphore(1)
        self._submitted: FIFOCache[str, None] = FIFOCache(KEPT_SUBMITTED)
        self._histories: LRUCache[str, tuple[int, Entries]] = LRUCache(KEPT_HISTORIES)

    async def start(self) -> None:
        """Begin to keep the list of plans."""
        self.index.start()

    async def stop(self) -> None:
        """Let go of everything but the bus."""
        self.closing.set()
        await self.index.stop()
        await self.client.close()

    async def plans(self) -> PlanIndex:
        """The list of plans, once it is complete, or after 10 seconds as far as it is."""
        await self.index.wait(LOAD_SECONDS)
        return self.index

    async def found(self, asked: Wanted) -> list[Row] | None:
        """The plans that are asked for, their status aside, in the order of their commits; None for all.

        Others have their turn meanwhile.

        Raises:
            Refused: it takes too long.
        """
        if asked.takes_all:
            return None
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self.index.found(asked)
        except TimeoutError as error:
            detail = f"there are too many plans to look through in {LOOK_SECONDS:g} s; name a session, goal or tenant"
            raise Refused(503, detail, headers={"Retry-After": "10"}) from error

    async def counts(self, asked: Wanted) -> dict[str, int]:
        """The plans that are asked for, by status, for streams: counted once for all that ask the same."""
        if asked.takes_all:
            return self.index.counts()
        asked = replace(asked, status=frozenset())
        async with self._counting:
            kept = self._counts.get(asked)
            if kept is None or kept[0] != self.index.changes:
                changes = self.index.changes
                found = await self.index.found(asked)
                kept = self._counts[asked] = (changes, dict(Counter([row.summary.status for row in found])))
            return kept[1]

    def handle(self, plan_id: str) -> PlanHandle:
        """A plan to be moved."""
        return self.client.plan(plan_id)

    async def checkpoint(self, plan_id: str) -> Checkpoint:
        """The newest checkpoint of a plan.

        Raises:
            PlanNotFound: there is none.
        """
        found = await find_checkpoint(self.bus.checkpoints, plan_id)
        if found is None:
            self.index.drop(plan_id)
            raise PlanNotFound(f"plan {plan_id[:200]} is unknown, or was forgotten after its retention")
        return found

    def submitted(self, plan_id: str) -> None:
        """Remember a plan that was submitted here: until it has begun, it is pending, and not unknown."""
        self._submitted[plan_id] = None

    async def begun(self, plan_id: str) -> Checkpoint | None:
        """The newest checkpoint of a plan; None while one that was submitted here has not begun.

        Raises:
            PlanNotFound: it is none of these.
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
        """What ``PlanContext.to_dict()`` gives of a plan, its state machine included."""
        return await plan_fields(self.bus.checkpoints, checkpoint)

    async def history(self, checkpoint: Checkpoint) -> Entries:
        """The timeline of a plan up to a checkpoint at least, oldest first. Not to be changed."""
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
"""The backend, in a route's arguments."""
