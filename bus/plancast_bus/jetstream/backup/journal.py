"""The journal of a backup: what is published while the streams are copied one after another.

An answer may come and be processed between the copies of its stream and of its plan's checkpoint. So every event, timer
and response is noted from before the first copy until after that of the checkpoints; a restoration publishes those
again whose turn is in the checkpoints.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nats import errors as nats_errors
from nats.aio.subscription import Subscription

from plancast_bus.jetstream.backup.archive import PartWriter
from plancast_bus.jetstream.backup.link import Link
from plancast_bus.jetstream.client.parser import Tap

ROUTE_SECONDS = 2.0
"""Seconds for which a message may be on its way from another server of a cluster."""
_REPUBLISHED = "Nats-Stream"
"""Header that the server adds to events that it publishes from a response, which is noted itself."""


class Journal:
    """Notes the messages of a deployment while it is open."""

    def __init__(self, link: Link, writer: PartWriter) -> None:
        self._link = link
        self._writer = writer
        self._subscriptions: list[Subscription] = []
        self._failure: OSError | None = None

    async def open(self) -> None:
        """Begin; on return, every message that is published from now on is noted."""
        for subject in self._link.subjects.journaled():
            self._subscriptions.append(await self._link.client.subscribe(subject, future=Tap(self._take)))
        await self._catch_up()

    async def close(self) -> None:
        """End; every message that was published until now is noted.

        Raises:
            OSError: the disk is full, for example.
        """
        await self._catch_up()
        for subscription in self._subscriptions:
            with suppress(nats_errors.Error):
                await subscription.unsubscribe()
        if self._failure is not None:
            raise self._failure

    async def _catch_up(self) -> None:
        if self._link.connection.in_cluster:
            await asyncio.sleep(ROUTE_SECONDS)
        await self._link.client.flush()

    def _take(self, subject: str, _reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        if self._failure is not None or (headers is not None and _REPUBLISHED in headers):
            return
        try:
            self._writer.write_record(subject, headers or {}, data)
        except OSError as error:  # a tap may not raise
            self._failure = error
