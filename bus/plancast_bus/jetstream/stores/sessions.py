"""The store of sessions: one message per session with all its values, replaced by compare-and-set."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from plancast_bus.jetstream.client.acks import WrongLastSequence
from plancast_bus.jetstream.client.api import JetStreamApi, StoredMessage
from plancast_bus.jetstream.client.request_reply import Headers
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, TTL, ttl_header
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.effects import Share
from plancast_bus.ports.sessions import KIND, SessionBounds, merged, plain_values
from plancast_bus.subjects import Subjects


class JetStreamSessions:
    """Values that plans of a session share."""

    def __init__(
        self, api: JetStreamApi, publisher: Publisher, subjects: Subjects, *, replicated: bool = False
    ) -> None:
        self._api = api
        # A replica that lags would lack what the plan before has shared.
        self._newest = api.last_from_leader if replicated else api.last
        self._publisher = publisher
        self._subjects = subjects
        self._stream = StreamNames.of(subjects.prefix).meta

    async def merge(self, share: Share, version: int, bounds: SessionBounds) -> None:
        subject = self._subjects.registry(KIND, share.session)
        while True:
            message = await self._api.last_from_leader(self._stream, subject)
            stored = _payload(message)
            after = merged(stored, share, version, bounds)
            if after == stored:
                return
            headers: Headers = {EXPECTED: str(message.sequence if message is not None else 0)}
            if bounds.ttl > 0:
                headers[TTL] = ttl_header(bounds.ttl)
            try:
                await self._publisher.publish_acked(subject, after, headers)
                return
            except WrongLastSequence:  # another plan of the session was faster, or an acknowledgement was lost
                await asyncio.sleep(random.random() * 0.01)

    async def read(self, session: str) -> dict[str, Any]:
        return plain_values(_payload(await self._newest(self._stream, self._subjects.registry(KIND, session))))


def _payload(message: StoredMessage | None) -> bytes:
    return b"" if message is None or message.is_marker else message.payload
