"""Reads streams of another account by direct gets, where a login may not create consumers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator

from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.messaging.stream_reader import Policy, StreamReader

logger = logging.getLogger(__name__)

BATCH = 256
"""Maximum messages per request."""
BATCH_BYTES = 4 << 20
"""Maximum bytes per request; at least one message is sent."""
POLL = 0.1
"""Seconds between polls of what is watched or followed."""


class DirectReader(StreamReader):
    """Reads streams by batched direct gets, which account exports allow, unlike the API of consumers.

    Payloads are always transferred: the server has no direct get for headers only.
    """

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
        newest: dict[str, StoredMessage] = {}
        start = after + 1
        for _ in range(1 if before else 2):  # messages replaced while reading have moved behind the end
            end = before - 1 if before else await self._last(stream, subject)
            while start <= end:
                batch, pending = await self._batch(stream, subject, start)
                for message in batch:
                    if before and message.sequence > end:
                        break
                    if headers_only:
                        message.payload = b""
                    if policy == "last_per_subject":
                        newest[message.subject] = message
                    else:
                        yield message
                start = batch[-1].sequence + 1 if batch else end + 1
                if not pending:
                    break
        for message in sorted(newest.values(), key=lambda each: each.sequence):
            yield message

    async def watch(self, stream: str, subject: str) -> AsyncGenerator[StoredMessage]:
        last = 0
        while True:
            try:
                message = await self._api.last(stream, subject)
            except BusUnavailable as error:
                self._raise_if_final(error)
            else:
                if message is not None and message.sequence > last:
                    last = message.sequence
                    yield message
            await asyncio.sleep(POLL)

    def newest(self, stream: str, subject: str) -> AsyncGenerator[StoredMessage]:
        return self.watch(stream, subject)

    def subject(self, stream: str, subject: str, *, after: int = 0) -> AsyncGenerator[StoredMessage]:
        return self.follow(stream, subject, after=after, headers_only=False)

    async def follow(
        self, stream: str, subject: str, *, after: int = 0, headers_only: bool = True
    ) -> AsyncGenerator[StoredMessage]:
        while True:
            try:
                async for message in self.read(stream, subject, "all", headers_only=headers_only, after=after):
                    after = message.sequence
                    yield message
            except BusUnavailable as error:
                self._raise_if_final(error)
            await asyncio.sleep(POLL)

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        return Counter([each.subject async for each in self.read(stream, subject, "all", headers_only=True)])

    async def _bounds(self, stream: str, subject: str) -> tuple[int, int]:
        last = await self._last(stream, subject)
        batch, _ = await self._batch(stream, subject, 1, 1) if last else ([], 0)
        return (batch[0].sequence, last) if batch else (1, 0)

    async def _last(self, stream: str, subject: str) -> int:
        """Return the sequence of the newest message, or 0. Raises AccessDenied where reading is not allowed."""
        message = await self._api.newest(stream, subject)
        return message.sequence if message is not None else 0

    async def _batch(self, stream: str, subject: str, start: int, size: int = BATCH) -> tuple[list[StoredMessage], int]:
        """Return the next messages from a sequence on, and the number of those that follow; raises as :meth:`get`."""
        request = {"seq": start, "next_by_subj": subject, "batch": size, "max_bytes": BATCH_BYTES}
        found, pending = await self.get(stream, request)
        if pending and not found:
            raise self._connection.unavailable(f"reading {stream} was interrupted")
        return found, pending

    def _raise_if_final(self, error: BusUnavailable) -> None:
        if self._connection.ended or isinstance(error, AccessDenied):
            raise error
        logger.debug("retrying: %s", error)
