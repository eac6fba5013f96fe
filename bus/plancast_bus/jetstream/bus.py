"""The bus on JetStream, put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nats import errors as nats_errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from plancast_bus.errors import AccessDenied, BusUnavailable, PayloadTooLarge, UnsupportedServer
from plancast_bus.events.codec import CONTENT_TYPES, encode
from plancast_bus.events.envelope import EventEnvelope, EventTopic, WireEvent
from plancast_bus.events.nats_binding import as_cloud_event, read_message
from plancast_bus.events.trace_context import write_trace
from plancast_bus.jetstream.client.api import CONSUMER_NOT_FOUND, NO_JETSTREAM, STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.login import ConnectedUser, read_user
from plancast_bus.jetstream.client.request_reply import NoResponders, Requester
from plancast_bus.jetstream.messaging.consumer import PullConsumer, as_delivery, create_consumer
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.messaging.emitter import Emitter
from plancast_bus.jetstream.messaging.placeholders import Placeholders
from plancast_bus.jetstream.messaging.publisher import TENANT, Publisher
from plancast_bus.jetstream.messaging.stream_reader import StreamReader
from plancast_bus.jetstream.stores.checkpoints import JetStreamCheckpoints
from plancast_bus.jetstream.stores.dead_letters import JetStreamDeadLetters
from plancast_bus.jetstream.stores.key_store import KeyStore
from plancast_bus.jetstream.stores.registry import JetStreamRegistry
from plancast_bus.jetstream.stores.trees import JetStreamTrees
from plancast_bus.jetstream.streams import definitions
from plancast_bus.jetstream.streams.admission import Admission
from plancast_bus.jetstream.streams.health import examine
from plancast_bus.ports.bus import ConsumerSpec, Delivery, Notice
from plancast_bus.ports.effects import Effect
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects, encode_token, message_id_of, tenant_of
from plancast_bus.topics import SOURCES, Source

logger = logging.getLogger(__name__)


async def connect(nats: NatsSettings, bus: BusSettings) -> JetStreamBus:
    """Connect to NATS; the streams are made by :meth:`JetStreamBus.ensure_streams`.

    Raises:
        BusUnavailable: no connection in time, or refused credentials.
        UnsupportedServer: the server is too old, or has no JetStream.
    """
    connection = Connection(nats)
    await connection.open()
    try:
        requester = Requester(connection)
        await requester.open()
        restricted = not await _has_jetstream(connection, JetStreamApi(requester))
        return JetStreamBus(connection, requester, bus, restricted=restricted)
    except BaseException:
        await connection.close()
        raise


async def _has_jetstream(connection: Connection, api: JetStreamApi) -> bool:
    """Whether the login's own account has JetStream; False where only the server has.

    Raises:
        UnsupportedServer: the server has none.
    """
    try:
        await api.call("INFO")
        return True
    except AccessDenied:
        raise
    except (ApiError, BusUnavailable) as error:
        if isinstance(error, ApiError) and error.code == NO_JETSTREAM:
            return False
        # A cluster that is electing its leader does not answer, or says so; that is no lack of JetStream.
        electing = isinstance(error, BusUnavailable) and not isinstance(error.__cause__, NoResponders)
        if electing or not connection.alive:
            raise
        raise UnsupportedServer(
            f"the nats-server at {connection.where} runs without JetStream: {error}. Start it with -js, or enable "
            "JetStream in its config."
        ) from error


class JetStreamBus:
    """A connection to where events travel and checkpoints rest.

    Args:
        connection: To the server.
        requester: The connection's.
        settings: Of streams and events.
        restricted: The login's account has no JetStream: what it may publish, read and hear is imported from the
            account of the runtime, which owns the streams.
    """

    def __init__(
        self, connection: Connection, requester: Requester, settings: BusSettings, *, restricted: bool = False
    ) -> None:
        self.subjects = Subjects(settings.prefix)
        self.restricted = restricted
        self._settings = settings
        self._connection = connection
        self._names = definitions.StreamNames.of(settings.prefix)
        self._requester = requester
        self._api = JetStreamApi(requester)
        self._publisher = Publisher(requester, self.subjects, settings.group_commit)
        self._placeholders = Placeholders(self._api, self._publisher, self._names, self.subjects)
        # A stream of another account does not tell how full it is. It refuses what is over its bound.
        self._admission = None if restricted else Admission(self._api, self._names.requests)
        reader = (DirectReader if restricted else StreamReader)(connection, self._api)
        self._emitter = Emitter(
            connection.client, self._api, self._publisher, self.subjects, cloudevents=settings.cloudevents
        )
        self._keys = KeyStore(
            self._api, self._publisher, self.subjects, settings.checkpoint_keys, restricted=restricted
        )
        connection.on_reconnect(self._keys.forget)
        self.dead_letters = JetStreamDeadLetters(
            self._api, self._publisher, reader, self.subjects, "login" if restricted else "runtime"
        )
        self.checkpoints = JetStreamCheckpoints(
            self._api,
            self._publisher,
            reader,
            self.subjects,
            self._keys,
            self.dead_letters,
            replicated=settings.replicas > 1 and not restricted,
        )
        self.registry = JetStreamRegistry(self._api, self._publisher, reader, self.subjects)
        self.trees = JetStreamTrees(self._api, self._publisher, self.subjects)

    async def publish(self, event: EventEnvelope, *, trace: str = "") -> None:
        """Publish an event and wait until it is durable; its id makes a repetition harmless.

        Raises:
            PublishRefused, PayloadTooLarge, BusUnavailable: see the contract.
        """
        payload, content_type = self.encode(event)
        if len(payload) > self._settings.max_event_bytes:
            raise PayloadTooLarge(
                f"event {event.type} of {len(payload)} bytes is over max_event_bytes, {self._settings.max_event_bytes}"
            )
        subject = self.subjects.event(event.topic, event.correlation_id, event.type)
        headers = {"Nats-Msg-Id": message_id_of(event.id), "Content-Type": content_type}
        if self._admission is not None and event.topic == EventTopic.ACTION_REQUESTS:
            await self._admission.admit(len(payload))
        if tenant := tenant_of(event):
            headers[TENANT] = tenant
        if trace:
            write_trace(trace, headers)
        if self._settings.cloudevents:
            payload, attributes = as_cloud_event(payload, content_type)
            headers |= attributes
        await self._publisher.publish_acked(subject, payload, headers)

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        """Carry out effects, pipelined, wait until all are acknowledged, and return the events' sequences.

        Raises:
            PublishRefused, BusUnavailable: at least one was not acknowledged; emit all again.
        """
        return await self._emitter.emit(effects)

    def begin_emit(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        """Begin to carry out effects; see the contract."""
        return self._emitter.begin(effects)

    def encode(self, event: EventEnvelope | WireEvent) -> tuple[bytes, str]:
        """An event as bytes and their content type, in the configured wire format."""
        wire_format = self._settings.wire_format
        return encode(event, wire_format), CONTENT_TYPES[wire_format]

    async def stored_events(
        self, topic: str, correlation_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Delivery]:
        """The events of a topic and a correlation id that their stream holds; see the contract."""
        stream = self._names.of_source(SOURCES[topic])
        subject = self.subjects.stored(topic, "*", encode_token(correlation_id))
        found: list[Delivery] = []
        while limit is None or len(found) < limit:
            message = await self._api.next_from_leader(stream, subject, after)
            if message is None:
                break
            after = message.sequence
            found.append(as_delivery(message, stream, self._names.responses))
        return found

    def consume(self, spec: ConsumerSpec) -> PullConsumer:
        """Read a durable consumer, created when it is not there; one of another account is waited for."""
        stream = self._names.of_source(spec.source)
        taken = self._placeholders.note if spec.source == "results" else None
        return PullConsumer(
            self._connection, self._api, stream, spec, self._names.responses, taken, creates=not self.restricted
        )

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create a durable consumer, or update it, for readers that cannot."""
        await create_consumer(self._api, self._names.of_source(spec.source), spec)

    def consume_responses(self, name: str) -> PullConsumer:
        """Read the final responses of plans, for a program that hands them on; created when it is not there.

        Its subjects are those at rest; see :meth:`plancast_bus.subjects.Subjects.response`.
        """
        spec = ConsumerSpec(name, "results", (f"{self.subjects.store}.responses.>",))
        return PullConsumer(self._connection, self._api, self._names.responses, spec, self._names.responses)

    async def delete_consumer(self, source: Source, name: str) -> None:
        """Remove a durable consumer; harmless when there is none."""
        try:
            await self._api.call(f"CONSUMER.DELETE.{self._names.of_source(source)}.{name}")
        except ApiError as error:
            if error.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    def new_inbox(self) -> str:
        """A subject of one's own for notices."""
        return self._connection.client.new_inbox()

    async def subscribe(self, subject: str, notice: Notice) -> NoticeSubscription:
        """Receive what is published on a subject from now on; nothing is kept, repeated or acknowledged."""

        async def receive(message: Msg) -> None:
            read = read_message(message.headers or {}, message.data)
            try:
                await notice(message.subject, read.payload, read.content_type)
            except Exception:
                logger.exception("a notice could not be handled", extra={"subject": message.subject})

        try:
            subscription = await self._connection.client.subscribe(subject, cb=receive)
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"cannot subscribe to {subject[:200]}") from error
        return NoticeSubscription(subscription)

    async def ensure_streams(self) -> None:
        """Create or update the streams, and the key of checkpoints; safe to call from many processes at once.

        Raises:
            BusError: a stream that exists differs in what cannot be changed, such as the number of shards.
            AccessDenied: the login's account has no JetStream.
        """
        self._require_jetstream("creates no streams")
        await definitions.ensure_streams(self._api, self.subjects, self._settings)
        await asyncio.gather(self._keys.make(), self._placeholders.place())

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Have a callback called after each time that the connection came back."""
        self._connection.on_reconnect(callback)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Have a callback called with the reason when the connection ended for good, other than by :meth:`close`."""
        self._connection.on_lost(callback)

    async def health(self) -> dict[str, Any]:
        """What the server and the streams are: for people and for doctors.

        Raises:
            AccessDenied: the login's account has no JetStream.
        """
        self._require_jetstream("does not see streams and consumers")
        wanted = definitions.definitions(self.subjects, self._settings)
        return await examine(self._connection, self._api, self._names, wanted)

    async def is_deployed(self) -> bool:
        """Whether the streams were ever made, where this login can see it.

        Raises:
            AccessDenied: the login may not look.
            BusUnavailable: the server does not answer.
        """
        try:
            if self.restricted:
                await self._api.newest(self._names.registry, ">")
            else:
                await self._api.call(f"STREAM.INFO.{self._names.dead_letters}")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return False
        except BusUnavailable as error:
            if not isinstance(error.__cause__, NoResponders):
                raise
            return False
        return True

    async def login(self) -> ConnectedUser:
        """Who this connection is to the server, and what it may do.

        Raises:
            BusUnavailable: the server does not say.
        """
        return await read_user(self._requester)

    def _require_jetstream(self, what: str) -> None:
        if self.restricted:
            raise AccessDenied(
                f"this login {what}: its account on the nats-server at {self._connection.where} has no JetStream. Use "
                "the runtime's login, or enable JetStream for the account"
            )

    async def close(self) -> None:
        """End the connection, after what waits to be sent."""
        await self._connection.close()


class NoticeSubscription:
    """A running subscription to notices."""

    def __init__(self, subscription: NatsSubscription) -> None:
        self._subscription = subscription

    async def close(self) -> None:
        """Receive no more."""
        with suppress(nats_errors.Error):
            await self._subscription.unsubscribe()
