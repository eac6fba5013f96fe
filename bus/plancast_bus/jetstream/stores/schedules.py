"""Schedules in JetStream: the last message of each subject, replaced by an expected sequence."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from plancast_bus.errors import InvalidSubject
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, TTL, ttl_header
from plancast_bus.jetstream.stores.registry import DELETED
from plancast_bus.jetstream.stores.store import Store
from plancast_bus.ports.schedules import ScheduleKey, StoredSchedule

logger = logging.getLogger(__name__)
MARKER_SECONDS = 60.0
"""Lifetime of a deletion's marker, which tells followers of it."""


class JetStreamSchedules(Store):
    """Schedules in a stream of their own."""

    async def read(self, key: ScheduleKey) -> StoredSchedule:
        message = await self._newest(self._names.schedules, self._subjects.schedule(*key))
        return StoredSchedule(key, b"", 0) if message is None else _version(key, message)

    async def replace(self, key: ScheduleKey, value: bytes, version: int, *, ttl: float | None = None) -> int:
        headers = {EXPECTED: str(version)}
        if ttl is not None:
            headers[TTL] = ttl_header(ttl)
        return (await self._publisher.publish_acked(self._subjects.schedule(*key), value, headers)).sequence

    async def delete(self, key: ScheduleKey) -> None:
        headers = {TTL: ttl_header(MARKER_SECONDS), DELETED: "DEL"}
        await self._publisher.publish_acked(self._subjects.schedule(*key), b"", headers)

    async def list(self) -> list[StoredSchedule]:
        reading = self._reader.read(self._names.schedules, self._subjects.schedules, "last_per_subject")
        async with aclosing(reading):
            return [each async for each in self._versions(reading) if each.value]

    async def watch(self) -> AsyncGenerator[StoredSchedule]:
        async with aclosing(self._reader.watch(self._names.schedules, self._subjects.schedules)) as messages:
            async for each in self._versions(messages):
                yield each

    async def _versions(self, messages: AsyncGenerator[StoredMessage]) -> AsyncGenerator[StoredSchedule]:
        async for message in messages:
            try:
                key = ScheduleKey(*self._subjects.parse_schedule(message.subject))
            except InvalidSubject:
                logger.warning("a schedule has no readable name and is skipped", extra={"subject": message.subject})
            else:
                yield _version(key, message)


def _version(key: ScheduleKey, message: StoredMessage) -> StoredSchedule:
    return StoredSchedule(key, b"" if message.is_marker else message.payload, message.sequence)
