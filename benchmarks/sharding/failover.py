"""Simulates, event by event, one group that loses a process or a machine.

An event passes three stations: the dispatcher of its shard, the host of its plan, and the streams, which are one
station for the whole group. Each serves first come, first served; events arrive at random (Poisson) and do not slow
down during an outage, which is the worst case. Interrupted work is repeated. A dispatcher has at most
``max_outstanding`` events in flight: when those of a lost host fill it, events for other hosts wait too.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import quantiles
from typing import Literal, NamedTuple

from plancast.settings import DispatcherSettings

DISPATCHERS = DispatcherSettings()
ACK_WAIT = DISPATCHERS.ack_wait
"""Seconds after which the stream redelivers a lost dispatcher's events (``dispatchers.ack_wait``)."""
BEGIN = 5.0
"""Time of the fault, in seconds."""
CALM = 5.0
"""Simulated seconds after the last backlog."""
BACK_TO_NORMAL = 0.05
"""Seconds beyond the normal p99 up to which an event counts as served in time."""
LONGEST = 400.0
Station = Literal["dispatcher", "host", "streams"]


@dataclass(frozen=True)
class Group:
    """One group of a deployment."""

    turns_per_second: float
    dispatchers: int
    hosts: int
    dispatcher_ms: float
    """Time of a dispatcher per turn."""
    host_ms: float
    """Time of a host per turn."""
    streams_ms: float
    """Time of the streams per turn: 1000 divided by their turns per second."""
    activation_ms: float = 0.0
    """Time of a host to activate a plan. Each event at a restarted host counts as its plan's first."""
    max_outstanding: int = DISPATCHERS.max_outstanding
    """Limit of a dispatcher's in-flight events: handed to hosts and not committed."""

    def busy(self, station: Station) -> float:
        """Return the utilization of a station."""
        share = {
            "dispatcher": self.dispatcher_ms / self.dispatchers,
            "host": self.host_ms / self.hosts,
            "streams": self.streams_ms,
        }
        return self.turns_per_second * share[station] / 1000


@dataclass(frozen=True)
class Fault:
    """The fault, and its duration."""

    name: str
    seconds: float
    dispatchers: int = 0
    """Number of lost dispatchers."""
    hosts: int = 0
    """Number of lost hosts."""
    streams: bool = False


class Result(NamedTuple):
    """Effect of a fault."""

    held_up: float
    """Share of delayed events among those between the fault and the end of its backlog."""
    p50: float
    """Median wait of the delayed events, in seconds."""
    p99: float
    most: float
    backlog: int
    """Maximum number of waiting events."""
    drained: float
    """Seconds from the end of the fault until its backlog is drained, without the last redeliveries."""
    redelivered: int
    """In-flight events of a lost dispatcher, redelivered only after ``ack_wait``."""


def simulate(group: Group, fault: Fault, seed: int) -> Result:
    """Simulate a fault of a group.

    Raises:
        ValueError: the group is overloaded even without the fault.
    """
    busiest = max(group.busy("dispatcher"), group.busy("host"), group.busy("streams"))
    if busiest >= 1:
        raise ValueError(f"a station would be busy {busiest:.0%} of its time")
    chance = random.Random(seed)
    until = _horizon(group, fault)
    arrivals: list[float] = []
    now = chance.expovariate(group.turns_per_second)
    while now < until:
        arrivals.append(now)
        now += chance.expovariate(group.turns_per_second)
    run = _Run(group, fault, arrivals, chance)
    run.go()
    return _result(arrivals, run.done, BEGIN + fault.seconds, run.again)


class _Server:
    """A process, or the streams; serves one event at a time, in order."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.queue: deque[int] = deque()
        self.current: int | None = None
        self.up = True
        self.life = 0
        """Incremented by each fault; work of an earlier life does not complete."""
        self.out = 0
        """A dispatcher's in-flight events."""


class _Run:
    """One simulation run."""

    def __init__(self, group: Group, fault: Fault, arrivals: Sequence[float], chance: random.Random) -> None:
        self.arrivals = arrivals
        self.done = [0.0] * len(arrivals)
        self.again: set[int] = set()
        """Events that are redelivered after ``ack_wait``, because no live process holds them."""
        self._group, self._fault = group, fault
        self._dispatchers = [_Server(group.dispatcher_ms / 1000) for _ in range(group.dispatchers)]
        self._hosts = [_Server(group.host_ms / 1000) for _ in range(group.hosts)]
        self._streams = _Server(group.streams_ms / 1000)
        self._dispatcher_of = [chance.randrange(group.dispatchers) for _ in arrivals]
        self._host_of = [chance.randrange(group.hosts) for _ in arrivals]
        self._handed: dict[int, int] = {}
        """The dispatcher's life at the time of handing over, by event."""
        self._number = count()
        self._due: list[tuple[float, int, Literal["come", "served", "down", "up"], int, _Server | None, int]] = []

    def go(self) -> None:
        """Serve all events."""
        for index, time in enumerate(self.arrivals):
            self._at(time, "come", index)
        self._at(BEGIN, "down")
        self._at(BEGIN + self._fault.seconds, "up")
        while self._due:
            now, _, kind, index, server, life = heapq.heappop(self._due)
            if kind == "come":
                self._enter(now, self._dispatchers[self._dispatcher_of[index]], index)
            elif kind == "down":
                self._down()
            elif kind == "up":
                self._up(now)
            elif server is not None and server.life == life:
                self._served(now, server, index)

    def _at(
        self,
        time: float,
        kind: Literal["come", "served", "down", "up"],
        index: int = -1,
        server: _Server | None = None,
    ) -> None:
        life = 0 if server is None else server.life
        heapq.heappush(self._due, (time, next(self._number), kind, index, server, life))

    def _enter(self, now: float, server: _Server, index: int) -> None:
        server.queue.append(index)
        self._begin(now, server)

    def _begin(self, now: float, server: _Server) -> None:
        full = server.out >= self._group.max_outstanding
        if server.up and server.current is None and server.queue and not full:
            server.current = server.queue.popleft()
            self._at(now + server.seconds, "served", server.current, server)

    def _served(self, now: float, server: _Server, index: int) -> None:
        server.current = None
        dispatcher = self._dispatchers[self._dispatcher_of[index]]
        if server is dispatcher:
            dispatcher.out += 1
            self._handed[index] = dispatcher.life
            self._enter(now, self._hosts[self._host_of[index]], index)
        elif server is self._streams:
            self.done[index] = now
            if self._handed.pop(index) == dispatcher.life:
                dispatcher.out -= 1
            self._begin(now, dispatcher)
        else:
            self._enter(now, self._streams, index)
        self._begin(now, server)

    def _down(self) -> None:
        lost = self._dispatchers[: self._fault.dispatchers]
        for server in (*lost, *self._hosts[: self._fault.hosts], *([self._streams] if self._fault.streams else [])):
            server.up = False
            server.life += 1
            if server.current is not None:
                server.queue.appendleft(server.current)
                server.current = None
        for server in lost:  # events that it has read are lost with it; the others are still in the stream
            server.out = 0
            read = min(len(server.queue), self._group.max_outstanding)
            self._again(server.queue.popleft() for _ in range(read))
        for server in self._hosts[: self._fault.hosts]:  # other dispatchers hand over its events again
            orphans = {index for index in server.queue if self._dispatcher_of[index] < self._fault.dispatchers}
            server.queue = deque(index for index in server.queue if index not in orphans)
            self._again(orphans)

    def _again(self, events: Iterable[int]) -> None:
        for index in events:
            self.again.add(index)
            self._handed.pop(index, None)
            self._at(max(BEGIN + self._fault.seconds, self.arrivals[index] + ACK_WAIT), "come", index)

    def _up(self, now: float) -> None:
        for host in self._hosts[: self._fault.hosts]:
            host.seconds += self._group.activation_ms / 1000
        for server in (*self._dispatchers, *self._hosts, self._streams):
            server.up = True
            self._begin(now, server)


def _horizon(group: Group, fault: Fault) -> float:
    """Return the time until which events arrive; the backlog is drained by then."""
    rates = []
    if fault.dispatchers:
        rates.append(group.busy("dispatcher"))
    if fault.hosts:
        rates.append(group.busy("host") * (1 + group.activation_ms / group.host_ms))
    if fault.streams:
        rates.append(group.busy("streams"))
    # Delayed events reach the later stations all at once, so the busiest station counts.
    rates += [group.busy("host"), group.busy("streams")]
    busiest = min(0.97, max(rates))
    return min(LONGEST, BEGIN + fault.seconds / (1 - busiest) + CALM)


def _result(arrivals: Sequence[float], done: Sequence[float], end: float, again: set[int]) -> Result:
    waited = [left - came for came, left in zip(arrivals, done, strict=True)]
    usual = [wait for came, wait, left in zip(arrivals, waited, done, strict=True) if left < BEGIN]
    bound = sorted(usual)[int(0.99 * len(usual))] + BACK_TO_NORMAL
    late = [index for index, wait in enumerate(waited) if wait > bound]
    if not late:
        return Result(0.0, 0.0, 0.0, 0.0, _backlog(arrivals, done), 0.0, len(again))
    last = max((done[index] for index in late if index not in again), default=end)
    during = sum(BEGIN <= came <= last for came in arrivals)
    cuts = quantiles([waited[index] for index in late], n=100) if len(late) > 1 else [waited[late[0]]] * 99
    return Result(
        held_up=min(1.0, len(late) / max(1, during)),
        p50=cuts[49],
        p99=cuts[98],
        most=max(waited),
        backlog=_backlog(arrivals, done),
        drained=max(0.0, last - end),
        redelivered=len(again),
    )


def _backlog(arrivals: Sequence[float], done: Sequence[float]) -> int:
    """Return the maximum number of events that have arrived and are not done."""
    most = gone = 0
    ordered = sorted(done)
    for number, came in enumerate(arrivals, 1):
        while gone < len(ordered) and ordered[gone] <= came:
            gone += 1
        most = max(most, number - gone)
    return most


def busiest_for(fault_seconds: float, drain_seconds: float) -> float:
    """Return the highest utilization at which the backlog of a fault drains within ``drain_seconds``."""
    return drain_seconds / (drain_seconds + fault_seconds)
