"""Readers of durable pull consumers.

A pull requests a number of messages, its credit. A reader keeps credit outstanding all the time, so that messages
arrive while earlier ones are handled, but never more than a fetch may return.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from nats import errors as nats_errors
from nats.aio.msg import Msg

from plancast_bus import outage_log
from plancast_bus.clock import Clock
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.events.nats_binding import read_message
from plancast_bus.events.trace_context import PARENT, STATE, read_trace
from plancast_bus.jetstream.client.api import STREAM_NOT_FOUND, ApiError, JetStreamApi, StoredMessage
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.inbox import Inbox
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.messaging.publisher import TENANT
from plancast_bus.jetstream.messaging.stream_reader import HEARTBEAT, RESTART_WAIT, SILENCE
from plancast_bus.ports.bus import ConsumerSpec, Delivery

logger = logging.getLogger(__name__)

PULL_EXPIRES = 30.0
"""Seconds until a pull expires."""
ABSENT_WAIT = 1.0
"""Seconds between polls for a consumer that the runtime has to create."""
NO_RESPONDERS = "503"
SINGLE_PULLS = 8
"""In-flight pulls of a login without JetStream, each for one message."""
RECLAIM_BATCH = 50_000
"""Negative acknowledgements per write."""
RECLAIM_RANGE = 1_000_000
"""Maximum sequences refused without reading which of them the stream still holds; it costs the server a second.
Of facts, which stay when acknowledged, only the newest are refused; older ones are redelivered after ``ack_wait``."""
_EXPIRES = round(PULL_EXPIRES * 1_000_000_000)
_HEARTBEAT = round(HEARTBEAT * 1_000_000_000)


class PullConsumer:
    """Reads one durable consumer of a stream.

    Args:
        responses: Name of the stream that republishes final responses.
        taken: Called with the number of messages that each fetch returns.
        creates: Create the consumer if missing. A login without JetStream cannot, and waits until the runtime has.
    """

    def __init__(
        self,
        connection: Connection,
        api: JetStreamApi,
        clock: Clock,
        stream: str,
        spec: ConsumerSpec,
        responses: str,
        taken: Callable[[int], None] | None = None,
        creates: bool = True,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._api = api
        self._clock = clock
        self._stream = stream
        self._spec = spec
        self._responses = responses
        self._count = taken
        self._creates = creates
        self._pulls = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{spec.name}"
        self._absent = self._denied = False
        self._inbox: Inbox | None = None
        self._credit = 0
        self._stale = True
        self._closed = False
        self._forget = (
            connection.on_reconnect(self._invalidate),
            connection.on_closed(self._invalidate),
            connection.on_denied(self._on_denied),
        )

    async def fetch(self, limit: int) -> list[Delivery]:
        """Wait for messages, also during a reconnect; return at least one and at most ``limit``.

        Raises:
            BusUnavailable: the connection or the consumer is closed, or the consumer cannot be created.
            AccessDenied: the login may not read the consumer.
        """
        if limit < 1:
            raise ValueError("limit must be at least 1")
        while True:
            if self._closed or self._connection.ended:
                raise self._connection.unavailable(f"consumer {self._spec.name} cannot read on")
            if self._denied:
                self._denied, self._stale = False, True
                raise AccessDenied(
                    f"the nats-server at {self._connection.where} does not let this user publish on {self._pulls}"
                )
            if self._inbox is None or (self._stale and self._connection.alive):
                await self._restart()
            inbox = self._inbox
            assert inbox is not None
            # Pull before taking: a cancellation between taking and returning would lose messages, so nothing is awaited
            # there.
            if not self._stale and (self._spec.prefetch or not inbox.messages):
                await self._top_up(inbox, limit)
            if inbox.messages:
                return self._take(inbox, limit)
            if self._stale and self._connection.alive:
                continue
            await inbox.wait(max(0.05, inbox.heard + SILENCE - asyncio.get_running_loop().time()))
            if self._connection.alive and asyncio.get_running_loop().time() >= inbox.heard + SILENCE:
                self._stale = True

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        await self._reply(deliveries, b"+ACK")

    async def nak(self, delivery: Delivery, delay: float = 0.0) -> None:
        word = b"-NAK"
        if delay > 0:
            word += b" " + json.dumps({"delay": round(delay * 1_000_000_000)}).encode()
        await self._reply((delivery,), word)

    def age(self, delivery: Delivery) -> float | None:
        """Seconds since the message was stored, from the timestamp in its reply subject."""
        tokens = delivery.reply.split(".")
        try:
            stored = int(tokens[_at(tokens) + 3])
        except (IndexError, ValueError):
            return None
        return max(0.0, self._clock.time() - stored / 1e9)

    async def in_progress(self, deliveries: Iterable[Delivery]) -> None:
        await self._reply(deliveries, b"+WPI")

    def reclaim(self) -> None:
        self._invalidate()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for forget in self._forget:
            forget()
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        inbox.wake()
        await inbox.drain()
        await self._reply([self._delivery(message) for message in inbox.messages], b"-NAK")

    async def _reply(self, deliveries: Iterable[Delivery], word: bytes) -> None:
        await self._send((delivery.reply for delivery in deliveries), word)

    async def _send(self, subjects: Iterable[str], word: bytes) -> None:
        replies = list(subjects)
        try:
            if len(replies) > 1 and self._connection.alive:
                # All but the last are one write: publishing each costs ten times as much. The last flushes all.
                end = f" {len(word)}\r\n{word.decode()}\r\n"
                lines = "".join([f"PUB {reply}{end}" for reply in replies[:-1]])
                await self._client._send_command(lines.encode())
                replies = replies[-1:]
            for reply in replies:
                await self._client.publish(reply, word)
        except nats_errors.Error as error:
            logger.debug("acknowledgements are lost: %s", error, extra={"consumer": self._spec.name})

    def _invalidate(self) -> None:
        self._stale = True
        if self._inbox is not None:
            self._inbox.wake()

    def _on_denied(self, subject: str) -> None:
        if subject == self._pulls.lower():
            self._denied = True
            self._invalidate()

    async def _restart(self) -> None:
        """Create the consumer if missing, and continue with a new inbox, which ends the old pulls."""
        try:
            await self._replace_inbox()
        except BaseException:
            self._stale = True  # on cancellation too: the old inbox receives nothing any more
            raise

    async def _replace_inbox(self) -> None:
        if self._absent:
            await asyncio.sleep(ABSENT_WAIT)
        old = self._inbox
        if old is not None:
            await old.close()  # before the state is read: nothing more is delivered there
        info: dict[str, Any] = {}
        while True:
            self._stale = False
            try:
                if self._creates:
                    info = await create_consumer(self._api, self._stream, self._spec)
                break
            except BusUnavailable as error:
                if old is None or self._closed or self._connection.ended:
                    raise
                extra = {"consumer": self._spec.name}
                outage_log.warn(logger, "consumer cannot be reached yet: %s", error, extra=extra)
                await asyncio.sleep(RESTART_WAIT)
        if self._spec.reclaim and info.get("num_ack_pending"):
            await self._reclaim(info)
        inbox = Inbox(self._client, self._on_status)
        try:
            await inbox.open()
        except nats_errors.Error as error:  # the connection was closed meanwhile
            raise self._connection.unavailable(f"consumer {self._spec.name} cannot read on") from error
        if old is not None:
            inbox.messages.extend(old.messages)
        self._credit = len(inbox.messages)
        self._inbox = inbox

    async def _reclaim(self, info: dict[str, Any]) -> None:
        """Redeliver unacknowledged messages now.

        The server does not list them, but ignores a nak of any other message: all in the range are refused. Of a nak
        it checks only the message's sequence, and that the consumer's is in range.
        """
        first, last = info["ack_floor"]["stream_seq"] + 1, info["delivered"]["stream_seq"]
        prefix, place = f"$JS.ACK.{self._stream}.{self._spec.name}.1", info["delivered"]["consumer_seq"]
        logger.info(
            "%d unacknowledged events are redelivered",
            info["num_ack_pending"],
            extra={"consumer": self._spec.name},
        )
        sequences: Sequence[int] = range(max(first, last + 1 - RECLAIM_RANGE), last + 1)
        if sequences[0] > first and self._spec.source != "facts":
            sequences = await self._unacknowledged(first, last)
        for begin in range(0, len(sequences), RECLAIM_BATCH):
            batch = sequences[begin : begin + RECLAIM_BATCH]
            await self._send((f"{prefix}.{sequence}.{place}.0.0" for sequence in batch), b"-NAK")

    async def _unacknowledged(self, first: int, last: int) -> list[int]:
        """Return the sequences of this consumer's messages in a range: in a work queue, the unacknowledged ones."""
        reader = DirectReader(self._connection, self._api)
        found: list[int] = []
        for each in self._spec.filters:
            async for message in reader.read(
                self._stream, each, "all", headers_only=True, after=first - 1, before=last + 1
            ):
                found.append(message.sequence)
        return sorted(found)

    async def _top_up(self, inbox: Inbox, limit: int) -> None:
        """Pull more when less than half of the credit is outstanding.

        For another account, the server ends a pull at a message without payload and headers; further messages of that
        pull are lost until ``ack_wait`` is over. So each pull is for one message there.
        """
        limit = limit if self._creates else min(limit, SINGLE_PULLS)
        coming = self._credit - len(inbox.messages)
        if coming >= (limit + 1) // 2 or not self._connection.alive:
            return
        wanted = limit - coming
        batch = wanted if self._creates else 1
        pull = json.dumps({"batch": batch, "expires": _EXPIRES, "idle_heartbeat": _HEARTBEAT}).encode()
        self._credit += wanted
        inbox.heard = asyncio.get_running_loop().time()
        try:
            for _ in range(0, wanted, batch):
                await self._client.publish(self._pulls, pull, inbox.subject)
        except nats_errors.Error:
            self._stale = True

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        if status == "100":
            self._absent = False
            return
        pending = 0
        with suppress(ValueError):
            pending = int(headers.get("Nats-Pending-Messages", "0"))
        self._credit = max(0, self._credit - pending)
        if status not in ("404", "408"):
            # The consumer is deleted, its leader has moved, or the server shuts down.
            if status != NO_RESPONDERS or self._creates:
                logger.info(
                    "pull ended by the server: %s %s",
                    status,
                    headers.get("Description", ""),
                    extra={"consumer": self._spec.name},
                )
            elif not self._absent:
                self._absent = True
                logger.warning(
                    "the stream %s has no consumer %s, or it has no leader; waiting for it. Deploying an app that has "
                    "this task, or names it in workers.tasks, creates it",
                    self._stream,
                    self._spec.name,
                )
            self._stale = True
        if self._inbox is not None:
            self._inbox.wake()

    def _take(self, inbox: Inbox, limit: int) -> list[Delivery]:
        self._absent = False
        waiting = inbox.messages
        if len(waiting) <= limit:
            taken = [self._delivery(message) for message in waiting]
            waiting.clear()
        else:
            taken = [self._delivery(waiting.popleft()) for _ in range(limit)]
        self._credit = max(0, self._credit - len(taken))
        if self._count is not None:
            self._count(len(taken))
        return taken

    def _delivery(self, message: Msg) -> Delivery:
        tokens = message.reply.split(".")
        at = _at(tokens)
        headers, payload, trace = message.headers, message.data, ""
        if headers is None:
            content_type = message_id = None
            is_response, tenant = False, ""
        else:
            if type(headers) is dict:
                content_type, message_id = headers.get("Content-Type"), headers.get("Nats-Msg-Id")
                if PARENT in headers:
                    trace = read_trace(headers[PARENT], headers.get(STATE))
            else:
                payload, content_type, message_id, trace = read_message(headers, payload)
            is_response = headers.get("Nats-Stream") == self._responses
            tenant = headers.get(TENANT, "")
        return Delivery(
            message.subject,
            payload,
            content_type,
            message_id,
            self._stream,
            int(tokens[at + 1]),
            int(tokens[at]),
            message.reply,
            is_response,
            tenant,
            trace,
        )


def as_delivery(message: StoredMessage, stream: str, responses: str) -> Delivery:
    """Convert a message read from a stream to a delivery."""
    headers, read = message.headers, read_message(message.headers, message.payload)
    return Delivery(
        message.subject,
        read.payload,
        read.content_type,
        read.message_id,
        stream,
        message.sequence,
        0,
        "",
        headers.get("Nats-Stream") == responses,
        headers.get(TENANT, ""),
        read.trace,
    )


def _at(tokens: list[str]) -> int:
    """Return the index of the delivery count in a reply subject; sequences and time follow it."""
    return 6 if len(tokens) >= 11 else 4  # the newer form has domain and account before the stream


async def create_consumer(api: JetStreamApi, stream: str, spec: ConsumerSpec) -> dict[str, Any]:
    """Create or update a durable consumer; return its state.

    Raises:
        BusError: the stream does not exist, or refuses the consumer.
    """
    config: dict[str, Any] = {
        "name": spec.name,
        "durable_name": spec.name,
        "deliver_policy": "new" if spec.source == "facts" else "all",
        "ack_policy": "explicit",
        "ack_wait": round(spec.ack_wait * 1_000_000_000),
        "max_deliver": -1,
        "max_ack_pending": spec.max_ack_pending,
        "replay_policy": "instant",
    }
    operation = f"CONSUMER.CREATE.{stream}.{spec.name}"
    if len(spec.filters) == 1:  # a single filter goes into the subject of the call, for permissions
        config["filter_subject"] = spec.filters[0]
        operation += f".{spec.filters[0]}"
    else:
        config["filter_subjects"] = list(spec.filters)
    try:
        return await api.call(operation, {"stream_name": stream, "config": config})
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            raise BusError(f"consumer {spec.name} has no stream {stream} to read: it is not created yet") from error
        raise
