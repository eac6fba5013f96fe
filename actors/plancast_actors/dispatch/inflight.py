"""InHand: what a dispatcher has read and not acknowledged, how much of it there may be, and what comes next. No I/O.

Work in progress comes first: answers, signals and timers are handed over before goals and facts, and a quarter of
the room is theirs alone. Goals wait in line by tenant, one of each in turn, with facts as one tenant more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Literal

from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_bus.ports.bus import Consumer, Delivery

Kind = Literal["work", "facts", "goals"]
"""What a consumer brings: events of plans that are under way, facts, goals."""

_FACTS_LANE = " facts"  # no tenant's name: those are tokens
_FIRST_MEAN = 4096.0


@dataclass(slots=True, eq=False)
class Held:
    """An event in hand."""

    token: int
    consumer: Consumer
    delivery: Delivery
    kind: Kind
    since: float
    """When it came, or was kept alive last."""
    came: float
    state: Literal["waiting", "handed", "parked"] = "waiting"

    @property
    def lane(self) -> str:
        """Where it stands in line, when it is no work in progress."""
        return _FACTS_LANE if self.kind == "facts" else self.delivery.tenant


class InHand:
    """The events in hand of one dispatcher.

    Args:
        options: How many there may be.
        first_token: Tokens count from here.
    """

    def __init__(self, options: DispatcherOptions, first_token: int) -> None:
        self._options = options
        self._newcomers = options.max_outstanding - options.max_outstanding // 4
        """Outstanding events up to which goals and facts are handed over."""
        self._next_token = first_token
        self._held: dict[int, Held] = {}
        """Those that were not kept alive for longest come first."""
        self._places: defaultdict[str, dict[int, Held]] = defaultdict(dict)
        """By stream and sequence."""
        self._work: deque[Held] = deque()
        self._lanes: OrderedDict[str, deque[Held]] = OrderedDict()
        """Goals that wait, by tenant, and facts; the lane whose turn it is comes first, and none is empty."""
        self._parked: Counter[str] = Counter()
        """Goals that are parked, by tenant."""
        self._put_off = PutOff()
        self._bytes = 0
        self._mean = _FIRST_MEAN
        self.outstanding = 0
        """Handed over, and neither parked nor settled."""
        self.parked = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._work) + sum(map(len, self._lanes.values()))

    @property
    def out(self) -> int:
        """How many hosts have."""
        return self.outstanding + self.parked

    # Reading.

    def wanted(self, kind: Kind) -> int:
        """How many events of a kind may be read now."""
        options = self._options
        bytes_left = options.max_bytes - self._bytes
        if kind == "work":
            free = options.max_outstanding - len(self._work)
        elif kind == "facts":
            free = self._newcomers - self._waiting_in(_FACTS_LANE)
        else:
            goals = sum(map(len, self._lanes.values())) - self._waiting_in(_FACTS_LANE)
            free = options.max_waiting_goals - goals
            if free * 8 < options.max_waiting_goals:  # not in driblets
                return 0
        if kind != "work":
            bytes_left -= options.max_bytes // 4
        return 0 if free <= 0 or bytes_left <= 0 else min(free, max(1, int(bytes_left / self._mean)))

    def take_in(self, consumer: Consumer, delivery: Delivery, kind: Kind, now: float) -> float | None:
        """Keep an event that was read; or say in how many seconds it is to be delivered again, and do not keep it."""
        places = self._places[delivery.stream]
        known = places.get(delivery.sequence)
        if known is not None and _are_the_same(known.delivery, delivery):
            # Its time to be acknowledged has run out, as when the bus was away.
            known.delivery, known.since = delivery, now
            return None
        if kind == "goals":
            if self._is_too_many(delivery.tenant):
                return self._put_off.delay(delivery, self._waiting_in(delivery.tenant), now)
            self._put_off.back(delivery)
        self._next_token += 1
        held = Held(self._next_token, consumer, delivery, kind, now, now)
        self._held[held.token] = places[delivery.sequence] = held
        size = len(delivery.payload)
        self._bytes += size
        self._mean += (size + 512 - self._mean) * 0.02
        if kind == "work":
            self._work.append(held)
        else:
            self._lanes.setdefault(held.lane, deque()).append(held)
        return None

    def _waiting_in(self, lane: str) -> int:
        return len(self._lanes.get(lane, ()))

    def _is_too_many(self, tenant: str) -> bool:
        """Whether a tenant fills more than half of the line: others may stand behind its goals in the stream."""
        return bool(tenant) and 2 * self._waiting_in(tenant) >= self._options.max_waiting_goals

    def give_back(self) -> list[Held]:
        """Let go of what waits for room."""
        given = [held for held in self._held.values() if held.state == "waiting"]
        for held in given:
            self.settle(held.token)
        self._work.clear()
        self._lanes.clear()
        return given

    # Handing over.

    def next(self) -> Held | None:
        """The event that is to be handed over now; it is outstanding from then on. None when there is none, or no
        room."""
        if self.outstanding >= self._options.max_outstanding:
            return None
        if self._work:
            return self._hand(self._work.popleft())
        if self.outstanding >= self._newcomers:
            return None
        lane = next((lane for lane in self._lanes if not self.is_closed(lane)), None)
        if lane is None:
            return None
        held = self._lanes[lane].popleft()
        if self._lanes[lane]:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        if held.kind == "goals":
            self._put_off.handed += 1
        return self._hand(held)

    def is_closed(self, lane: str) -> bool:
        """Whether too many plans of a lane wait for models. One tenant has half of that room."""
        most = self._options.max_parked
        return lane != _FACTS_LANE and (self.parked >= most or (lane != "" and 2 * self._parked[lane] >= most))

    def _hand(self, held: Held) -> Held:
        held.state = "handed"
        self.outstanding += 1
        return held

    def park(self, token: int) -> None:
        """An event's turn waits for a model: it makes room for others."""
        held = self._held.get(token)
        if held is None or held.state != "handed":
            return
        held.state = "parked"
        self.outstanding -= 1
        self.parked += 1
        self._bytes -= len(held.delivery.payload)
        if held.kind == "goals":
            self._parked[held.lane] += 1

    def settle(self, token: int) -> Held | None:
        """Let go of an event that a host has reported on; None when it is not known."""
        held = self._held.pop(token, None)
        if held is None:
            return None
        delivery = held.delivery
        places = self._places[delivery.stream]
        if places.get(delivery.sequence) is held:
            del places[delivery.sequence]
        if held.state == "parked":
            self._unpark(held)
        else:
            self._bytes -= len(delivery.payload)
            self.outstanding -= held.state == "handed"
        return held

    def _unpark(self, held: Held) -> None:
        self.parked -= 1
        if held.kind == "goals":
            self._parked[held.lane] -= 1
            if not self._parked[held.lane]:
                del self._parked[held.lane]

    # Keeping alive.

    def to_keep_alive(self, before: float, now: float, rounds: int) -> dict[Consumer, list[Delivery]]:
        """Events that were not kept alive since then, those of longest ago; at most so many that all fit into these
        rounds, so that a burst is spread."""
        due: list[Held] = []
        most = max(200, -(-len(self._held) // rounds))
        for held in self._held.values():
            if held.since > before or len(due) == most:
                break
            due.append(held)
        by_consumer: dict[Consumer, list[Delivery]] = {}
        for held in due:
            del self._held[held.token]
            self._held[held.token] = held
            held.since = now
            by_consumer.setdefault(held.consumer, []).append(held.delivery)
        self._put_off.note_time(now, saturated=bool(self._lanes))
        return by_consumer


def _are_the_same(one: Delivery, other: Delivery) -> bool:
    """Whether two deliveries of one place in a stream are of one event; a stream that was made anew counts anew."""
    return (one.subject, one.message_id) == (other.subject, other.message_id)


_LONGEST_OFF = 15.0
"""Seconds that a goal is put off at most."""

_FIRST_RATE = 1000.0
"""Goals a second, until it is measured."""

_MOST_REMEMBERED = 1_000_000


class PutOff:
    """Goals that are given back for a while, since too many of their tenant are in line.

    Each is put off for about as long as those before it take, so that it is read again once, when it is wanted.
    """

    def __init__(self) -> None:
        self.handed = 0
        """Goals handed over since the last look at the time."""
        self._rate = _FIRST_RATE
        self._noted: float | None = None
        self._due: dict[str, float] = {}
        """When the next goal of a tenant is wanted that is put off now."""
        self._times: OrderedDict[int, int] = OrderedDict()
        """How often a goal was put off, by its place in the stream: those deliveries do not count as attempts."""

    def delay(self, delivery: Delivery, ahead: int, now: float) -> float:
        """Seconds until the goal is to come again; ``ahead`` of its tenant are in line."""
        due = max(now + ahead / self._rate, self._due.get(delivery.tenant, 0.0)) + 1 / self._rate
        self._due[delivery.tenant] = due = min(due, now + _LONGEST_OFF)
        self._times[delivery.sequence] = self._times.pop(delivery.sequence, 0) + 1
        if len(self._times) > _MOST_REMEMBERED:
            self._times.popitem(last=False)
        return due - now

    def back(self, delivery: Delivery) -> None:
        """A goal is taken: it has not failed as often as it was delivered."""
        if self._times:
            delivery.attempt = max(1, delivery.attempt - self._times.pop(delivery.sequence, 0))

    def note_time(self, now: float, *, saturated: bool) -> None:
        """Measure the rate anew, of a time in which there were always some that waited."""
        if self._noted is not None and now > self._noted:
            if saturated:
                self._rate = max(1.0, 0.5 * self._rate + 0.5 * self.handed / (now - self._noted))
            self._due = {tenant: due for tenant, due in self._due.items() if due > now}
        self._noted, self.handed = now, 0
