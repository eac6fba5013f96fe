"""Direct gets: reading streams that belong to another account, where a login may create no consumers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Literal

from nats import errors as nats_errors

from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.jetstream.client.api import StoredMessage, read_direct
from plancast_bus.jetstream.client.inbox import Inbox
from plancast_bus.jetstream.messaging.stream_reader import StreamReader

logger = logging.getLogger(__name__)

PIECE = 256
"""Messages of one request,"""
PIECE_BYTES = 4 << 20
"""and their bytes: at least one message is sent."""
POLL = 0.1
"""Seconds between two looks at what is watched or followed."""


class DirectReader(StreamReader):
    """Reads streams by batched direct gets, which account exports let through; a consumer's API they do not.

    Payloads are transferred also where headers alone are asked for: the server has no direct get without them.
    """

    async def read(
        self,
        stream: str,
        subject: str,
        policy: Literal["all", "last_per_subject"],
        *,
        headers_only: bool = False,
        after: int = 0,
        before: int = 0,
    ) -> AsyncGenerator[StoredMessage]:
        """What a stream holds under a subject; see :meth:`StreamReader.read`."""
        newest: dict[str, StoredMessage] = {}
        start = after + 1
        for _ in range(1 if before else 2):  # what was stored anew while reading has moved behind the end
            end = before - 1 if before else await self._last(stream, subject)
            while start <= end:
                piece, pending = await self._piece(stream, subject, start)
                for message in piece:
                    if before and message.sequence > end:
                        break
                    if headers_only:
                        message.payload = b""
                    if policy == "last_per_subject":
                        newest[message.subject] = message
                    else:
                        yield message
                start = piece[-1].sequence + 1 if piece else end + 1
                if not pending:
                    break
        for message in sorted(newest.values(), key=lambda each: each.sequence):
            yield message

    async def watch(self, stream: str, subject: str) -> AsyncGenerator[StoredMessage]:
        """The newest message of a subject, then each further one that a look finds; outlives reconnects."""
        last = 0
        while True:
            try:
                message = await self._api.last(stream, subject)
            except BusUnavailable as error:
                self._endure(error)
            else:
                if message is not None and message.sequence > last:
                    last = message.sequence
                    yield message
            await asyncio.sleep(POLL)

    async def follow(self, stream: str, subject: str, *, after: int = 0) -> AsyncGenerator[StoredMessage]:
        """The headers of what a stream holds under a subject behind a sequence, then of what it is given.

        Raises:
            BusUnavailable: the connection was closed.
        """
        while True:
            try:
                async for message in self.read(stream, subject, "all", headers_only=True, after=after):
                    after = message.sequence
                    yield message
            except BusUnavailable as error:
                self._endure(error)
            await asyncio.sleep(POLL)

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        """The subjects under a filter that a stream holds messages of, and how many of each."""
        return Counter([each.subject async for each in self.read(stream, subject, "all", headers_only=True)])

    async def _bounds(self, stream: str, subject: str) -> tuple[int, int]:
        last = await self._last(stream, subject)
        piece, _ = await self._piece(stream, subject, 1, 1) if last else ([], 0)
        return (piece[0].sequence, last) if piece else (1, 0)

    async def _last(self, stream: str, subject: str) -> int:
        """The sequence of the newest message; 0 when there is none. Raises AccessDenied where that may not be read."""
        message = await self._api.newest(stream, subject)
        return message.sequence if message is not None else 0

    async def _piece(self, stream: str, subject: str, start: int, size: int = PIECE) -> tuple[list[StoredMessage], int]:
        """The next messages from a sequence on, and how many follow them.

        Raises:
            BusUnavailable: the answer does not come, or not whole.
        """
        target = f"$JS.API.DIRECT.GET.{stream}"
        ended: list[tuple[str, dict[str, str]]] = []

        def on_status(status: str, headers: dict[str, str]) -> None:
            ended.append((status, headers))
            inbox.wake()

        inbox = Inbox(self._client, on_status)
        try:
            await inbox.open()
            request = {"seq": start, "next_by_subj": subject, "batch": size, "max_bytes": PIECE_BYTES}
            await self._client.publish(target, json.dumps(request).encode(), inbox.subject)
            while not ended:
                heard = inbox.heard
                await inbox.wait_for_next(self._connection.timeout)
                if not ended and inbox.heard == heard:
                    raise self._connection.unavailable(f"reading {stream} was interrupted")
        except nats_errors.Error as error:
            raise self._connection.unavailable(f"{stream} cannot be read") from error
        finally:
            await inbox.close()
        status, headers = ended[0]
        if status == "404":
            return [], 0
        if status == "503":
            raise BusUnavailable(f"nobody answers to {target}: its stream is not there, or has no leader")
        if status != "204":
            raise BusError(f"{target} is refused: {status} {headers.get('Description', '')}")
        found = [message for each in inbox.messages if (message := read_direct(each, target)) is not None]
        pending = int(headers.get("Nats-Num-Pending", "0"))
        if pending and not found:
            raise self._connection.unavailable(f"reading {stream} was interrupted")
        return found, pending

    def _endure(self, error: BusUnavailable) -> None:
        if self._connection.ended or isinstance(error, AccessDenied):
            raise error
        logger.debug("looking again: %s", error)
