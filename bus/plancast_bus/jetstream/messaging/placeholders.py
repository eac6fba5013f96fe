"""Placeholders: a message of no meaning in each work queue, so that it is never empty.

A stream keeps its messages in blocks, files of some megabytes, and removes a block with its last message. Where each
message is acknowledged before the next one comes, as with a plan alone, every message would have the server remove a
file and make another. With one that stays, what is acknowledged is only noted in the block. Blocks end once they are
full, so keepers are placed anew from time to time, at the end of their streams, by whoever reads results.
"""

from __future__ import annotations

import asyncio
import logging

from plancast_bus.errors import BusError
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.subjects import Subjects
from plancast_bus.topics import WORK_QUEUES

logger = logging.getLogger(__name__)

EVERY = 1000
"""Messages read after which keepers are placed anew, before they fill a block of megabytes with what they lead to."""


class Placeholders:
    """The keepers of a deployment's work queues."""

    def __init__(self, api: JetStreamApi, publisher: Publisher, names: StreamNames, subjects: Subjects) -> None:
        self._api = api
        self._publisher = publisher
        self._places = [(names.of_source(source), subjects.placeholder(source)) for source in WORK_QUEUES]
        self._read = 0
        self._placing: asyncio.Task[None] | None = None

    async def place(self) -> None:
        """Place a keeper at the end of each work queue, and remove the one before.

        Where that fails, as with a stream that is full, its queue is slower, and nothing else.
        """
        await asyncio.gather(*(self._place(stream, subject) for stream, subject in self._places))

    def note(self, count: int) -> None:
        """Note that so many messages were read; now and then the keepers are placed anew for it, in passing."""
        self._read += count
        if self._read >= EVERY and (self._placing is None or self._placing.done()):
            self._read = 0
            self._placing = asyncio.get_running_loop().create_task(self.place())

    async def _place(self, stream: str, subject: str) -> None:
        try:
            await self._publisher.publish_acked(subject, b"", {})
            await self._api.call(f"STREAM.PURGE.{stream}", {"filter": subject, "keep": 1})
        except BusError as error:
            logger.debug("a work queue has no new keeper: %s", error, extra={"stream": stream})
