"""The JetStream adapter of the bus."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from nats import errors as nats_errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from plancast_bus.errors import AccessDenied, BusError, BusUnavailable, UnsupportedServer
from plancast_bus.event_data import stored_apart
from plancast_bus.events.codec import CONTENT_TYPES, REFERENCE_TYPES, encode
from plancast_bus.events.envelope import EventEnvelope, EventTopic, WireEvent
from plancast_bus.events.nats_binding import read_message
from plancast_bus.events.references import Writer
from plancast_bus.jetstream.client.api import CONSUMER_NOT_FOUND, NO_JETSTREAM, STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.login import ConnectedUser, read_user
from plancast_bus.jetstream.client.request_reply import NoResponders, Requester
from plancast_bus.jetstream.client.server_clock import ServerClock
from plancast_bus.jetstream.messaging.consumer import PullConsumer, as_delivery, create_consumer
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.messaging.emitter import Emitter
from plancast_bus.jetstream.messaging.placeholders import Placeholders
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.messaging.stream_reader import StreamReader
from plancast_bus.jetstream.stores.checkpoints import JetStreamCheckpoints
from plancast_bus.jetstream.stores.dead_letters import JetStreamDeadLetters
from plancast_bus.jetstream.stores.key_store import KeyStore
from plancast_bus.jetstream.stores.progress import JetStreamProgress
from plancast_bus.jetstream.stores.registry import JetStreamRegistry
from plancast_bus.jetstream.stores.schedules import JetStreamSchedules
from plancast_bus.jetstream.stores.seals import JetStreamSeals
from plancast_bus.jetstream.stores.store import StreamAccess
from plancast_bus.jetstream.stores.values import JetStreamValues
from plancast_bus.jetstream.streams import definitions
from plancast_bus.jetstream.streams.admission import Admission
from plancast_bus.jetstream.streams.health import examine
from plancast_bus.ports.bus import ConsumerSpec, Delivery, Notice
from plancast_bus.ports.effects import Effect, Publish
from plancast_bus.ports.sessions import Sessions
from plancast_bus.ports.trees import Trees
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import Subjects, encode_token, is_snapshot_token, message_id_of, tenant_of
from plancast_bus.topics import SOURCES, Source

logger = logging.getLogger(__name__)


async def connect(nats: NatsSettings, bus: BusSettings) -> JetStreamBus:
    """Connect to NATS; :meth:`JetStreamBus.ensure_streams` creates the streams.

    Raises:
        BusUnavailable: no connection in time, or the credentials are refused.
        UnsupportedServer: the server is too old, or has no JetStream.
    """
    connection = Connection(nats)
    await connection.open()
    try:
        requester = Requester(connection)
        await requester.open()
        restricted = not await _has_jetstream(connection, JetStreamApi(requester))
        connected = JetStreamBus(connection, requester, bus, restricted=restricted)
        if not restricted:
            await connected.clock.follow()
        return connected
    except BaseException:
        await connection.close()
        raise


async def _has_jetstream(connection: Connection, api: JetStreamApi) -> bool:
    """Return whether the login's account has JetStream; False where only the server has it.

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
        # A cluster that is electing its leader does not respond, or reports it; it does not lack JetStream.
        electing = isinstance(error, BusUnavailable) and not isinstance(error.__cause__, NoResponders)
        if electing or not connection.alive:
            raise
        raise UnsupportedServer(
            f"the nats-server at {connection.where} runs without JetStream: {error}. Start it with -js, or enable "
            "JetStream in its config."
        ) from error


class JetStreamBus:
    """A :class:`~plancast_bus.ports.bus.Bus` on JetStream.

    A ``restricted`` login's account has no JetStream; it imports subjects from the account of the runtime, which owns
    the streams.
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
        self.clock = ServerClock(self._api, self._names.timers)
        self._publisher = Publisher(requester, self.subjects, settings.group_commit)
        self._placeholders = Placeholders(self._api, self._publisher, self._names, self.subjects)
        # The size of a stream of another account is not visible; the stream itself enforces its bound.
        self._admission = None if restricted else Admission(self._api, self._names, settings.volume_bytes)
        reader = (DirectReader if restricted else StreamReader)(connection, self._api)
        self._emitter = Emitter(
            connection.client, self._api, self._publisher, self.subjects, cloudevents=settings.cloudevents
        )
        replicated = settings.replicas > 1 and not restricted
        access = StreamAccess(self._api, self._publisher, reader, self.subjects, replicated)
        self._keys = KeyStore(access, settings.checkpoint_keys, restricted=restricted)
        connection.on_reconnect(self._keys.forget)
        writer: Writer = "login" if restricted else "runtime"
        self.dead_letters, self.values = JetStreamDeadLetters(access, writer), JetStreamValues(access, writer)
        self.checkpoints = JetStreamCheckpoints(access, self._keys, self.dead_letters, self.values)
        self.registry, self.schedules = JetStreamRegistry(access), JetStreamSchedules(access)
        self.trees, self.sessions = Trees(self.registry), Sessions(self.registry)
        self.seals = JetStreamSeals(self._keys)
        self.progress = JetStreamProgress(access, connection)

    async def publish(self, event: EventEnvelope, *, trace: str = "") -> None:
        payload, content_type = await self.prepare(event)
        subject = self.subjects.event(event.topic, event.correlation_id, event.type)
        if self._admission is not None and event.topic == EventTopic.ACTION_REQUESTS:
            await self._admission.admit(len(payload))
        effect = Publish(subject, payload, message_id_of(event.id), content_type, tenant_of(event), trace)
        await self._publisher.publish_acked(subject, *self._emitter.message(effect))

    async def emit(self, effects: Sequence[Effect]) -> list[int]:
        return await self._emitter.emit(effects)

    def begin_emit(self, effects: Sequence[Effect]) -> asyncio.Future[list[int]]:
        return self._emitter.begin(effects)

    def encode(self, event: EventEnvelope | WireEvent) -> tuple[bytes, str]:
        wire_format = self._settings.wire_format
        return encode(event, wire_format), CONTENT_TYPES[wire_format]

    async def prepare(self, event: EventEnvelope) -> tuple[bytes, str]:
        payload, content_type = self.encode(event)
        if len(payload) <= self._settings.max_event_bytes:
            return payload, content_type
        return await stored_apart(self.values, event, content_type, self._settings)

    async def stored_events(
        self, topic: str, correlation_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[Delivery]:
        if self.restricted:
            raise AccessDenied("this login's account has no JetStream, and may not read the streams of events")
        stream = self._names.of_source(SOURCES[topic])
        stored = self._stored(stream, self.subjects.stored(topic, "*", encode_token(correlation_id)), after)
        async with aclosing(stored):
            found: list[Delivery] = []
            while limit is None or len(found) < limit:
                if (each := await anext(stored, None)) is None:
                    break
                found.append(each)
            return found

    async def events_with_references(self, correlation_id: str) -> list[Delivery]:
        names, found = self._names, list[Delivery]()
        event, response, *timers = self.subjects.at_rest(correlation_id)
        places = [(stream, event) for stream in (names.results, names.requests, names.facts)]
        for stream, subject in (*places, (names.responses, response), *((names.timers, each) for each in timers)):
            async with aclosing(self._stored(stream, subject)) as stored:
                found += [each async for each in stored if each.content_type in REFERENCE_TYPES]
        return found

    async def _stored(self, stream: str, subject: str, after: int = 0) -> AsyncGenerator[Delivery]:
        """Yield the messages that match a filter, after a sequence, from the stream's leader."""
        while (message := await self._api.next_from_leader(stream, subject, after)) is not None:
            after = message.sequence
            yield as_delivery(message, stream, self._names.responses)

    def consume(self, spec: ConsumerSpec) -> PullConsumer:
        """Read a durable consumer, which is created if missing; one of another account is waited for."""
        stream = self._names.of_source(spec.source)
        taken = self._placeholders.note if spec.source == "results" else None
        return PullConsumer(
            self._connection, self._api, self.clock, stream, spec, self._names.responses, taken, not self.restricted
        )

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        await create_consumer(self._api, self._names.of_source(spec.source), spec)

    def consume_responses(self, name: str) -> PullConsumer:
        """Read the final responses of plans, on the subjects of :meth:`plancast_bus.subjects.Subjects.response`."""
        spec = ConsumerSpec(name, "results", (f"{self.subjects.store}.responses.>",))
        return PullConsumer(self._connection, self._api, self.clock, self._names.responses, spec, self._names.responses)

    async def delete_consumer(self, source: Source, name: str) -> None:
        try:
            await self._api.call(f"CONSUMER.DELETE.{self._names.of_source(source)}.{name}")
        except ApiError as error:
            if error.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    def new_inbox(self) -> str:
        return self._connection.client.new_inbox()

    async def subscribe(self, subject: str, notice: Notice) -> NoticeSubscription:
        async def receive(message: Msg) -> None:
            read = read_message(message.headers or {}, message.data)
            try:
                await notice(message.subject, read.payload, read.content_type)
            except Exception:
                logger.exception("the handler of a notice failed", extra={"subject": message.subject})

        return await self._subscribe(subject, receive)

    async def _subscribe(
        self, subject: str, receive: Callable[[Msg], Awaitable[None]], queue: str = ""
    ) -> NoticeSubscription:
        try:
            subscription = await self._connection.client.subscribe(subject, queue, cb=receive)
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"cannot subscribe to {subject[:200]}") from error
        return NoticeSubscription(subscription)

    async def serve_values(self) -> NoticeSubscription:
        async def answer(message: Msg) -> None:
            try:
                await self._connection.client.publish(message.reply, await self.values.serve(message.subject))
            except (BusError, nats_errors.Error) as error:  # the reader asks again
                logger.warning("a value was not served: %s", error)

        subject = self.subjects.value_reads
        return await self._subscribe(subject, answer, queue=subject)

    async def serve_snapshots(self) -> NoticeSubscription:
        names = (*self._names.all(), self._names.keys, definitions.restoring_stream(self.subjects)["name"])
        streams = {self.subjects.snapshot_request(name): name for name in names}

        async def answer(message: Msg) -> None:
            token = message.data.decode("ascii", "replace")
            stream = streams.get(message.subject)
            if stream is None or (token and not is_snapshot_token(token)):
                return
            operation, body = f"STREAM.INFO.{stream}", b""
            if token:
                operation = f"STREAM.SNAPSHOT.{stream}"
                body = json.dumps({"deliver_subject": self.subjects.snapshot(token)}).encode()
            try:
                reply = await self._requester.request(f"$JS.API.{operation}", body)
                await self._connection.client.publish(message.reply, reply.data)
            except (BusError, nats_errors.Error) as error:  # the one that takes the backup begins again
                logger.warning("a snapshot was not served: %s", error)

        subject = self.subjects.snapshot_request("*")
        return await self._subscribe(subject, answer, queue=subject)

    async def ensure_streams(self) -> None:
        """Create or update the streams and the key of checkpoints; safe to call concurrently.

        Raises:
            BusError: an existing stream differs in a fixed setting, such as the number of shards.
            AccessDenied: the login's account has no JetStream.
        """
        self._require_jetstream("cannot create streams")
        await definitions.ensure_streams(self._api, self.subjects, self._settings, self.clock.time())
        await asyncio.gather(self._keys.make(), self._placeholders.place(), self.clock.follow())

    async def restore(self, consumers: Sequence[ConsumerSpec] = ()) -> list[str]:
        """Make streams and consumers again that were deleted; what a stream held is lost, but for the key.

        Raises:
            AccessDenied: the login's account has no JetStream.
            BusUnavailable: the server does not respond, or the key is lost with which stored checkpoints were signed.
        """
        self._require_jetstream("cannot create streams")
        with suppress(BusError):
            await self._keys.read()
        missing = await definitions.missing_streams(self._api, self.subjects)
        if self._names.keys in missing and self._names.checkpoints not in missing and not self._keys.is_kept:
            raise BusUnavailable(
                f"the stream {self._names.keys} was deleted, and this process does not have the key that it held. "
                "Restore the stream, or delete the deployment's streams and lose its plans"
            )
        if missing:
            logger.error("streams were deleted, and are made again: what they held is lost: %s", ", ".join(missing))
            await self.ensure_streams()
            with suppress(nats_errors.Error):
                await self._connection.client.publish(self.subjects.restored)
        for source in dict.fromkeys(spec.source for spec in consumers):
            stream = self._names.of_source(source)
            found = await definitions.listed(self._api, f"CONSUMER.NAMES.{stream}", "consumers")
            for spec in [each for each in consumers if each.source == source and each.name not in found]:
                logger.warning("a consumer was deleted, and is made again: %s", spec.name, extra={"stream": stream})
                await self.ensure_consumer(spec)
                missing.append(spec.name)
        return missing

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._connection.on_reconnect(callback)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        self._connection.on_lost(callback)

    async def health(self) -> dict[str, Any]:
        """Report the state of server and streams.

        Raises:
            AccessDenied: the login's account has no JetStream.
        """
        self._require_jetstream("cannot see streams and consumers")
        wanted = definitions.definitions(self.subjects, self._settings)
        return await examine(self._connection, self._api, self._names, wanted)

    async def is_deployed(self) -> bool:
        """Return whether the streams exist, as far as this login can see.

        Raises:
            AccessDenied: the login may not read them.
            BusUnavailable: the server does not respond.
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
        """Return the user of this connection and its permissions.

        Raises:
            BusUnavailable: the server does not respond.
        """
        return await read_user(self._requester)

    def _require_jetstream(self, what: str) -> None:
        if self.restricted:
            raise AccessDenied(
                f"this login {what}: its account on the nats-server at {self._connection.where} has no JetStream. Use "
                "the runtime's login, or enable JetStream for the account"
            )

    async def close(self) -> None:
        await self.clock.stop()
        await self._connection.close()


class NoticeSubscription:
    """An active subscription to notices."""

    def __init__(self, subscription: NatsSubscription) -> None:
        self._subscription = subscription

    async def close(self) -> None:
        with suppress(nats_errors.Error):
            await self._subscription.unsubscribe()
