"""A connection to an in-memory world, and its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from plancast_bus import fault_injection
from plancast_bus.clock import Clock
from plancast_bus.errors import BusUnavailable
from plancast_bus.event_data import stored_apart
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic, WireEvent
from plancast_bus.memory.broker import MemoryWorld
from plancast_bus.memory.checkpoints import MemoryCheckpoints
from plancast_bus.memory.dead_letters import MemoryDeadLetters
from plancast_bus.memory.faults import FaultPlan, Point
from plancast_bus.memory.progress import MemoryProgress
from plancast_bus.memory.registry import MemoryRegistry
from plancast_bus.memory.schedules import MemorySchedules
from plancast_bus.memory.seals import MemorySeals
from plancast_bus.memory.streams import MemoryStream
from plancast_bus.memory.subscriptions import MemorySubscription
from plancast_bus.memory.values import MemoryValues
from plancast_bus.ports.bus import ConsumerSpec, DeadLetters, Delivery, Notice
from plancast_bus.ports.checkpoints import CheckpointStore
from plancast_bus.ports.effects import (
    DropAlias,
    Effect,
    NoteAlias,
    Publish,
    Respond,
    SealHistory,
    Share,
    Withdraw,
    copy_id,
)
from plancast_bus.ports.progress import ProgressNotes
from plancast_bus.ports.registry import Registry
from plancast_bus.ports.schedules import ScheduleStore
from plancast_bus.ports.seals import Seals
from plancast_bus.ports.sessions import KIND, Sessions
from plancast_bus.ports.trees import Trees
from plancast_bus.ports.values import ValueStore
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import Subjects, tenant_of
from plancast_bus.topics import SOURCES, Source


class MemoryBus:
    """A :class:`~plancast_bus.ports.bus.Bus` in memory.

    Given settings, or nothing, it creates a world; given a world, it is a further connection to that one. Closing a
    connection does not change the world.
    """

    def __init__(
        self,
        world: MemoryWorld | BusSettings | None = None,
        *,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
    ) -> None:
        if isinstance(world, MemoryWorld):
            if clock is not None:
                raise ValueError("a world has a clock: give it to MemoryWorld(clock=...)")
            self.world: MemoryWorld = world
        else:
            self.world = MemoryWorld(world, clock=clock)
        self.settings: BusSettings = self.world.settings
        self.subjects: Subjects = self.world.subjects
        self.clock: Clock = self.world.clock
        self.values: ValueStore = MemoryValues(self)
        self._plans = MemoryCheckpoints(self)
        self.checkpoints: CheckpointStore = self._plans
        self.dead_letters: DeadLetters = MemoryDeadLetters(self)
        self.registry: Registry = MemoryRegistry(self)
        self.schedules: ScheduleStore = MemorySchedules(self)
        self.trees: Trees = Trees(self.registry)
        self.sessions: Sessions = Sessions(self.registry)
        self.seals: Seals = MemorySeals()
        self.progress: ProgressNotes = MemoryProgress(self)
        self.faults = faults
        self.closed: bool = False
        self._consumers: set[MemoryConsumer] = set()
        self._subscriptions: set[MemorySubscription] = set()
        self._on_reconnect: list[Callable[[], None]] = []

    async def publish(self, event: EventEnvelope, *, trace: str = "") -> None:
        subject = self.subjects.event(event.topic, event.correlation_id, event.type)
        payload, content_type = await self.prepare(event)
        await self.turn()
        if event.topic == EventTopic.ACTION_REQUESTS:
            self.world.streams["requests"].admit(len(payload))
        await self._carry_out(Publish(subject, payload, event.id, content_type, tenant_of(event), trace))

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        await self.turn()
        return await fault_injection.one_by_one(effects, self._carry_out)

    def begin_emit(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        return asyncio.get_running_loop().create_task(self.emit(effects))

    def encode(self, event: EventEnvelope | WireEvent) -> tuple[bytes, str]:
        wire_format = self.settings.wire_format
        return codec.encode(event, wire_format), codec.CONTENT_TYPES[wire_format]

    async def prepare(self, event: EventEnvelope) -> tuple[bytes, str]:
        payload, content_type = self.encode(event)
        if len(payload) <= self.settings.max_event_bytes:
            return payload, content_type
        return await stored_apart(self.values, event, content_type, self.settings)

    async def stored_events(
        self, topic: str, correlation_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Delivery]:
        await self.turn()
        stream = self.world.streams[SOURCES[topic]]
        found = [
            each.as_delivery(stream.name)
            for each in stream.messages.values()
            if each.sequence > after
            and (address := self.subjects.parse_stored(each.subject)).correlation_id == correlation_id
            and address.topic == topic
        ]
        return found[:limit]

    async def events_with_references(self, correlation_id: str) -> list[Delivery]:
        await self.turn()
        found = [
            each.as_delivery(stream.name)
            for stream in self.world.streams.values()
            for each in stream.stored()
            if each.content_type in codec.REFERENCE_TYPES
        ]
        return [each for each in found if self.subjects.parse_stored(each.subject).correlation_id == correlation_id]

    def consume(self, spec: ConsumerSpec) -> MemoryConsumer:
        self.check_open()
        stream = self.world.streams[spec.source]
        consumer = MemoryConsumer(self, stream, spec)
        self._consumers.add(consumer)
        return consumer

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        await self.turn()

    async def delete_consumer(self, source: Source, name: str) -> None:
        await self.turn()
        self.world.streams[source].drop_durable(name)

    def new_inbox(self) -> str:
        return f"_INBOX.{uuid4().hex}"

    async def subscribe(self, subject: str, notice: Notice) -> MemorySubscription:
        await self.turn()
        subscription = MemorySubscription(notice, lambda: self._unsubscribe(subject, subscription))
        self.world.notices.add(subject, subscription)
        self._subscriptions.add(subscription)
        return subscription

    async def serve_values(self) -> MemorySubscription:
        async def ignore(subject: str, payload: bytes, content_type: str | None) -> None:
            """Connections in memory read the values themselves."""

        return await self.subscribe(self.subjects.value_reads, ignore)

    async def serve_snapshots(self) -> MemorySubscription:
        async def ignore(subject: str, payload: bytes, content_type: str | None) -> None:
            """Streams in memory have no snapshots."""

        return await self.subscribe(self.subjects.snapshot_request("*"), ignore)

    async def ensure_streams(self) -> None:
        await self.turn()

    async def restore(self, consumers: Sequence[ConsumerSpec] = ()) -> list[str]:
        return []  # nobody deletes streams in memory

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Register a callback for :meth:`reconnect`; the connection itself never breaks."""
        self._on_reconnect.append(callback)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Do nothing: a connection in memory is never lost for good."""

    def reconnect(self) -> None:
        """Simulate a reconnect."""
        for callback in self._on_reconnect:
            callback()

    async def health(self) -> dict[str, Any]:
        await self.turn()
        return {"adapter": "memory", **self.world.report()}

    async def close(self) -> None:
        self.closed = True
        self._plans.close()
        for consumer in list(self._consumers):
            await consumer.close()
        for subscription in list(self._subscriptions):
            await subscription.close()

    # For the other modules of this adapter.

    def check_open(self) -> None:
        if self.closed:
            raise BusUnavailable("this connection to the bus is closed")

    async def turn(self) -> None:
        """Yield to the event loop, as a call to a server would."""
        self.check_open()
        await asyncio.sleep(0)
        self.check_open()

    async def point(self, point: Point, subject: str) -> None:
        if self.faults is not None:
            await self.faults(point, subject)

    def forget_consumer(self, consumer: MemoryConsumer) -> None:
        self._consumers.discard(consumer)

    def _unsubscribe(self, subject: str, subscription: MemorySubscription) -> None:
        self.world.notices.remove(subject, subscription)
        self._subscriptions.discard(subscription)

    async def _carry_out(self, effect: Effect) -> int:
        if isinstance(effect, Withdraw) and effect.settles:
            await self._copy_withdrawn(effect)
        if self.faults is None:
            return self.world.carry_out(effect)
        subject = self._subject(effect)
        await self.point("publish.before", subject)
        self.check_open()
        sequence = self.world.carry_out(effect)
        await self.point("publish.after", subject)
        return sequence

    async def _copy_withdrawn(self, effect: Withdraw) -> None:
        await self.point("publish.before", copy_id(effect))
        self.check_open()
        self.world.copy_withdrawn(effect)
        await self.point("publish.after", copy_id(effect))
        self.check_open()

    def _subject(self, effect: Effect) -> str:
        if isinstance(effect, Publish):
            return effect.subject
        if isinstance(effect, Respond):
            return self.subjects.response(effect.topic, effect.correlation_id, effect.event_type)
        if isinstance(effect, Withdraw):
            return f"{self.world.streams['requests'].name}.{effect.sequence}"
        if isinstance(effect, SealHistory):
            return self.subjects.history(effect.plan, effect.first_revision)
        if isinstance(effect, NoteAlias | DropAlias):
            return self.subjects.alias(effect.correlation_id)
        if isinstance(effect, Share):
            return self.subjects.registry(KIND, effect.session)
        return self.subjects.timer(effect.plan, effect.name)


class MemoryConsumer:
    """A :class:`~plancast_bus.ports.bus.Consumer` in memory."""

    def __init__(self, bus: MemoryBus, stream: MemoryStream, spec: ConsumerSpec) -> None:
        self._bus = bus
        self._stream = stream
        self._spec = spec
        self._durable = stream.durable(spec)
        self._closed = False
        if spec.reclaim:
            self.reclaim()
            bus.on_reconnect(self.reclaim)

    async def fetch(self, limit: int) -> list[Delivery]:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        await self._bus.turn()
        while True:
            self._check_open()
            if self._durable.deleted:
                self._durable = self._stream.durable(self._spec)
            taken = self._durable.take(limit)
            if taken:
                return taken
            await self._durable.wait()

    def reclaim(self) -> None:
        if not self._closed:
            self._durable.reclaim()

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        self._bus.check_open()
        for delivery in deliveries:
            try:
                await self._bus.point("ack", delivery.subject)
            except BusUnavailable:
                continue
            self._durable.ack(delivery.sequence)

    async def nak(self, delivery: Delivery, delay: float = 0.0) -> None:
        self._bus.check_open()
        self._durable.nak(delivery.sequence, delay)

    def age(self, delivery: Delivery) -> float | None:
        stored = self._stream.messages.get(delivery.sequence)
        return None if stored is None else max(0.0, self._stream.clock.time() - stored.time)

    async def in_progress(self, deliveries: Iterable[Delivery]) -> None:
        self._bus.check_open()
        for delivery in deliveries:
            self._durable.in_progress(delivery.sequence)

    async def close(self) -> None:
        self._closed = True
        self._bus.forget_consumer(self)
        self._durable.wake()

    def _check_open(self) -> None:
        self._bus.check_open()
        if self._closed:
            raise BusUnavailable("this consumer is closed")
