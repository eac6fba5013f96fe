"""Router: finds the link to the host of an event's plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from cachetools import LRUCache

from plancast_actors.dispatch import slots
from plancast_actors.dispatch.host_link import HostLink
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.plan_actors.protocol import HostPort, Outcome
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, Delivery

if TYPE_CHECKING:
    from plancast_actors.dispatch.suspects import Suspects

MAX_PLACEMENTS = 100_000
"""Plans whose placement is cached."""
MIN_DROPPED = 64
"""Links to dedicated hosts before idle ones are dropped; later twice as many as were busy."""
MOVE_SECONDS, MAX_MOVE_SECONDS = 0.02, 2.0
"""First and longest pause between two looks at which plans still have events at the host that they leave."""


class HostDirectory(Protocol):
    """Finds plan hosts."""

    @property
    def shared(self) -> list[HostPort]:
        """The shared hosts, in the same order for all dispatchers."""
        ...

    def dedicated(self, plan: str, tenant: str, begun: bool) -> HostPort:
        """The dedicated host of a plan, which it has for a time.

        Args:
            plan: The plan's correlation id.
            tenant: The plan's; tenants that wait for hosts get them in turn.
            begun: Whether the plan has begun; goals wait behind such plans.
        """
        ...


class Router:
    """Routes events to hosts: by the plan's slot among the shared hosts that live, or to the plan's dedicated host.

    A host that is lost is routed around at once: others take its plans, and its events in flight, until it is back. The
    same holds for a host that gets no more plans, since it is surplus, or another one stands in for it, when it ends.

    ``settle`` is called with the outcomes that hosts report, ``spawn`` runs a coroutine in the background. ``suspects``
    has events that end hosts run in the quarantine host; None: they are tried where they are.
    """

    def __init__(
        self,
        bus: Bus,
        hosts: HostDirectory,
        options: DispatcherOptions,
        settle: Callable[[list[Outcome]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        suspects: Suspects | None = None,
    ) -> None:
        self._bus = bus
        self._hosts = hosts
        self._options = options
        self._settle = settle
        self._spawn = spawn
        self._suspects = suspects
        self._losses: dict[int, int] = {}
        """Losses of hosts with events that are in flight, by token."""
        self._shared = [self._link(host) for host in hosts.shared]
        self._by_slot = self._assigned()
        self._leaving: list[HostLink] = []
        """Links to shared hosts that are surplus."""
        self._moving: asyncio.Task[None] | None = None
        self._staying: dict[str, HostLink] = {}
        """Plans with events at the shared host that they leave, by the token of the correlation id."""
        self._moved: list[HostLink] = []
        """To hosts for which others stand in, while these have events in flight."""
        self._dedicated: dict[str, HostLink] = {}
        """By the token of the plan's correlation id."""
        self._drop_at = MIN_DROPPED
        """Number of them at which idle ones are dropped."""
        self._is_dedicated: LRUCache[str, bool] = LRUCache(MAX_PLACEMENTS)
        self._all_dedicated = bool(options.goals) and options.dedicated_goals.issuperset(options.goals)

    @property
    def links(self) -> list[HostLink]:
        apart = [] if self._suspects is None else self._suspects.links
        return [*self._shared, *self._leaving, *self._moved, *self._dedicated.values(), *apart]

    @property
    def dedicated(self) -> int:
        """Number of links to dedicated hosts, idle ones included."""
        return len(self._dedicated)

    def route(self, delivery: Delivery) -> HostLink | None:
        """The link to the host of an event's plan; None if :meth:`look_up` has to find it."""
        correlation = correlation_token(delivery.subject)
        if self._options.dedicated_goals and self._is_dedicated.get(correlation) is not False:
            return self._dedicated.get(correlation)
        if self._suspects is not None and self._suspects.may_concern(delivery):
            return None
        return self._shared_link(correlation)

    async def look_up(self, delivery: Delivery) -> HostLink:
        """The link to the host of an event's plan, after looking up the plan's placement."""
        correlation = correlation_token(delivery.subject)
        dedicated = self._is_dedicated.get(correlation) if self._options.dedicated_goals else False
        if dedicated is None:
            dedicated = await self._look_up_placement(delivery)
            if dedicated is not None:
                self._is_dedicated[correlation] = dedicated
        if not dedicated:
            apart = None if self._suspects is None else await self._suspects.link_of(delivery)
            return apart or self._shared_link(correlation)
        link = self._dedicated.get(correlation)
        if link is None:
            self._drop_idle_links()
            address = self._bus.subjects.parse_stored(delivery.subject)
            begun = address.topic != EventTopic.ACTION_REQUESTS
            host = self._hosts.dedicated(address.correlation_id, delivery.tenant, begun)
            link = self._dedicated[correlation] = HostLink(host, self._options, self._settle, granted=True)
        return link

    def reroute(self) -> None:
        """Route to the shared hosts that the directory has now.

        A plan with events at the host that it leaves stays there until they are settled: two hosts would both run its
        turns, of which one is refused when it commits.
        """
        hosts = self._hosts.shared
        links = self._shared[: len(hosts)]
        links += [self._link(host) for host in hosts[len(links) :]]
        self._leaving += self._shared[len(hosts) :]
        self._shared = links
        self._assign()

    def move(self, index: int, host: HostPort) -> None:
        """Send the events of a shared host's plans to another host from now on, which stands in for it.

        Those in flight stay where they are until that host has reported on them, or ends. Plans may be in both hosts
        meanwhile: the checkpoint's compare-and-set lets one of them commit.
        """
        before, self._shared[index] = self._shared[index], self._link(host)
        self._moved.append(before)
        self._assign()
        self._spawn(self._leave(before))

    async def _leave(self, link: HostLink) -> None:
        pause = MOVE_SECONDS
        try:
            while not link.idle:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_MOVE_SECONDS)
            await link.close()
        finally:
            self._moved.remove(link)

    def _assign(self) -> None:
        """Assign the plans to the shared hosts that live, and hand events on that lost ones have.

        While no host lives, events wait for their own one.
        """
        self._by_slot = self._assigned()
        living = [link for link in (*self._shared, *self._leaving) if not link.lost]
        self._staying = self._held(living)
        if self._staying and self._moving is None:
            self._moving = asyncio.get_running_loop().create_task(self._watch_moves())
        if all(link.lost for link in self._shared):
            return
        for link in (*self._shared, *self._leaving, *self._moved):
            for inbound in link.surrender(crashed=link in self._shared) if link.lost else ():
                self._shared_link(correlation_token(inbound.subject)).put(inbound)

    async def left(self, seconds: float) -> bool:
        """Wait until hosts that get no more plans have no events, and release them.

        After ``seconds`` the events that are left are sent to the new hosts of their plans; returns False then.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while any(not link.idle for link in self._leaving) and loop.time() < deadline:  # noqa: ASYNC110 - rare
            await asyncio.sleep(MOVE_SECONDS)
        leaving, self._leaving = self._leaving, []
        self._staying = {token: link for token, link in self._staying.items() if link not in leaving}
        events = [inbound for link in leaving for inbound in link.events]
        await asyncio.gather(*(link.close() for link in leaving))
        for inbound in events:
            self._shared_link(correlation_token(inbound.subject)).put(inbound)
        return not events

    async def _watch_moves(self) -> None:
        """Let plans move when their events at the host that they leave are settled."""
        pause = MOVE_SECONDS
        while self._staying:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_MOVE_SECONDS)
            self._staying = self._held(dict.fromkeys(self._staying.values()))
        self._moving = None

    def _held(self, links: Iterable[HostLink]) -> dict[str, HostLink]:
        """The links by plans that have events there, and whose slot is another host's."""
        tokens = ((correlation_token(inbound.subject), link) for link in links for inbound in link.events)
        return {token: link for token, link in tokens if self._by_slot[slots.slot_of(token)] is not link}

    def _assigned(self) -> list[HostLink]:
        gone = frozenset(index for index, link in enumerate(self._shared) if link.lost)
        return [self._shared[owner] for owner in slots.living_owners(len(self._shared), gone)]

    async def close(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
        await asyncio.gather(*(link.close() for link in self.links))

    def _shared_link(self, correlation: str) -> HostLink:
        if self._staying and (link := self._staying.get(correlation)) is not None:
            return link
        return self._by_slot[slots.slot_of(correlation)]

    async def _look_up_placement(self, delivery: Delivery) -> bool | None:
        """True if the plan is dedicated, by its goal or its checkpoint; None if there is no plan yet."""
        try:
            address = self._bus.subjects.parse_stored(delivery.subject)
        except InvalidSubject:
            return None  # any host dead-letters it
        if self._all_dedicated:
            return True
        if address.topic == EventTopic.ACTION_REQUESTS:
            return address.event_type in self._options.dedicated_goals
        try:
            checkpoint = await self._bus.checkpoints.load(address.correlation_id)
        except (BusUnavailable, InvalidEnvelope):  # any host runs into the same error, and handles it
            return None
        return None if checkpoint is None else checkpoint.summary.goal_event in self._options.dedicated_goals

    def _link(self, host: HostPort) -> HostLink:
        return HostLink(
            host, self._options, self._settle, suspects=self._suspects, changed=self._assign, losses=self._losses
        )

    def _drop_idle_links(self) -> None:
        if len(self._dedicated) < self._drop_at:
            return
        for key in [key for key, link in self._dedicated.items() if link.idle]:
            self._spawn(self._dedicated.pop(key).close())
        self._drop_at = max(MIN_DROPPED, 2 * len(self._dedicated))


def correlation_token(subject: str) -> str:
    """The token of the correlation id in a stored subject; that of a due timer has it one token later."""
    parts = subject.split(".", 5)
    return parts[4] if parts[2] == "due" else parts[3]
