"""Durable pull consumers, read without pause.

A pull asks the server for a number of messages, its credit. A consumer keeps credit outstanding all the
time, so that messages flow while earlier ones are being handled, but never more than a fetch may return.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from nats import errors as nats_errors
from nats.aio.msg import Msg

from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.events.nats_binding import read_message
from plancast_bus.events.trace_context import PARENT, STATE, read_trace
from plancast_bus.jetstream.client.api import STREAM_NOT_FOUND, ApiError, JetStreamApi, StoredMessage
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.inbox import Inbox
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.messaging.publisher import TENANT
from plancast_bus.ports.bus import ConsumerSpec, Delivery

logger = logging.getLogger(__name__)

PULL_EXPIRES = 30.0
"""Seconds that a pull stays valid."""
HEARTBEAT = 5.0
"""Seconds between signs of life of an idle pull."""
SILENCE = 2 * HEARTBEAT + 1.0
"""Seconds without any sign of life after which the pulls are taken for lost."""
ABSENT_WAIT = 1.0
"""Seconds between two looks for a consumer that somebody else creates."""
NO_RESPONDERS = "503"
RESTART_WAIT = 0.2
"""Seconds between two attempts to begin anew."""
SINGLE_PULLS = 8
"""Pulls that a login whose account has no JetStream keeps under way, each for one message."""
RECLAIM_BATCH = 50_000
"""Refusals in one write."""
RECLAIM_RANGE = 1_000_000
"""Sequences that are refused without a look at which of them a stream still holds: a second of the server's time. Of
facts, which stay when they are acknowledged, the newest are; older ones come again after their acknowledgement time."""
_EXPIRES = round(PULL_EXPIRES * 1_000_000_000)
_HEARTBEAT = round(HEARTBEAT * 1_000_000_000)


class PullConsumer:
    """Reads one durable consumer of a stream.

    Args:
        connection: To the server.
        api: Of its JetStream.
        stream: Its name.
        spec: What to read.
        responses: Name of the stream that final responses are republished from.
        taken: Called with the number of messages that a fetch returns.
        creates: Whether the consumer is created where it is missing. A login whose account has no JetStream cannot, and
            waits until the runtime has created it.
    """

    def __init__(
        self,
        connection: Connection,
        api: JetStreamApi,
        stream: str,
        spec: ConsumerSpec,
        responses: str,
        taken: Callable[[int], None] | None = None,
        creates: bool = True,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._api = api
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
            connection.on_reconnect(self._begin_anew),
            connection.on_closed(self._begin_anew),
            connection.on_denied(self._on_denied),
        )

    async def fetch(self, limit: int) -> list[Delivery]:
        """At least one and at most ``limit`` messages; waits until there is one, also for a lost connection.

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
            # Pull before taking: nothing is awaited between taking and returning, where a cancellation would
            # lose what was taken.
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
        """Tell the stream that these are done. Not confirmed: a lost one is delivered again."""
        await self._answer(deliveries, b"+ACK")

    async def nak(self, delivery: Delivery, delay: float = 0.0) -> None:
        """Have it delivered again, after ``delay`` seconds."""
        word = b"-NAK"
        if delay > 0:
            word += b" " + json.dumps({"delay": round(delay * 1_000_000_000)}).encode()
        await self._answer((delivery,), word)

    def age(self, delivery: Delivery) -> float | None:
        """Seconds since it was stored: the subject that it is acknowledged on tells when that was."""
        tokens = delivery.reply.split(".")
        try:
            stored = int(tokens[_at(tokens) + 3])
        except (IndexError, ValueError):
            return None
        return max(0.0, time.time() - stored / 1e9)

    async def in_progress(self, deliveries: Iterable[Delivery]) -> None:
        """Start the acknowledgement time of these anew."""
        await self._answer(deliveries, b"+WPI")

    async def close(self) -> None:
        """Stop reading; what was fetched and not acknowledged is delivered again to others."""
        if self._closed:
            return
        self._closed = True
        for forget in self._forget:
            forget()
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        inbox.wake()
        await inbox.close()
        await self._answer([self._delivery(message) for message in inbox.messages], b"-NAK")

    async def _answer(self, deliveries: Iterable[Delivery], word: bytes) -> None:
        await self._send((delivery.reply for delivery in deliveries), word)

    async def _send(self, subjects: Iterable[str], word: bytes) -> None:
        replies = list(subjects)
        try:
            if len(replies) > 1 and self._connection.alive:
                # All but the last are one write: publishing each costs ten times as much. The last has all sent.
                end = f" {len(word)}\r\n{word.decode()}\r\n"
                lines = "".join([f"PUB {reply}{end}" for reply in replies[:-1]])
                await self._client._send_command(lines.encode())
                replies = replies[-1:]
            for reply in replies:
                await self._client.publish(reply, word)
        except nats_errors.Error as error:
            # The stream delivers again what it hears nothing about.
            logger.debug("acknowledgements are lost: %s", error, extra={"consumer": self._spec.name})

    def _begin_anew(self) -> None:
        self._stale = True
        if self._inbox is not None:
            self._inbox.wake()

    def _on_denied(self, subject: str) -> None:
        if subject == self._pulls.lower():
            self._denied = True
            self._begin_anew()

    async def _restart(self) -> None:
        """Create the consumer where it is missing, and go on with a fresh inbox: it ends the old pulls."""
        try:
            await self._replace_inbox()
        except BaseException:
            self._stale = True  # also a fetch that is cancelled here: the inbox that there is hears nothing any more
            raise

    async def _replace_inbox(self) -> None:
        if self._absent:
            await asyncio.sleep(ABSENT_WAIT)
        old = self._inbox
        if old is not None:
            await old.close()  # before it is asked what is out: nothing more goes there
        info: dict[str, Any] = {}
        while True:
            self._stale = False
            try:
                if self._creates:
                    info = await create_consumer(self._api, self._stream, self._spec)
                break
            except BusUnavailable:
                if old is None or self._closed or self._connection.ended:
                    raise
                logger.warning("consumer cannot be reached yet", extra={"consumer": self._spec.name})
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
        """Have what was delivered and not acknowledged delivered again now.

        The server does not list those messages, but passes over a refusal of any other: all in between are refused.
        What a refusal says besides the message's sequence is not looked at, as long as the consumer's is in range.
        """
        first, last = info["ack_floor"]["stream_seq"] + 1, info["delivered"]["stream_seq"]
        prefix, place = f"$JS.ACK.{self._stream}.{self._spec.name}.1", info["delivered"]["consumer_seq"]
        logger.info(
            "%d events that no reader holds are delivered again",
            info["num_ack_pending"],
            extra={"consumer": self._spec.name},
        )
        sequences: Sequence[int] = range(max(first, last + 1 - RECLAIM_RANGE), last + 1)
        if sequences[0] > first and self._spec.source != "facts":
            sequences = await self._kept(first, last)
        for begin in range(0, len(sequences), RECLAIM_BATCH):
            batch = sequences[begin : begin + RECLAIM_BATCH]
            await self._send((f"{prefix}.{sequence}.{place}.0.0" for sequence in batch), b"-NAK")

    async def _kept(self, first: int, last: int) -> list[int]:
        """The messages of this consumer that its stream holds between two sequences: in a work queue, those that are
        not acknowledged."""
        reader = DirectReader(self._connection, self._api)
        found: list[int] = []
        for each in self._spec.filters:
            async for message in reader.read(
                self._stream, each, "all", headers_only=True, after=first - 1, before=last + 1
            ):
                found.append(message.sequence)
        return sorted(found)

    async def _top_up(self, inbox: Inbox, limit: int) -> None:
        """Ask for more, when less than half of what is allowed is still to come.

        The server passes answers on to another account until one is empty, and a message without payload and headers
        ends that pull: what the pull still takes from the stream is lost until ``ack_wait`` is over. So it asks for one
        message at a time there.
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
            # The consumer is gone, its leader has moved, or the server shuts down.
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
    """A message that was read out of a stream, as if it were delivered."""
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
    """Where the number of deliveries stands; sequences and time follow it."""
    return 6 if len(tokens) >= 11 else 4  # the newer form has domain and account before the stream


async def create_consumer(api: JetStreamApi, stream: str, spec: ConsumerSpec) -> dict[str, Any]:
    """Create a durable consumer of a stream, or update it; returns what the server says of it.

    Raises:
        BusError: there is no such stream, or it refuses the consumer.
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
    if len(spec.filters) == 1:  # a single filter stands in the subject of the call, for permissions to go by
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
