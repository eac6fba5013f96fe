"""Reads streams: their present content, or all further messages too."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal
from uuid import uuid4

from nats import errors as nats_errors
from nats.aio.msg import Msg

from plancast_bus import outage_log
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.jetstream.client.api import JetStreamApi, StoredMessage, read_direct
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.inbox import Inbox
from plancast_bus.jetstream.messaging.hints import Hints

logger = logging.getLogger(__name__)

BATCH = 4096
"""Messages per pull."""
SUBJECT_BATCH = 256
"""Messages of one subject per read."""
BATCH_BYTES = 4 << 20
"""Most bytes of such a read; at least one message is sent."""
FIRST_SPAN = 256
"""Sequences that a backward read fetches first."""
HEARTBEAT = 5.0
"""Seconds between heartbeats of an idle consumer."""
SILENCE = 2 * HEARTBEAT + 1.0
"""Seconds without a heartbeat after which a consumer counts as lost."""
RESTART_WAIT = 0.2
"""Seconds between attempts to restart."""
LONGEST_RESTART_WAIT = 5.0
Policy = Literal["all", "last_per_subject"]
_PULL = 30_000_000_000
"""Nanoseconds until a pull of :meth:`StreamReader.follow` expires; less than the inactivity limit of its consumer."""
_EPHEMERAL: dict[str, Any] = {
    "ack_policy": "none",
    "replay_policy": "instant",
    "mem_storage": True,
    "num_replicas": 1,
    "max_deliver": 1,
    "inactive_threshold": 60_000_000_000,
}


class StreamReader:
    """Reads streams by ephemeral consumers."""

    def __init__(self, connection: Connection, api: JetStreamApi) -> None:
        self._connection = connection
        self._client = connection.client
        self._api = api

    async def read(
        self,
        stream: str,
        subject: str,
        policy: Policy,
        *,
        headers_only: bool = False,
        after: int = 0,
        before: int = 0,
    ) -> AsyncGenerator[StoredMessage]:
        """Yield the messages that match a filter, after sequence ``after`` and before ``before``, in order of sequence.

        Messages stored meanwhile may be included. A subject replaced before it was reached has its new message.

        Raises:
            BusUnavailable: the connection broke meanwhile.
        """
        ended: list[str] = []

        def on_status(status: str, _headers: dict[str, str]) -> None:
            ended.append(status)
            inbox.wake()

        inbox = Inbox(self._client, on_status)
        await inbox.open()
        consumer = ""
        try:
            created = await self._consumer(stream, subject, policy, headers_only, after)
            consumer = created["name"]
            if not created.get("num_pending"):
                return
            first_end = before or (await self._api.call(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
            end = 0
            batch = min(BATCH, before - after - 1) if before else BATCH
            while True:
                ended.clear()
                pull = json.dumps({"batch": batch, "no_wait": True}).encode()
                await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", pull, inbox.subject)
                received = 0
                while received < batch:
                    if not inbox.messages:
                        if ended:
                            break
                        await inbox.wait(self._connection.timeout)
                        if not inbox.messages and not ended:
                            raise self._connection.unavailable(f"reading {stream} was interrupted")
                    while inbox.messages:
                        received += 1
                        message, pending = _stored(inbox.messages.popleft())
                        if (end and message.sequence > end) or 0 < before <= message.sequence:
                            return
                        yield message
                        if pending == 0:
                            return
                        if not end and message.sequence >= first_end:
                            # Messages replaced while reading have moved behind the end: read on that far.
                            end = (await self._api.call(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
                if "503" in ended or (received == 0 and "404" not in ended):
                    raise self._connection.unavailable(f"reading {stream} was interrupted")
                if received == 0:
                    return
        finally:
            await inbox.close()
            if consumer and self._connection.alive:
                with suppress(BusError):  # the server removes it after a minute anyway
                    await self._api.send(f"CONSUMER.DELETE.{stream}.{consumer}")

    async def read_back(self, stream: str, subject: str, *, before: int = 0) -> AsyncGenerator[StoredMessage]:
        """Yield the headers of the messages that match a filter, before sequence ``before``, newest first.

        Reads the stream in pieces, so that cost and memory depend on what is read. Excludes messages stored meanwhile.

        Raises:
            BusUnavailable: the connection broke meanwhile.
        """
        first, last = await self._bounds(stream, subject)
        end = min(before, last + 1) if before else last + 1
        span = FIRST_SPAN
        while end > first:
            start = max(first, end - span)
            piece = await self._between(stream, subject, start, end)
            if piece is None:
                span = max(1, span // 4)
                continue
            for message in reversed(piece):
                yield message
            end = start
            if len(piece) <= BATCH // 4:
                span *= 4

    async def get(self, stream: str, request: Mapping[str, Any]) -> tuple[list[StoredMessage], int]:
        """Return the messages of one batched direct get, and the number of those that follow; from any replica.

        Raises:
            BusUnavailable: the response is missing or incomplete.
            BusError: the server refuses the request.
        """
        target = f"$JS.API.DIRECT.GET.{stream}"
        ended: list[tuple[str, dict[str, str]]] = []

        def on_status(status: str, headers: dict[str, str]) -> None:
            ended.append((status, headers))
            inbox.wake()

        inbox = Inbox(self._client, on_status)
        try:
            await inbox.open()
            await self._client.publish(target, json.dumps(request).encode(), inbox.subject)
            while not ended:
                received = len(inbox.messages)  # uvloop's time stands still for a millisecond, and cannot tell
                await inbox.wait_for_next(self._connection.timeout)
                if not ended and len(inbox.messages) == received:
                    raise self._connection.unavailable(f"reading {stream} was interrupted")
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"{stream} cannot be read") from error
        finally:
            await inbox.close()
        status, headers = ended[0]
        if status == "404":
            return [], 0
        if status == "503":
            raise BusUnavailable(f"no response to {target}: its stream does not exist, or has no leader")
        if status != "204":
            raise BusError(f"{target} is refused: {status} {headers.get('Description', '')}")
        found = [message for each in inbox.messages if (message := read_direct(each, target)) is not None]
        return found, int(headers.get("Nats-Num-Pending", "0"))

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        """Return the subjects of the stored messages that match a filter, with their counts."""
        state = (await self._api.call(f"STREAM.INFO.{stream}", {"subjects_filter": subject}))["state"]
        return state.get("subjects") or {}

    async def _bounds(self, stream: str, subject: str) -> tuple[int, int]:
        """Return the first and last sequence to read."""
        state = (await self._api.call(f"STREAM.INFO.{stream}"))["state"]
        return max(1, state["first_seq"]), state["last_seq"]

    async def _between(self, stream: str, subject: str, start: int, end: int) -> list[StoredMessage] | None:
        """Return the headers of the messages in a range of sequences; None when they exceed a batch."""
        found: list[StoredMessage] = []
        reading = self.read(stream, subject, "all", headers_only=True, after=start - 1, before=end)
        async with aclosing(reading):
            async for message in reading:
                if len(found) >= BATCH:
                    return None
                found.append(message)
        return found

    def watch(self, stream: str, subject: str) -> AsyncGenerator[StoredMessage]:
        """Yield the newest message of a subject, then further ones, as :meth:`follow` does."""
        return self._follow(stream, subject, "last_per_subject", headers_only=False, after=0)

    async def newest(self, stream: str, subject: str) -> AsyncGenerator[StoredMessage]:
        """Yield the newest message of one subject, then each one that is the newest when it is looked for.

        It needs no consumer, of which a stream has a thousand at most, and continues after reconnects, and when the
        stream was deleted and is made again.

        Raises:
            BusError: it cannot begin.
            AccessDenied: the login may not read it.
            BusUnavailable: the connection was closed.
        """
        last, pause, begun = 0, RESTART_WAIT, False
        async with Hints(self._connection, subject) as hints:
            while True:
                hints.clear()
                try:
                    message = await self._api.last(stream, subject)
                except BusError as error:
                    if not self._passes(error, begun):
                        raise
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_RESTART_WAIT)
                    continue
                pause, begun = RESTART_WAIT, True
                if message is not None and message.sequence > last:
                    last = message.sequence
                    yield message
                if not await hints.wait(found=last > hints.expected):
                    hints.expected = -1

    def _passes(self, error: BusError, begun: bool) -> bool:
        """Return whether to read again after an error: that a stream is gone that was there will pass, too."""
        lasts = self._connection.ended or isinstance(error, AccessDenied)
        return not lasts and (begun or isinstance(error, BusUnavailable))

    async def subject(self, stream: str, subject: str, *, after: int = 0) -> AsyncGenerator[StoredMessage]:
        """Yield all messages of one subject after a sequence, then further ones, as :meth:`newest` does."""
        counted, is_first, pause, begun = 0, True, RESTART_WAIT, False
        async with Hints(self._connection, subject) as hints:
            while True:
                hints.clear()
                request = {"seq": after + 1, "next_by_subj": subject, "batch": SUBJECT_BATCH, "max_bytes": BATCH_BYTES}
                try:
                    found, pending = await self.get(stream, request)
                except BusError as error:
                    if not self._passes(error, begun):
                        raise
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_RESTART_WAIT)
                    continue
                pause, begun = RESTART_WAIT, True
                for message in found:
                    after = message.sequence
                    yield message
                counted += 0 if is_first else len(found)  # those of the first look may have had no hint
                is_first = is_first and bool(found and pending)
                if not (found and pending) and not await hints.wait(found=counted >= hints.received):
                    counted = hints.received

    def follow(
        self, stream: str, subject: str, *, after: int = 0, headers_only: bool = True
    ) -> AsyncGenerator[StoredMessage]:
        """Yield the messages that match a filter after a sequence, then further ones; by default their headers.

        Pulls one batch at a time, which bounds the buffer, and continues after reconnects, and when the stream was
        deleted and is made again.

        Raises:
            BusError: it cannot begin.
            AccessDenied: the login may not read the stream, or may no longer.
            BusUnavailable: the connection was closed.
        """
        return self._follow(stream, subject, "all", headers_only=headers_only, after=after)

    async def _follow(
        self, stream: str, subject: str, policy: Policy, *, headers_only: bool, after: int
    ) -> AsyncGenerator[StoredMessage]:
        stale, pulled, received, last, consumer, pause = True, False, 0, after, "", RESTART_WAIT
        inbox: Inbox | None = None

        def begin_anew() -> None:
            nonlocal stale
            stale = True
            if inbox is not None:
                inbox.wake()

        def on_status(status: str, _headers: dict[str, str]) -> None:
            nonlocal pulled
            if status == "100":
                return  # a heartbeat
            pulled = False
            if status != "408":
                begin_anew()
            elif inbox is not None:
                inbox.wake()

        forget = (self._connection.on_reconnect(begin_anew), self._connection.on_closed(begin_anew))
        now = asyncio.get_running_loop().time
        try:
            while True:
                if self._connection.ended:
                    raise self._connection.unavailable(f"following {subject[:200]} ended")
                if stale and self._connection.alive:
                    if inbox is not None:
                        await inbox.close()
                    stale, pulled, inbox = False, False, Inbox(self._client, on_status)
                    await inbox.open()
                    try:
                        created = await self._consumer(stream, subject, policy, headers_only, last)
                    except BusError as error:
                        if not consumer or isinstance(error, AccessDenied):
                            raise
                        outage_log.warn(logger, "a stream cannot be followed yet: %s", error, extra={"stream": stream})
                        stale, pause = True, min(2 * pause, LONGEST_RESTART_WAIT)
                        await asyncio.sleep(pause)
                        continue
                    consumer, pause = created["name"], RESTART_WAIT
                if inbox is None:
                    await asyncio.sleep(RESTART_WAIT)
                    continue
                if not pulled and not stale:
                    pulled, received = True, 0
                    pull = {"batch": BATCH, "expires": _PULL, "idle_heartbeat": round(HEARTBEAT * 1e9)}
                    await self._client.publish(
                        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(pull).encode(), inbox.subject
                    )
                while inbox.messages:
                    message, _pending = _stored(inbox.messages.popleft())
                    received += 1
                    last = message.sequence
                    yield message
                if received >= BATCH:
                    pulled = False
                elif pulled and not stale:
                    await inbox.wait(max(RESTART_WAIT, inbox.heard + SILENCE - now()))
                    if now() >= inbox.heard + SILENCE:
                        stale = True
                elif stale and not self._connection.alive:
                    await inbox.wait(RESTART_WAIT)
        finally:
            for each in forget:
                each()
            if inbox is not None:
                await inbox.close()
            if consumer and self._connection.alive:
                with suppress(BusError):  # the server removes it after a minute anyway
                    await self._api.send(f"CONSUMER.DELETE.{stream}.{consumer}")

    async def _consumer(
        self, stream: str, subject: str, policy: Policy, headers_only: bool, after: int
    ) -> dict[str, Any]:
        # Name and filter are in the subject of the call, so that permissions can restrict what is read.
        name = f"reader-{uuid4().hex}"
        start = (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1} if after else {"deliver_policy": policy}
        )
        config = {**_EPHEMERAL, **start, "name": name, "filter_subject": subject, "headers_only": headers_only}
        body = {"stream_name": stream, "config": config}
        return await self._api.call(f"CONSUMER.CREATE.{stream}.{name}.{subject}", body)


def _stored(message: Msg) -> tuple[StoredMessage, int]:
    """Convert a delivered message; return it and the number of those that follow."""
    tokens = message.reply.split(".")
    at = 4 if len(tokens) >= 11 else 2  # the newer form has domain and account before the stream
    stored = StoredMessage(
        subject=message.subject,
        sequence=int(tokens[at + 3]),
        time=int(tokens[at + 5]) / 1e9,
        headers=message.headers or {},
        payload=message.data,
    )
    return stored, int(tokens[at + 6])
