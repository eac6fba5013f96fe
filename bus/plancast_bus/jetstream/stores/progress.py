"""Progress notes in a stream of their own, a subject for each plan."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nats import errors as nats_errors

from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.progress import ProgressNote

logger = logging.getLogger(__name__)


class JetStreamProgress(Store):
    """Sends and reads progress notes."""

    def __init__(self, access: StreamAccess, connection: Connection) -> None:
        super().__init__(access)
        self._connection = connection

    async def put(self, tenant: str, plan_id: str, payload: bytes) -> None:
        try:
            await self._connection.client.publish(self._subjects.progress(tenant, plan_id), payload)
        except nats_errors.Error as error:
            logger.debug("a progress note was not sent: %s", error)

    async def kept(self, tenant: str, plan_id: str, *, after: int = 0) -> list[ProgressNote]:
        reading = self._reader.read(self._names.progress, self._subjects.progress(tenant, plan_id), "all", after=after)
        async with aclosing(reading):
            return [ProgressNote(each.sequence, each.time, each.payload) async for each in reading]

    async def follow(self, tenant: str, plan_id: str, *, after: int = 0) -> AsyncGenerator[ProgressNote]:
        subject = self._subjects.progress(tenant, plan_id)
        following = self._reader.follow(self._names.progress, subject, after=after, headers_only=False)
        async with aclosing(following):
            async for each in following:
                yield ProgressNote(each.sequence, each.time, each.payload)
