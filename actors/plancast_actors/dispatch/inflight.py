"""InFlight: the events a dispatcher has read and not acknowledged, their limits and their order. No I/O.

Events of running plans (replies, signals, timers) are dispatched before goals and facts, and a quarter of the capacity
is reserved for them. Goals queue by tenant and are taken round robin, with facts as one more queue.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache

from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_bus.ports.bus import Consumer, Delivery

Kind = Literal["work", "facts", "goals"]
"""Kinds of events that a consumer reads: events of running plans, facts, goals."""

_FACTS = " facts"  # not a tenant's token
_FIRST_MEAN = 4096.0


@dataclass(slots=True, eq=False)
class InFlightEvent:
    """An event that was read and not acknowledged."""

    token: int
    consumer: Consumer
    delivery: Delivery
    kind: Kind
    since: float
    """When its ack deadline last began."""
    came: float
    state: Literal["waiting", "dispatched", "parked"] = "waiting"

    @property
    def queue(self) -> str:
        """The queue of a goal or fact: its tenant, or one for all facts."""
        return _FACTS if self.kind == "facts" else self.delivery.tenant


class InFlight:
    """The in-flight events of one dispatcher, with tokens that count from ``first_token``."""

    def __init__(self, options: DispatcherOptions, first_token: int) -> None:
        self._options = options
        self._unreserved = options.max_outstanding - options.max_outstanding // 4
        """Outstanding events up to which goals and facts are dispatched."""
        self._next_token = first_token
        self._events: dict[int, InFlightEvent] = {}
        """By token; those with the oldest ack deadline come first."""
        self._positions: defaultdict[str, dict[int, InFlightEvent]] = defaultdict(dict)
        """By stream and sequence."""
        self._work: deque[InFlightEvent] = deque()
        self._queues: OrderedDict[str, deque[InFlightEvent]] = OrderedDict()
        """Waiting goals by tenant, and facts; the next queue comes first, and none is empty."""
        self._parked: Counter[str] = Counter()
        """Parked goals by tenant."""
        self._deferred = DeferredGoals()
        self._bytes = 0
        self._mean = _FIRST_MEAN
        self.outstanding = 0
        """Dispatched, and neither parked nor settled."""
        self.parked = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def waiting(self) -> int:
        """Number of events that wait for capacity."""
        return len(self._work) + sum(map(len, self._queues.values()))

    @property
    def out(self) -> int:
        """Number of events that hosts have."""
        return self.outstanding + self.parked

    # Reading.

    def wanted(self, kind: Kind) -> int:
        """Count the events of a kind that may be read now."""
        options = self._options
        bytes_left = options.max_bytes - self._bytes
        if kind == "work":
            free = options.max_outstanding - len(self._work)
        elif kind == "facts":
            free = self._unreserved - self._queued(_FACTS)
        else:
            goals = sum(map(len, self._queues.values())) - self._queued(_FACTS)
            free = options.max_waiting_goals - goals
            if free * 8 < options.max_waiting_goals:  # read in larger batches
                return 0
        if kind != "work":
            bytes_left -= options.max_bytes // 4
        return 0 if free <= 0 or bytes_left <= 0 else min(free, max(1, int(bytes_left / self._mean)))

    def take_in(self, consumer: Consumer, delivery: Delivery, kind: Kind, now: float) -> float | None:
        """Add an event that was read; returns None, or seconds after which it must be redelivered instead."""
        positions = self._positions[delivery.stream]
        known = positions.get(delivery.sequence)
        if known is not None and _is_redelivery(known.delivery, delivery):
            # Its ack deadline has passed, as when the bus was unavailable.
            known.delivery, known.since = delivery, now
            return None
        if kind == "goals":
            if self._exceeds_share(delivery.tenant):
                return self._deferred.defer(delivery, self._queued(delivery.tenant), now)
            self._deferred.take(delivery)
        self._next_token += 1
        event = InFlightEvent(self._next_token, consumer, delivery, kind, now, now)
        self._events[event.token] = positions[delivery.sequence] = event
        size = len(delivery.payload)
        self._bytes += size
        self._mean += (size + 512 - self._mean) * 0.02
        if kind == "work":
            self._work.append(event)
        else:
            self._queues.setdefault(event.queue, deque()).append(event)
        return None

    def _queued(self, queue: str) -> int:
        return len(self._queues.get(queue, ()))

    def _exceeds_share(self, tenant: str) -> bool:
        """True if a tenant has half of all waiting goals; those of others may be behind them in the stream."""
        return bool(tenant) and 2 * self._queued(tenant) >= self._options.max_waiting_goals

    def give_back(self) -> list[InFlightEvent]:
        """Remove and return the events that were not dispatched."""
        given = [event for event in self._events.values() if event.state == "waiting"]
        for event in given:
            self.settle(event.token)
        self._work.clear()
        self._queues.clear()
        return given

    # Dispatching.

    def next(self) -> InFlightEvent | None:
        """The next event to dispatch, from now on outstanding; None if there is none, or no capacity."""
        if self.outstanding >= self._options.max_outstanding:
            return None
        if self._work:
            return self._dispatch(self._work.popleft())
        if self.outstanding >= self._unreserved:
            return None
        queue = next((queue for queue in self._queues if not self.is_closed(queue)), None)
        if queue is None:
            return None
        event = self._queues[queue].popleft()
        if self._queues[queue]:
            self._queues.move_to_end(queue)
        else:
            del self._queues[queue]
        if event.kind == "goals":
            self._deferred.dispatched += 1
        return self._dispatch(event)

    def is_closed(self, queue: str) -> bool:
        """True if too many plans of a queue wait for models; one tenant may have half of ``max_parked``."""
        limit = self._options.max_parked
        return queue != _FACTS and (self.parked >= limit or (queue != "" and 2 * self._parked[queue] >= limit))

    def _dispatch(self, event: InFlightEvent) -> InFlightEvent:
        event.state = "dispatched"
        self.outstanding += 1
        return event

    def park(self, token: int) -> None:
        """Stop counting an event whose turn waits for a model as outstanding."""
        event = self._events.get(token)
        if event is None or event.state != "dispatched":
            return
        event.state = "parked"
        self.outstanding -= 1
        self.parked += 1
        self._bytes -= len(event.delivery.payload)
        if event.kind == "goals":
            self._parked[event.queue] += 1

    def settle(self, token: int) -> InFlightEvent | None:
        """Remove an event; None if it is not known."""
        event = self._events.pop(token, None)
        if event is None:
            return None
        delivery = event.delivery
        positions = self._positions[delivery.stream]
        if positions.get(delivery.sequence) is event:
            del positions[delivery.sequence]
        if event.state == "parked":
            self.parked -= 1
            if event.kind == "goals":
                self._parked[event.queue] -= 1
                if not self._parked[event.queue]:
                    del self._parked[event.queue]
        else:
            self._bytes -= len(delivery.payload)
            self.outstanding -= event.state == "dispatched"
        return event

    # Ack deadlines.

    def to_keep_alive(self, before: float, now: float, rounds: int) -> dict[Consumer, list[Delivery]]:
        """Events whose ack deadline began before a time, the oldest first; their deadline begins again now.

        A burst is spread over this number of rounds.
        """
        due: list[InFlightEvent] = []
        limit = max(200, -(-len(self._events) // rounds))
        for event in self._events.values():
            if event.since > before or len(due) == limit:
                break
            due.append(event)
        by_consumer: dict[Consumer, list[Delivery]] = {}
        for event in due:
            del self._events[event.token]
            self._events[event.token] = event
            event.since = now
            by_consumer.setdefault(event.consumer, []).append(event.delivery)
        self._deferred.update_rate(now, saturated=bool(self._queues))
        return by_consumer


def _is_redelivery(one: Delivery, other: Delivery) -> bool:
    """True if two deliveries with one sequence are of one event; a recreated stream counts from 1 again."""
    return (one.subject, one.message_id) == (other.subject, other.message_id)


_MAX_DELAY = 15.0
"""Seconds for which a goal is deferred at most."""

_FIRST_RATE = 1000.0
"""Goals per second until measured."""

_MAX_REMEMBERED = 1_000_000


class DeferredGoals:
    """Delays the redelivery of goals whose tenant has too many in the queue.

    Each is deferred by about the time that the goals before it take, so that it is usually read only once more.
    """

    def __init__(self) -> None:
        self.dispatched = 0
        """Goals dispatched since the last :meth:`update_rate`."""
        self._rate = _FIRST_RATE
        self._updated_at: float | None = None
        self._due: dict[str, float] = {}
        """When the next goal to be deferred is wanted, by tenant."""
        self._times: LRUCache[int, int] = LRUCache(_MAX_REMEMBERED)
        """Deferrals of each goal, by stream sequence; these deliveries do not count as attempts."""

    def defer(self, delivery: Delivery, ahead: int, now: float) -> float:
        """Seconds after which a goal should be redelivered; ``ahead``: queued goals of its tenant."""
        due = max(now + ahead / self._rate, self._due.get(delivery.tenant, 0.0)) + 1 / self._rate
        self._due[delivery.tenant] = due = min(due, now + _MAX_DELAY)
        self._times[delivery.sequence] = self._times.get(delivery.sequence, 0) + 1
        return due - now

    def take(self, delivery: Delivery) -> None:
        """Subtract the deferrals of a goal that is taken in from its delivery count."""
        if self._times:
            delivery.attempt = max(1, delivery.attempt - self._times.pop(delivery.sequence, 0))

    def update_rate(self, now: float, *, saturated: bool) -> None:
        """Measure the rate since the last call, if goals were waiting all the time (``saturated``)."""
        if self._updated_at is not None and now > self._updated_at:
            if saturated:
                self._rate = max(1.0, 0.5 * self._rate + 0.5 * self.dispatched / (now - self._updated_at))
            self._due = {tenant: due for tenant, due in self._due.items() if due > now}
        self._updated_at, self.dispatched = now, 0
