"""Router: finds the link to the host of an event's plan."""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from plancast_actors.dispatch.host_link import HostLimits, HostLink
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.hosting.protocol import HostPort, Outcome
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, Delivery

MAX_KNOWN_PLACES = 100_000
ANSWER_STALLS, START_STALLS = 3, 10
"""Times ``stall_seconds`` after which a host that does not answer, or does not come to life, is ended."""


class HostDirectory(Protocol):
    """Finds plan hosts."""

    @property
    def shared(self) -> list[HostPort]:
        """The shared hosts, in an order that all dispatchers agree on."""
        ...

    def dedicated(self, plan: str) -> HostPort:
        """The host of one plan's own, which is started when it is needed."""
        ...


class Router:
    """Knows the links to all hosts, and to which of them an event goes.

    Args:
        bus: Where the places of plans are looked up.
        hosts: Where plans live.
        options: Of the dispatcher.
        settle: Takes what hosts report.
        spawn: Runs something beside.
    """

    def __init__(
        self,
        bus: Bus,
        hosts: HostDirectory,
        options: DispatcherOptions,
        settle: Callable[[list[Outcome]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._bus = bus
        self._hosts = hosts
        self._options = options
        self._settle = settle
        self._spawn = spawn
        self._shared = [self._link(host) for host in hosts.shared]
        self._own: dict[str, HostLink] = {}
        """Links to hosts of one plan, by the token of its correlation id."""
        self._places: OrderedDict[str, bool] = OrderedDict()
        self._all_dedicated = bool(options.goals) and options.dedicated_goals.issuperset(options.goals)

    @property
    def links(self) -> list[HostLink]:
        """The links to all hosts."""
        return [*self._shared, *self._own.values()]

    @property
    def dedicated(self) -> int:
        """How many hosts of one plan's own there are."""
        return len(self._own)

    def route(self, delivery: Delivery) -> HostLink | None:
        """The link to the host of an event's plan; None when it is to be looked up."""
        correlation = _correlation_token(delivery.subject)
        if self._options.dedicated_goals and self._places.get(correlation) is not False:
            return self._own.get(correlation)
        return self._of_shared(correlation)

    async def look_up(self, delivery: Delivery) -> HostLink:
        """The link to the host of an event's plan, wherever it is."""
        correlation = _correlation_token(delivery.subject)
        if not await self._is_dedicated(delivery, correlation):
            return self._of_shared(correlation)
        link = self._own.get(correlation)
        if link is None:
            self._forget_idle_links()
            address = self._bus.subjects.parse_stored(delivery.subject)
            link = self._own[correlation] = self._link(self._hosts.dedicated(address.correlation_id))
        return link

    def _of_shared(self, correlation: str) -> HostLink:
        return self._shared[zlib.crc32(correlation.encode()) % len(self._shared)]

    async def close(self) -> None:
        """Close all links."""
        await asyncio.gather(*(link.close() for link in self.links))

    async def _is_dedicated(self, delivery: Delivery, correlation: str) -> bool:
        known = self._places.get(correlation)
        if known is None:
            known = await self._look_up_place(delivery)
            if known is None:
                return False
            self._places[correlation] = known
            if len(self._places) > MAX_KNOWN_PLACES:
                self._places.popitem(last=False)
        return known

    async def _look_up_place(self, delivery: Delivery) -> bool | None:
        """Where the plan lives: its goal says so, or its checkpoint; None when there is none yet."""
        try:
            address = self._bus.subjects.parse_stored(delivery.subject)
        except InvalidSubject:
            return None  # any host puts it aside
        if self._all_dedicated:
            return True
        if address.topic == EventTopic.ACTION_REQUESTS:
            return address.event_type in self._options.dedicated_goals
        try:
            checkpoint = await self._bus.checkpoints.load(address.correlation_id)
        except (BusUnavailable, InvalidEnvelope):  # any host finds out what is wrong with it
            return None
        return None if checkpoint is None else checkpoint.summary.goal_event in self._options.dedicated_goals

    def _link(self, host: HostPort) -> HostLink:
        options, stall = self._options, self._options.stall_seconds
        limits = HostLimits(
            options.index,
            options.count,
            options.max_losses,
            ANSWER_STALLS * stall or None,
            START_STALLS * stall or None,
        )
        return HostLink(options.name, host, options.max_batch, self._settle, limits)

    def _forget_idle_links(self) -> None:
        for key in [key for key, link in self._own.items() if link.idle]:
            self._spawn(self._own.pop(key).close())


def _correlation_token(subject: str) -> str:
    """The correlation id's token in a stored subject; in that of a due timer it stands one further."""
    parts = subject.split(".", 5)
    return parts[4] if parts[2] == "due" else parts[3]
