"""Placeholders: one empty message in each work queue, so that the queue never becomes empty.

A stream stores messages in blocks, files of some megabytes, and removes a block with its last message. Where each
message is acknowledged before the next one arrives, as with a single plan, the server would remove and create a file
per message. With a placeholder in the block it only records the acknowledgement. Since blocks fill up, readers of
results move the placeholders to the end of their streams from time to time.
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
"""Messages read after which placeholders are moved, before the messages that they cause fill a block."""


class Placeholders:
    """The placeholders of a deployment's work queues."""

    def __init__(self, api: JetStreamApi, publisher: Publisher, names: StreamNames, subjects: Subjects) -> None:
        self._api = api
        self._publisher = publisher
        self._places = [(names.of_source(source), subjects.placeholder(source)) for source in WORK_QUEUES]
        self._read = 0
        self._placing: asyncio.Task[None] | None = None

    async def place(self) -> None:
        """Put a placeholder at the end of each work queue, and remove the previous one.

        A failure, as with a full stream, only makes the queue slower.
        """
        await asyncio.gather(*(self._place(stream, subject) for stream, subject in self._places))

    def note(self, count: int) -> None:
        """Count messages read, and move the placeholders in the background from time to time."""
        self._read += count
        if self._read >= EVERY and (self._placing is None or self._placing.done()):
            self._read = 0
            self._placing = asyncio.get_running_loop().create_task(self.place())

    async def _place(self, stream: str, subject: str) -> None:
        try:
            await self._publisher.publish_acked(subject, b"", {})
            await self._api.call(f"STREAM.PURGE.{stream}", {"filter": subject, "keep": 1})
        except BusError as error:
            logger.debug("a work queue has no new placeholder: %s", error, extra={"stream": stream})
