"""The bus as a port: what dispatchers, plan hosts, workers and clients need of it.

Two adapters implement it, :mod:`plancast_bus.memory` and :mod:`plancast_bus.jetstream`, held to
one conformance suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plancast_bus.errors import InvalidSubject, PayloadTooLarge
from plancast_bus.events.envelope import EventEnvelope, WireEvent
from plancast_bus.ports.checkpoints import CheckpointStore
from plancast_bus.ports.effects import Effect
from plancast_bus.ports.trees import Trees
from plancast_bus.subjects import LetterWriter, Subjects
from plancast_bus.topics import Source


@dataclass(slots=True)
class Delivery:
    """A message as it came out of a stream. Its payload is not decoded."""

    subject: str
    """As stored: with the shard."""
    payload: bytes
    content_type: str | None
    message_id: str | None
    """The ``Nats-Msg-Id`` header."""
    stream: str
    sequence: int
    attempt: int
    """1 for the first delivery."""
    reply: str
    """Names the delivery to its consumer."""
    is_response: bool = False
    """It is a final response that the response stream republished; plans have no use for it."""
    tenant: str = ""
    """Of a goal: whose it is, as its publisher says in the ``Plancast-Tenant`` header, encoded as a token of a subject.
    Tenants take turns by it; it proves nothing."""
    trace: str = ""
    """The trace that it belongs to, as its publisher says; see :mod:`plancast_bus.events.trace_context`."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable consumer: everyone who consumes under the same name shares its messages."""

    name: str
    source: Source
    filters: tuple[str, ...]
    """Subjects as stored; at least one."""
    ack_wait: float = 30.0
    """Seconds after which an unacknowledged message is delivered again."""
    max_ack_pending: int = 20_000
    prefetch: bool = True
    """Whether more may be on its way than was asked for. Faster; but what waits here unseen is not kept alive,
    so it is not for consumers whose reader may be busy for longer than ``ack_wait``."""
    reclaim: bool = False
    """Whether what was delivered under this name and not acknowledged is delivered again at once when a reader begins,
    or begins anew after a lost connection, instead of after ``ack_wait``. For consumers of few readers that recognise
    what they hold, since it comes to them again, too."""


class Consumer(Protocol):
    """Reads one durable consumer. One fetch at a time."""

    async def fetch(self, limit: int) -> list[Delivery]:
        """At least one and at most ``limit`` messages; waits until there is one."""
        ...

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Tell the stream that these are done. Not confirmed: a lost one is delivered again."""
        ...

    async def nak(self, delivery: Delivery, delay: float = 0.0) -> None:
        """Have it delivered again, after ``delay`` seconds."""
        ...

    def age(self, delivery: Delivery) -> float | None:
        """Seconds since a delivery in hand was stored, by the clocks of server and reader; None when not known."""
        ...

    async def in_progress(self, deliveries: Iterable[Delivery]) -> None:
        """Start the acknowledgement time of these anew."""
        ...

    async def close(self) -> None:
        """Stop reading; what was fetched and not acknowledged is delivered again to others."""
        ...


class Subscription(Protocol):
    """A running subscription to notices."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed, kept with the reason."""

    number: int
    reason: str
    """Short kind, such as ``undecodable``."""
    detail: str
    subject: str
    """The subject as published."""
    payload: bytes
    content_type: str | None
    message_id: str | None
    time: float
    """When it was put aside, seconds since the epoch, UTC."""
    cut_from: int | None = None
    """Bytes of the payload as it came, when it was too large for a letter and only its first part was kept; such a
    letter cannot be replayed."""
    writer: LetterWriter = "runtime"
    """Who has put it aside. What a worker's login says of it may not be so: replayed, it is a request or nothing."""
    more: int = 0
    """Further messages in the letter, put aside for the same reason in the same flood: the fields above are those of
    the first one, and replaying the letter replays all."""


CUT_BYTES = 65_536
"""Of a payload that is too large for a letter, this much is kept at most."""


def refuse_replay(letter: DeadLetter, subjects: Subjects) -> None:
    """
    Raises:
        InvalidSubject: it is no event: a refused checkpoint, or a letter that the runtime has not written.
        PayloadTooLarge: only the first part of the message was kept, so that it cannot be replayed.
    """
    if not subjects.is_replayable(letter.subject, letter.writer):
        allowed = (
            "no event's subject" if letter.writer == "runtime" else "no request's, and a worker's login has written it"
        )
        raise InvalidSubject(
            f"dead letter {letter.number} cannot be replayed: {letter.subject[:200]!r} is {allowed}. It is a refused "
            "checkpoint, or was not written by plancast, and is kept to be looked at"
        )
    if letter.cut_from is not None:
        raise PayloadTooLarge(
            f"dead letter {letter.number} cannot be replayed: it was too large to be kept whole, and only the first "
            f"{len(letter.payload)} of its {letter.cut_from} bytes are there"
        )


class DeadLetters(Protocol):
    """The messages that could not be processed."""

    async def put(self, delivery: Delivery, reason: str, detail: str) -> None:
        """Keep a message with the reason; repeating it for the same delivery keeps one.

        Of a payload that is too large for a letter the first part is kept; it is put aside all the same.
        """
        ...

    async def put_all(self, reason: str, messages: Sequence[tuple[Delivery, str]]) -> None:
        """Keep messages, each with its detail, in few letters where they are many.

        Repeating it for the same messages keeps them once; in other company they may be kept twice.
        """
        ...

    async def count(self) -> int:
        """How many messages there are."""
        ...

    def list(self, *, limit: int | None = None, after: int = 0) -> AsyncIterator[DeadLetter]:
        """Oldest first; those behind a number."""
        ...

    async def get(self, number: int) -> DeadLetter:
        """
        Raises:
            DeadLetterNotFound: there is none of this number.
        """
        ...

    async def replay(self, number: int) -> None:
        """Publish it again as it came, and forget it here.

        Raises:
            DeadLetterNotFound: there is none of this number.
            InvalidSubject: it is no event, but a refused checkpoint, say.
            PayloadTooLarge: only its first part was kept.
        """
        ...


class Registry(Protocol):
    """Registrations with a lifetime: apps, agents, events."""

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        """Register; it is gone ``ttl`` seconds after its last put."""
        ...

    async def get(self, kind: str, key: str) -> dict[str, Any] | None: ...

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        """All registrations of a kind, by key."""
        ...

    async def delete(self, kind: str, key: str) -> None: ...


Notice = Callable[[str, bytes, str | None], Awaitable[None]]
"""Receives (subject, payload, content type) of a notice."""


class Bus(Protocol):
    """A connection to where events travel and checkpoints rest."""

    @property
    def subjects(self) -> Subjects: ...

    @property
    def checkpoints(self) -> CheckpointStore: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def trees(self) -> Trees: ...

    async def publish(self, event: EventEnvelope, *, trace: str = "") -> None:
        """Publish an event and wait until it is durable; its id makes a repetition harmless.

        Args:
            event: What is published.
            trace: The trace that it belongs to; see :mod:`plancast_bus.events.trace_context`.

        Raises:
            PublishRefused: the stream is full, or none takes the subject.
            PayloadTooLarge: over the limit of settings or server.
            BusUnavailable: no acknowledgement in time; it may have been stored all the same.
        """
        ...

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        """Carry out effects, pipelined, and wait until all are acknowledged.

        Returns the stream sequence of each published event (of the first one, when it was a
        repetition); 0 for effects that publish none.

        Raises:
            PublishRefused, BusUnavailable: at least one was not acknowledged; emit all again.
        """
        ...

    def begin_emit(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        """Begin to carry out effects, at once where that is possible; returns the future of what :meth:`emit` does."""
        ...

    def encode(self, event: EventEnvelope | WireEvent) -> tuple[bytes, str]:
        """An event as bytes and their content type, in the configured wire format."""
        ...

    async def stored_events(
        self, topic: str, correlation_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Delivery]:
        """The events of a topic and a correlation id that their stream holds at this moment, oldest first.

        From streams of what must be processed they are gone once acknowledged. One look-up an event: for rare use.
        They are not delivered by this: their ``attempt`` is 0, and they have no ``reply``.

        Args:
            topic: The topic.
            correlation_id: The correlation id.
            after: The sequence that the events come after.
            limit: Events at most.

        Raises:
            BusUnavailable: the stream cannot be read.
        """
        ...

    def consume(self, spec: ConsumerSpec) -> Consumer:
        """Read a durable consumer, created when it is not there."""
        ...

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create a durable consumer for readers whose login cannot; what its stream holds by then is read too."""
        ...

    async def delete_consumer(self, source: Source, name: str) -> None: ...

    def new_inbox(self) -> str:
        """A subject of one's own for notices."""
        ...

    async def subscribe(self, subject: str, notice: Notice) -> Subscription:
        """Receive what is published on a subject from now on; nothing is kept, repeated or acknowledged."""
        ...

    async def ensure_streams(self) -> None:
        """Create or update the streams; safe to call from many processes at once."""
        ...

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Have a callback called after each time that the connection came back."""
        ...

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Have a callback called with the reason when the connection is closed for good, other than by :meth:`close`.

        Nothing is to be done over this bus any more: a process of the runtime ends, to be started anew.
        """
        ...

    async def health(self) -> dict[str, Any]:
        """What the server and the streams are: for people and for doctors."""
        ...

    async def close(self) -> None: ...
