"""Clients that follow a plan each, and go on after every kill of the server; what each has seen is proven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import httpx
import httpx2
from tests.chaos.protocols.clients import Event
from tests.chaos.protocols.parcels import SIGNATURE, WAITING
from tests.chaos.protocols.protocols import Protocol
from tests.chaos.protocols.serving import Serving

from plancast import Client
from plancast.client.changes import TaskChunk, TaskProgress

KILLS: Final = 2
"""Kills of the server that a client lives through."""
PATIENCE: Final = 1800.0
REST_SECONDS: Final = 1.0
"""Seconds for which a client reads on after a kill: what had been sent arrives."""
AGAIN_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Case:
    """A run of one client."""

    number: int
    key: str
    stops: tuple[int, ...]
    """Numbers of events after which the server is killed."""
    reads_on: bool
    """True for a client that reads what arrives after the kill; another one loses it."""


def make_cases(protocol: Protocol, seed: int, runs: int) -> list[Case]:
    """Make the cases of a seed: each place between two events comes as often as any other."""
    random = Random(f"{protocol.name} {seed}")
    places = range(protocol.events + 1)
    cases = []
    for number in range(runs):
        first = number % len(places)
        others = random.sample([each for each in places if each != first], KILLS - 1)
        stops = tuple(sorted((first, *others)))
        cases.append(Case(number, f"{protocol.name}-{seed}-{number}", stops, random.random() < 0.5))
    return cases


def is_transport(error: Exception) -> bool:
    """Return whether an error, or each of a group, says that a connection was lost."""
    if isinstance(error, ExceptionGroup):
        return all(map(is_transport, error.exceptions))
    return isinstance(error, httpx.TransportError | httpx2.TransportError)


@dataclass
class Strikes:
    """Kills the server when every client that is to live through a kill has come to its place."""

    serving: Serving
    running: int
    """Clients that are not done."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def meet(self) -> None:
        """Wait until the server is killed."""
        struck = asyncio.get_running_loop().create_future()
        self.waiting.append(struck)
        self._look()
        await struck

    def leave(self) -> None:
        """Have the others wait no longer for a client that is done."""
        self.running -= 1
        self._look()

    def _look(self) -> None:
        if len(self.waiting) >= self.running:
            self._complete.set()

    async def run(self) -> None:
        """Kill and start the server again, until all clients are done."""
        while self.running:
            await self._complete.wait()
            self._complete.clear()
            if not self.waiting:
                continue
            await self.serving.kill()
            struck, self.waiting = self.waiting, []
            for each in struck:
                each.set_result(None)
            await self.serving.start()


@dataclass
class Follower:
    """A client of one plan."""

    case: Case
    protocol: Protocol
    client: Client
    strikes: Strikes
    seen: list[Event] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    ended: bool = False
    struck: int = 0
    """Kills that it has lived through."""
    lost: int = 0
    """Connections that were lost besides, as one that the server closes when a request is on its way."""

    async def run(self) -> list[str]:
        """Follow the plan to its result, and return what was not as promised."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self.ended:
                    await self._connect()
                return await self._faults()
        except TimeoutError:
            return [f"no result after {PATIENCE:g} s, {len(self.seen)} events and {self.struck} kills"]
        except Exception as error:
            return [f"after {len(self.seen)} events and {self.struck} kills: {error!r}"]
        finally:
            self.strikes.leave()

    async def _connect(self) -> None:
        serving = self.strikes.serving
        url, kills = await serving.url(), serving.kills
        cursor = self.seen[-1].cursor if self.seen else None
        try:
            async with aclosing(self.protocol.follow(url, self.case.key, cursor)) as events:
                await self._follow(events)
        except Exception as error:
            if serving.kills == kills:  # nobody has killed the server
                if not is_transport(error):
                    raise
                self.lost += 1
        await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, events: AsyncGenerator[Event]) -> None:
        if self._stops_here():  # before the first event, or before any further one
            await self._strike(events)
            return
        async for event in events:
            await self._take(event)
            if self._stops_here():
                await self._strike(events)
                return

    def _stops_here(self) -> bool:
        """Return whether the server is to be killed now; never again at a place that a client has read beyond."""
        left = self.case.stops[self.struck :]
        return bool(left) and not self.ended and len(self.seen) >= left[0]

    async def _strike(self, events: AsyncGenerator[Event]) -> None:
        await self.strikes.meet()
        self.struck += 1
        if not self.case.reads_on:
            return
        while (event := await asyncio.wait_for(anext(events, None), REST_SECONDS)) is not None:
            await self._take(event)

    async def _take(self, event: Event) -> None:
        self.ended = event.ends
        if event.kind == "result":
            self.results.append(event.value)
        if event.cursor:
            self.seen.append(event)
        if event.state == WAITING:
            await self.client.plan(self.protocol.plan_id(self.case.key)).signal(SIGNATURE, {"by": self.case.key})

    async def _faults(self) -> list[str]:
        """Compare what was seen with the plan's changes as they are stored."""
        plan = self.client.plan(self.protocol.plan_id(self.case.key))
        changes = [each async for each in plan.watch(after=0)]
        reports = [
            (each.kind, each.chunk if isinstance(each, TaskChunk) else each.message)
            for each in changes
            if isinstance(each, TaskChunk | TaskProgress)
        ]
        turns = [each.revision for each in changes if each.kind == "turn"]
        faults = []
        if turns != list(range(1, len(turns) + 1)):
            faults.append(f"the plan itself has the turns {turns}")
        if (seen := [each.value for each in self.seen if each.kind == "turn"]) != turns:
            faults.append(f"saw the turns {seen} of {turns}")
        kinds = TaskChunk.kind, TaskProgress.kind
        told = [(each.kind, each.value) for each in self.seen if each.kind in kinds]
        if self.protocol.has_reports and told != reports:
            faults.append(f"saw the reports {told} of {reports}")
        if [each.kind for each in self.seen].count("begin") > 1:
            faults.append("saw the plan begin more than once")
        places = [self.protocol.place(each.cursor) for each in self.seen]
        if any(after <= before for before, after in pairwise(places)):
            faults.append(f"saw events in the order {[each.cursor for each in self.seen]}")
        if self.results != [expected := await plan.result()]:
            faults.append(f"got the results {self.results} instead of {expected}")
        return faults
