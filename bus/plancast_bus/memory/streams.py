"""Streams in memory, and their durable consumers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, PublishRefused
from plancast_bus.memory.subscriptions import SubjectIndex, overlap
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.schedule import Schedule
from plancast_bus.topics import admitted_bytes, stream_full_message


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


class MemoryStream:
    """A stream: a work queue, which drops acknowledged messages, or one bounded by age."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        duplicate_window: float,
        *,
        work_queue: bool = True,
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

    def stored(self) -> list[StoredMessage]:
        """All messages, also those that timers will become."""
        self.tick(self.clock.time())
        return list(self.messages.values())

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

    def has_durable(self, name: str) -> bool:
        return name in self._durables

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
        self._attempts: dict[int, int] = {}
        """Deliveries of each unacknowledged message."""
        self._redeliveries: Schedule[int] = Schedule()
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def unacknowledged(self) -> int:
        return len(self._attempts)

    def offer(self, sequence: int) -> None:
        self._queue.append(sequence)
        self.wake()

    def requeue(self, sequences: Iterable[int]) -> None:
        """Replace the queue by these messages, except those already delivered."""
        self._queue = deque(each for each in sequences if each not in self._attempts)
        self.wake()

    def take(self, limit: int) -> list[Delivery]:
        """Deliver up to ``limit`` messages, redeliveries first."""
        taken: list[Delivery] = []
        now = self.stream.clock.time()
        self.stream.tick(now)
        messages = self.stream.messages
        while len(taken) < limit and (again := self._redeliveries.pop(now)) is not None:
            if again in messages:
                taken.append(self._deliver(messages[again], now))
            else:
                del self._attempts[again]
        while self._queue and len(taken) < limit and len(self._attempts) < self.spec.max_ack_pending:
            message = messages.get(self._queue.popleft())
            if message is not None:
                taken.append(self._deliver(message, now))
        return taken

    def ack(self, sequence: int) -> None:
        if self._attempts.pop(sequence, None) is None:
            return
        self._redeliveries.remove(sequence)
        if self.stream.work_queue:
            self.stream.remove(sequence)
        if self._queue:
            self.wake()

    def nak(self, sequence: int, delay: float = 0.0) -> None:
        if sequence in self._attempts:
            self._redeliveries.set(sequence, self.stream.clock.time() + max(delay, 0.0))
            self.wake()

    def reclaim(self) -> None:
        """Redeliver unacknowledged messages now."""
        for sequence in list(self._attempts):
            self.nak(sequence)

    def in_progress(self, sequence: int) -> None:
        self._redeliveries.postpone(sequence, self.stream.clock.time() + self.spec.ack_wait)

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self) -> None:
        """Wait for a change, a redelivery, or a message that the stream generates."""
        times = [each for each in (self._redeliveries.next_due(), self.stream.next_tick()) if each is not None]
        until = min(times, default=None)
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

    def _deliver(self, message: StoredMessage, now: float) -> Delivery:
        attempt = self._attempts[message.sequence] = self._attempts.get(message.sequence, 0) + 1
        self._redeliveries.set(message.sequence, now + self.spec.ack_wait)
        reply = f"{self.stream.name}.{self.spec.name}.{message.sequence}.{attempt}"
        return message.as_delivery(self.stream.name, attempt, reply)


class TimerStream(MemoryStream):
    """A stream of timers, which become messages when due."""

    def __init__(self, name: str, clock: Clock, duplicate_window: float) -> None:
        super().__init__(name, clock, duplicate_window)
        self._timers: dict[str, StoredMessage] = {}
        """The message that each timer becomes."""
        self._schedule: Schedule[str] = Schedule()

    def set(self, key: str, due: float, message: StoredMessage) -> None:
        """Set or replace the timer ``key``; the message is stored when it is due."""
        self.tick(self.clock.time())
        self._timers[key] = message
        self._schedule.set(key, due)
        self.wake()

    def cancel(self, key: str) -> None:
        self.tick(self.clock.time())
        self._timers.pop(key, None)
        self._schedule.remove(key)

    def tick(self, now: float) -> None:
        super().tick(now)
        while (key := self._schedule.pop(now)) is not None:
            self._store(self._timers.pop(key), now)

    def stored(self) -> list[StoredMessage]:
        return [*super().stored(), *self._timers.values()]

    def next_tick(self) -> float | None:
        return self._schedule.next_due()

    def report(self) -> dict[str, object]:
        return {**super().report(), "timers": len(self._timers)}
