"""The status of plans in lists: what waits for people has one of its own, ``waiting``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Final

from cachetools import LRUCache

from plancast.errors import PlancastError
from plancast.plan.status import PAUSED, RUNNING, WAITING
from plancast.plan_store.approvals import Fields, asks_while_paused, events_of_people
from plancast.state_machine.machine import Machine
from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.events.codec import unpack
from plancast_bus.ports.checkpoints import CheckpointStore, Committed, PlanSummary

BATCH: Final = 64
"""Plans that are read at once."""
MACHINES: Final = 4_096


class ListedStatuses:
    """Reads the status of plans for lists. A stored plan has the status of its turns: ``running`` or ``paused``.

    A running plan waits for people when its state waits for an event of theirs, which its summary shows; that of a
    paused one says it. Plans that an earlier version has paused are loaded.

    Args:
        checkpoints: The store.
        human_events: Reads the events that people send.
    """

    def __init__(self, checkpoints: CheckpointStore, human_events: Callable[[], Awaitable[Collection[str]]]) -> None:
        self._checkpoints = checkpoints
        self._human_events = human_events
        self._people: frozenset[str] | None = None
        self._machines: LRUCache[str, dict[str, frozenset[str]]] = LRUCache(MACHINES)

    async def refresh(self) -> bool:
        """Read the events of people again; True if they have changed."""
        before = self._people
        try:
            self._people = frozenset(await self._human_events())
        except AccessDenied:  # this login may read plans only
            self._people = frozenset()
        return self._people != before

    async def read(self, committed: Committed) -> Committed:
        """The plan as lists show it.

        Raises:
            BusUnavailable: the store cannot be reached.
        """
        plan = committed.summary
        if plan.status not in (RUNNING, PAUSED) or not await self._waits(committed.correlation_id, plan):
            return committed
        return committed._replace(summary=replace(plan, status=WAITING))

    async def read_all(self, plans: AsyncGenerator[Committed], batch: int = BATCH) -> AsyncGenerator[Committed]:
        """The same for a listing, several at once."""
        async with aclosing(plans):
            for _ in count():
                some: list[Committed] = []
                while len(some) < batch and (committed := await anext(plans, None)) is not None:
                    some.append(committed)
                for each in await asyncio.gather(*map(self.read, some)):
                    yield each
                if len(some) < batch:
                    return

    async def _waits(self, key: str, plan: PlanSummary) -> bool:
        if self._people is None:
            await self.refresh()
        assert self._people is not None
        if plan.status == PAUSED and plan.asks_people is not None:
            return plan.asks_people
        if plan.status == PAUSED:
            state = await self._state(key)
            return state is not None and state.get("status") == PAUSED and asks_while_paused(state)
        if not self._people or plan.machine == "":
            return False
        digest = plan.machine
        if digest is None:  # stored by an early version
            state = await self._state(key)
            digest = (state or {}).get("machine") or ""
        events = (await self._events(digest)).get(plan.current_state) if digest else None
        return events is not None and not self._people.isdisjoint(events)

    async def _events(self, digest: str) -> dict[str, frozenset[str]]:
        """By state: the events that it waits for, of which one may be of people."""
        known = self._machines.get(digest)
        if known is None:
            encoded = await self._checkpoints.get_machine(digest)
            states = Machine.decode(encoded).states if encoded is not None else {}
            known = {name: frozenset(events_of_people(state.model_dump())) for name, state in states.items()}
            if encoded is not None:
                self._machines[digest] = known
        return known

    async def _state(self, key: str) -> Fields | None:
        """The stored fields of a plan; None if they cannot be read."""
        try:
            checkpoint = await self._checkpoints.load(key)
            state = unpack(checkpoint.state) if checkpoint is not None else None
        except BusUnavailable:
            raise
        except PlancastError:
            return None
        return state if isinstance(state, dict) else None
