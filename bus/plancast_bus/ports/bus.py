"""The bus port, implemented by :mod:`plancast_bus.memory` and :mod:`plancast_bus.jetstream`.

Both adapters pass one conformance suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plancast_bus.clock import Clock
from plancast_bus.errors import InvalidSubject, PayloadTooLarge
from plancast_bus.events.envelope import EventEnvelope, WireEvent
from plancast_bus.events.references import Writer
from plancast_bus.ports.checkpoints import CheckpointStore
from plancast_bus.ports.effects import Effect
from plancast_bus.ports.progress import ProgressNotes
from plancast_bus.ports.registry import Registry
from plancast_bus.ports.schedules import ScheduleStore
from plancast_bus.ports.seals import Seals
from plancast_bus.ports.sessions import Sessions
from plancast_bus.ports.trees import Trees
from plancast_bus.ports.values import ValueStore
from plancast_bus.subjects import Subjects
from plancast_bus.topics import Source


@dataclass(slots=True)
class Delivery:
    """A message from a stream, with its payload not yet decoded."""

    subject: str
    """The stored subject, with the shard."""
    payload: bytes
    content_type: str | None
    message_id: str | None
    """The ``Nats-Msg-Id`` header."""
    stream: str
    sequence: int
    attempt: int
    """1 for the first delivery."""
    reply: str
    """Identifies the delivery to its consumer."""
    is_response: bool = False
    """The message is a final response republished by the response stream, which plans ignore."""
    tenant: str = ""
    """Tenant of a goal from the ``Plancast-Tenant`` header, encoded as a subject token. Used for fair scheduling; it is
    the publisher's claim, not verified."""
    trace: str = ""
    """Trace context from the publisher; see :mod:`plancast_bus.events.trace_context`."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable consumer; readers with the same name share its messages."""

    name: str
    source: Source
    filters: tuple[str, ...]
    """Filters for stored subjects; at least one."""
    ack_wait: float = 30.0
    """Seconds after which an unacknowledged message is redelivered."""
    max_ack_pending: int = 20_000
    prefetch: bool = True
    """Pull messages before :meth:`Consumer.fetch` asks for them. Faster, but buffered messages are not kept alive, so
    not for readers that may be busy for longer than ``ack_wait``."""
    reclaim: bool = False
    """Redeliver unacknowledged messages of this consumer at once when a reader starts or reconnects, instead of after
    ``ack_wait``. For consumers with few readers, which must recognise messages that they already hold."""


class Consumer(Protocol):
    """Reads one durable consumer, one fetch at a time."""

    async def fetch(self, limit: int) -> list[Delivery]:
        """Wait for messages; return at least one and at most ``limit``."""
        ...

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge deliveries. Not confirmed: one whose acknowledgement is lost is redelivered."""
        ...

    async def nak(self, delivery: Delivery, delay: float = 0.0) -> None:
        """Request redelivery after ``delay`` seconds."""
        ...

    def age(self, delivery: Delivery) -> float | None:
        """Seconds since an in-flight delivery was stored, None when unknown."""
        ...

    async def in_progress(self, deliveries: Iterable[Delivery]) -> None:
        """Restart the ``ack_wait`` of deliveries."""
        ...

    def reclaim(self) -> None:
        """Have all unacknowledged messages redelivered soon, also those of this reader; its spec has ``reclaim``."""
        ...

    async def close(self) -> None:
        """Stop reading; unacknowledged messages are redelivered to others."""
        ...


class Subscription(Protocol):
    """An active subscription to notices."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed, stored with the reason."""

    number: int
    reason: str
    """Short code, such as ``undecodable``."""
    detail: str
    subject: str
    """The subject as published."""
    payload: bytes
    content_type: str | None
    message_id: str | None
    time: float
    """Time of storing, seconds since the epoch, UTC."""
    cut_from: int | None = None
    """Original size of a payload that was too large and therefore truncated; such a letter cannot be replayed."""
    writer: Writer = "runtime"
    """Writer of the letter. A worker's login is not trusted: its letters can only be replayed as requests."""
    more: int = 0
    """Further messages in the letter, from the same flood with the same reason. The fields above describe the first;
    replaying the letter replays all."""


CUT_BYTES = 65_536
"""Maximum bytes kept of a payload that is too large for a letter."""


def refuse_replay(letter: DeadLetter, subjects: Subjects) -> None:
    """Check that a letter can be replayed.

    Raises:
        InvalidSubject: it is not an event but, for example, a rejected checkpoint.
        PayloadTooLarge: the payload was truncated.
    """
    if not subjects.is_replayable(letter.subject, letter.writer):
        allowed = (
            "not the subject of an event"
            if letter.writer == "runtime"
            else "not the subject of a request, and a worker's login wrote the letter"
        )
        raise InvalidSubject(
            f"dead letter {letter.number} cannot be replayed: {letter.subject[:200]!r} is {allowed}. It is a rejected "
            "checkpoint or was not written by plancast, and is kept for inspection"
        )
    if letter.cut_from is not None:
        raise PayloadTooLarge(
            f"dead letter {letter.number} cannot be replayed: it was too large, and only the first "
            f"{len(letter.payload)} of its {letter.cut_from} bytes were kept"
        )


class DeadLetters(Protocol):
    """Store of messages that could not be processed."""

    async def put(self, delivery: Delivery, reason: str, detail: str) -> None:
        """Store a message with the reason; idempotent per delivery. A payload that is too large is truncated."""
        ...

    async def put_all(self, reason: str, messages: Sequence[tuple[Delivery, str]]) -> None:
        """Store messages, each with its detail; many messages share a letter.

        Idempotent for the same list of messages; in another list, a message may be stored twice.
        """
        ...

    async def count(self) -> int:
        """Return the number of messages."""
        ...

    def list(self, *, limit: int | None = None, after: int = 0) -> AsyncIterator[DeadLetter]:
        """List letters after a number, oldest first."""
        ...

    def with_references(self) -> AsyncGenerator[DeadLetter]:
        """List the messages whose data is a reference; each one of a flood's."""
        ...

    async def get(self, number: int) -> DeadLetter:
        """Return a letter.

        Raises:
            DeadLetterNotFound: there is none of this number.
        """
        ...

    async def replay(self, number: int) -> None:
        """Publish a letter again as it arrived, and remove it.

        Raises:
            DeadLetterNotFound: there is none of this number.
            InvalidSubject: it is not an event but, for example, a rejected checkpoint.
            PayloadTooLarge: its payload was truncated.
        """
        ...


Notice = Callable[[str, bytes, str | None], Awaitable[None]]
"""Handles a notice: subject, payload, content type."""


class Bus(Protocol):
    """A connection to the streams of events and to the stores."""

    @property
    def subjects(self) -> Subjects: ...

    @property
    def clock(self) -> Clock:
        """The time by which timers fire: the server's, where it can be read."""
        ...

    @property
    def checkpoints(self) -> CheckpointStore: ...

    @property
    def values(self) -> ValueStore: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def trees(self) -> Trees: ...

    @property
    def seals(self) -> Seals: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def progress(self) -> ProgressNotes: ...

    async def publish(self, event: EventEnvelope, *, trace: str = "") -> None:
        """Publish an event with its trace context and wait until it is durable; idempotent by the event's id.

        The event is sent as :meth:`prepare` encodes it.

        Raises:
            PublishRefused: the stream is full, or none takes the subject.
            PayloadTooLarge: the event exceeds the limit of settings or server.
            BusUnavailable: no acknowledgement in time; the event may be stored nevertheless.
        """
        ...

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        """Execute effects, pipelined, and wait until all are acknowledged.

        Returns the stream sequence of each published event (of the original, for a duplicate); 0 for other effects.

        Raises:
            PublishRefused, BusUnavailable: at least one was not acknowledged; emit all again.
        """
        ...

    def begin_emit(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        """Start :meth:`emit`, sending at once where possible; return the future of its result."""
        ...

    def encode(self, event: EventEnvelope | WireEvent) -> tuple[bytes, str]:
        """Encode an event in the configured wire format; return bytes and content type."""
        ...

    async def prepare(self, event: EventEnvelope) -> tuple[bytes, str]:
        """Encode an event for sending: data that is too large for a message is stored apart, and is a reference then.

        Raises:
            PayloadTooLarge: the data, or the event without it, exceeds the limit of settings.
            PublishRefused, BusUnavailable: the data is not known to be stored.
        """
        ...

    async def stored_events(
        self, topic: str, correlation_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Delivery]:
        """Return events of a topic and correlation id that are in their stream now after a sequence, oldest first.

        Work queues drop events once acknowledged. One request per event: for rare use. The events are not delivered by
        this: their ``attempt`` is 0 and ``reply`` empty.

        Raises:
            AccessDenied: this login may not read streams of events.
            BusUnavailable: the stream cannot be read.
        """
        ...

    async def events_with_references(self, correlation_id: str) -> list[Delivery]:
        """Return the stored events, responses and timers of a correlation id whose data is a reference.

        One request for each message of the correlation id, as :meth:`stored_events`.
        """
        ...

    def consume(self, spec: ConsumerSpec) -> Consumer:
        """Read a durable consumer; it is created if missing."""
        ...

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create a durable consumer for readers whose login may not. It starts with the messages already stored."""
        ...

    async def delete_consumer(self, source: Source, name: str) -> None: ...

    def new_inbox(self) -> str:
        """Return a unique subject for notices."""
        ...

    async def subscribe(self, subject: str, notice: Notice) -> Subscription:
        """Subscribe to messages published from now on; delivery is at most once."""
        ...

    async def serve_values(self) -> Subscription:
        """Serve contents of values to logins that may not read their stream, each by its digest."""
        ...

    async def serve_snapshots(self) -> Subscription:
        """Have snapshots of streams sent to logins that take backups, and may not name where they are sent."""
        ...

    async def ensure_streams(self) -> None:
        """Create or update the streams; safe to call from many processes at once."""
        ...

    async def restore(self, consumers: Sequence[ConsumerSpec] = ()) -> list[str]:
        """Make the streams, and these consumers, again where someone has deleted them; return the names of those.

        The sequences of a new stream are greater than those of the one before. Where one was made, there is a notice on
        ``subjects.restored``.

        Raises:
            AccessDenied: this login may not create streams.
            BusUnavailable: the server does not respond, or a lost key cannot be stored again.
        """
        ...

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Register a callback for each reconnect."""
        ...

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Register a callback, called with the reason when the connection is lost for good, not by :meth:`close`.

        The bus cannot be used any more: a process of the runtime exits, to be restarted.
        """
        ...

    async def health(self) -> dict[str, Any]:
        """Report the state of server and streams, for people and for ``plancast doctor``."""
        ...

    async def close(self) -> None: ...
