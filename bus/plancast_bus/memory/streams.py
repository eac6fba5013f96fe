"""Streams in memory, and their durable consumers."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, PublishRefused
from plancast_bus.memory.subscriptions import SubjectIndex, overlap
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.topics import admitted_bytes, stream_full_message

_SLACK = 1024
"""Stale heap entries tolerated beyond the number of valid ones."""


@dataclass(slots=True)
class StoredMessage:
    """A message in a stream."""

    subject: str
    payload: bytes
    content_type: str | None
    message_id: str | None
    is_response: bool = False
    tenant: str = ""
    trace: str = ""
    sequence: int = 0
    """Set when it is stored."""
    time: float = 0.0
    """When it was stored."""

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.payload) + len(self.message_id or "")

    def as_delivery(self, stream: str, attempt: int = 0, reply: str = "") -> Delivery:
        return Delivery(
            self.subject, self.payload, self.content_type, self.message_id, stream, self.sequence, attempt, reply,
            self.is_response, self.tenant, self.trace,
        )  # fmt: skip


@dataclass(slots=True)
class _Pending:
    attempt: int
    due: float
    """Time of redelivery."""
    entry: float
    """Time of its valid entry in the heap of redeliveries; other entries are stale."""


class MemoryStream:
    """A stream: a work queue, which drops acknowledged messages, or one bounded by age."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        work_queue: bool,
        duplicate_window: float,
        max_bytes: int = -1,
        max_age: float = 0.0,
    ) -> None:
        self.name = name
        self.clock = clock
        self.work_queue = work_queue
        self.messages: dict[int, StoredMessage] = {}
        self.size: int = 0
        self._durables: dict[str, Durable] = {}
        self._index: SubjectIndex[Durable] = SubjectIndex()
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._duplicate_window = duplicate_window
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._last = 0

    def append(self, message: StoredMessage) -> int:
        """Store a message and return its sequence; of the original, for a duplicate within the window.

        Raises:
            PublishRefused: the stream is full.
        """
        now = self.clock.time()
        self.tick(now)
        return self._store(message, now)

    def _store(self, message: StoredMessage, now: float) -> int:
        if message.message_id is not None and message.message_id in self._seen:
            return self._seen[message.message_id][1]
        if 0 <= self._max_bytes < self.size + message.size:
            raise PublishRefused(stream_full_message(self.name, f"{self._max_bytes} bytes"))
        self._last += 1
        message.sequence, message.time = self._last, now
        if message.message_id is not None:
            self._seen[message.message_id] = (now, message.sequence)
        self.messages[message.sequence] = message
        self.size += message.size
        for durable in dict.fromkeys(self._index.match(message.subject)):
            durable.offer(message.sequence)
        return message.sequence

    def admit(self, size: int) -> None:
        """Admit a request from outside; the last quarter of a bounded stream is reserved for plans.

        Raises:
            PublishRefused: there is no room for it.
        """
        if 0 <= admitted_bytes(self._max_bytes) < self.size + size:
            raise PublishRefused(stream_full_message(self.name, f"{self.size} of {self._max_bytes} bytes"))

    def tick(self, now: float) -> None:
        """Remove expired message ids and messages."""
        while self._seen and next(iter(self._seen.values()))[0] <= now - self._duplicate_window:
            self._seen.popitem(last=False)
        while self._max_age and self.messages:
            oldest = next(iter(self.messages.values()))
            if oldest.time > now - self._max_age:
                break
            self.remove(oldest.sequence)

    def next_tick(self) -> float | None:
        """Time of the next message that the stream generates, if any."""
        return None

    def remove(self, sequence: int) -> None:
        message = self.messages.pop(sequence, None)
        if message is not None:
            self.size -= message.size

    def durable(self, spec: ConsumerSpec) -> Durable:
        """Return the durable consumer with this name, updated or newly created.

        A new consumer of a work queue starts with the stored messages, others with new ones.

        Raises:
            BusError: the filter of another consumer of a work queue overlaps.
        """
        self._refuse_overlap(spec)
        durable = self._durables.get(spec.name)
        if durable is not None and durable.spec == spec:
            return durable
        filters_changed = durable is None or durable.spec.filters != spec.filters
        if durable is None:
            durable = self._durables[spec.name] = Durable(self, spec)
        else:
            self._unfile(durable)
            durable.spec = spec
        for pattern in spec.filters:
            self._index.add(pattern, durable)
        if self.work_queue and filters_changed:
            filed: SubjectIndex[bool] = SubjectIndex()
            for pattern in spec.filters:
                filed.add(pattern, True)
            durable.requeue(each for each, message in self.messages.items() if filed.match(message.subject))
        return durable

    def drop_durable(self, name: str) -> None:
        durable = self._durables.pop(name, None)
        if durable is not None:
            self._unfile(durable)
            durable.deleted = True
            durable.wake()

    def wake(self) -> None:
        for durable in self._durables.values():
            durable.wake()

    def report(self) -> dict[str, object]:
        consumers = {
            name: {"pending": durable.waiting, "ack_pending": durable.unacknowledged}
            for name, durable in self._durables.items()
        }
        return {"messages": len(self.messages), "bytes": self.size, "consumers": consumers}

    def _refuse_overlap(self, spec: ConsumerSpec) -> None:
        if not self.work_queue:
            return
        for name, durable in self._durables.items():
            for theirs in durable.spec.filters if name != spec.name else ():
                if any(overlap(theirs, ours) for ours in spec.filters):
                    raise BusError(
                        f"consumer {spec.name} of {self.name} overlaps consumer {name} (filter {theirs}): "
                        "a message of a work-queue stream belongs to one consumer"
                    )

    def _unfile(self, durable: Durable) -> None:
        for pattern in durable.spec.filters:
            self._index.remove(pattern, durable)


class Durable:
    """A durable consumer: tracks which messages are queued, delivered and to be redelivered."""

    def __init__(self, stream: MemoryStream, spec: ConsumerSpec) -> None:
        self.stream = stream
        self.spec = spec
        self.deleted = False
        self._queue: deque[int] = deque()
        self._pending: dict[int, _Pending] = {}
        self._redeliveries: list[tuple[float, int]] = []
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def unacknowledged(self) -> int:
        return len(self._pending)

    def offer(self, sequence: int) -> None:
        self._queue.append(sequence)
        self.wake()

    def requeue(self, sequences: Iterable[int]) -> None:
        """Replace the queue by these messages, except those already delivered."""
        self._queue = deque(each for each in sequences if each not in self._pending)
        self.wake()

    def take(self, limit: int, now: float) -> list[Delivery]:
        """Deliver up to ``limit`` messages, redeliveries first."""
        taken: list[Delivery] = []
        self._take_again(limit, now, taken)
        messages = self.stream.messages
        while self._queue and len(taken) < limit and len(self._pending) < self.spec.max_ack_pending:
            sequence = self._queue.popleft()
            message = messages.get(sequence)
            if message is not None:
                self._pending[sequence] = pending = _Pending(0, 0.0, 0.0)
                taken.append(self._deliver(message, pending, now))
        return taken

    def next_due(self) -> float | None:
        """Time of the next redelivery."""
        return self._redeliveries[0][0] if self._redeliveries else None

    def ack(self, sequence: int) -> None:
        if self._pending.pop(sequence, None) is None:
            return
        if self.stream.work_queue:
            self.stream.remove(sequence)
        if not self._pending:
            self._redeliveries.clear()
        if self._queue:
            self.wake()

    def nak(self, sequence: int, delay: float, now: float) -> None:
        pending = self._pending.get(sequence)
        if pending is None:
            return
        pending.due = pending.entry = now + max(delay, 0.0)
        heapq.heappush(self._redeliveries, (pending.due, sequence))
        self.wake()

    def reclaim(self, now: float) -> None:
        """Redeliver unacknowledged messages now."""
        for sequence in list(self._pending):
            self.nak(sequence, 0.0, now)

    def in_progress(self, sequence: int, now: float) -> None:
        pending = self._pending.get(sequence)
        if pending is not None:
            # The heap entry is replaced when it comes up.
            pending.due = max(pending.due, now + self.spec.ack_wait)

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, until: float | None) -> None:
        """Wait for a change, or until a time by the clock."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[woken] = None
        try:
            if until is None:
                await woken
                return
            clock = self.stream.clock
            alarm = asyncio.ensure_future(clock.sleep(until - clock.time()))
            try:
                await asyncio.wait((woken, alarm), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not alarm.done():
                    alarm.cancel()
                    await asyncio.wait((alarm,))
        finally:
            self._waiters.pop(woken, None)

    def _take_again(self, limit: int, now: float, taken: list[Delivery]) -> None:
        while self._redeliveries and self._redeliveries[0][0] <= now and len(taken) < limit:
            entry, sequence = heapq.heappop(self._redeliveries)
            pending = self._pending.get(sequence)
            if pending is None or pending.entry != entry:
                continue
            if pending.due > now:
                pending.entry = pending.due
                heapq.heappush(self._redeliveries, (pending.due, sequence))
                continue
            message = self.stream.messages.get(sequence)
            if message is None:
                del self._pending[sequence]
                continue
            taken.append(self._deliver(message, pending, now))

    def _deliver(self, message: StoredMessage, pending: _Pending, now: float) -> Delivery:
        pending.attempt += 1
        pending.due = pending.entry = now + self.spec.ack_wait
        heapq.heappush(self._redeliveries, (pending.due, message.sequence))
        if len(self._redeliveries) > 2 * len(self._pending) + _SLACK:
            self._redeliveries = [(each.entry, sequence) for sequence, each in self._pending.items()]
            heapq.heapify(self._redeliveries)
        reply = f"{self.stream.name}.{self.spec.name}.{message.sequence}.{pending.attempt}"
        return message.as_delivery(self.stream.name, pending.attempt, reply)


class TimerStream(MemoryStream):
    """A stream of timers, which become messages when due."""

    def __init__(self, name: str, clock: Clock, *, duplicate_window: float) -> None:
        super().__init__(name, clock, work_queue=True, duplicate_window=duplicate_window)
        self._timers: dict[str, tuple[float, StoredMessage]] = {}
        """When each timer is due, and the message that it becomes."""
        self._order: list[tuple[float, str]] = []

    def set(self, key: str, due: float, message: StoredMessage) -> None:
        """Set or replace the timer ``key``; the message is stored when it is due."""
        self.tick(self.clock.time())
        self._timers[key] = due, message
        heapq.heappush(self._order, (due, key))
        if len(self._order) > 2 * len(self._timers) + _SLACK:
            self._order = [(at, each) for each, (at, _) in self._timers.items()]
            heapq.heapify(self._order)
        self.wake()

    def cancel(self, key: str) -> None:
        self.tick(self.clock.time())
        self._timers.pop(key, None)
        if not self._timers:
            self._order.clear()

    def tick(self, now: float) -> None:
        super().tick(now)
        while self._order and self._order[0][0] <= now:
            due, key = heapq.heappop(self._order)
            if key in self._timers and self._timers[key][0] == due:
                self._store(self._timers.pop(key)[1], now)

    def next_tick(self) -> float | None:
        return self._order[0][0] if self._order else None

    def report(self) -> dict[str, object]:
        return {**super().report(), "timers": len(self._timers)}
