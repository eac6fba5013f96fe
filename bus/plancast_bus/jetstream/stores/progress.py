"""Progress notes in a stream of their own, a subject for each plan."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nats import errors as nats_errors

from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.progress import KEPT_NOTES, ProgressNote

logger = logging.getLogger(__name__)

BATCH_BYTES = 4 << 20
"""Most bytes of one read; at least one note is sent."""


class JetStreamProgress(Store):
    """Sends and reads progress notes."""

    def __init__(self, access: StreamAccess, connection: Connection) -> None:
        super().__init__(access)
        self._connection = connection

    async def put(self, plan_id: str, payload: bytes) -> None:
        try:
            await self._connection.client.publish(self._subjects.progress(plan_id), payload)
        except nats_errors.Error as error:
            logger.debug("a progress note was not sent: %s", error)

    async def kept(self, plan_id: str, *, after: int = 0) -> list[ProgressNote]:
        subject, found = self._subjects.progress(plan_id), list[ProgressNote]()
        while True:
            last = found[-1].sequence if found else after
            request = {"seq": last + 1, "next_by_subj": subject, "batch": KEPT_NOTES, "max_bytes": BATCH_BYTES}
            batch, pending = await self._reader.get(self._names.progress, request)
            found += [ProgressNote(each.sequence, each.time, each.payload) for each in batch]
            if not batch or not pending:
                return found

    async def follow(self, plan_id: str, *, after: int = 0) -> AsyncGenerator[ProgressNote]:
        subject = self._subjects.progress(plan_id)
        following = self._reader.subject(self._names.progress, subject, after=after)
        async with aclosing(following):
            async for each in following:
                yield ProgressNote(each.sequence, each.time, each.payload)
