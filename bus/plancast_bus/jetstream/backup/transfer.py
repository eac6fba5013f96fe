"""Transfer of one whole stream by the snapshot API of JetStream, in chunks with flow control both ways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from nats import errors as nats_errors

from plancast_bus.errors import BusError
from plancast_bus.jetstream.backup.archive import PartWriter
from plancast_bus.jetstream.backup.link import SILENCE, Link
from plancast_bus.jetstream.client.parser import Tap

WINDOW = 32
"""Chunks of a restoration that are on their way."""
RESTORE_SECONDS = 600.0
"""Seconds within which the server builds a stream from what it has received."""
_COMPLETE = ("", "204")


class _Arrivals:
    """Counts what arrives for a transfer, and wakes the one who waits for it."""

    def __init__(self) -> None:
        self.count = 0
        self.failure: Exception | None = None
        self.ended = False
        self._event = asyncio.Event()

    def note(self) -> None:
        self.count += 1
        self._event.set()

    def end(self, failure: Exception | None = None) -> None:
        self.ended, self.failure = True, self.failure or failure
        self._event.set()

    async def next(self, seconds: float, what: str) -> None:
        self._event.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError as error:
            raise BusError(f"{what}: the nats-server has sent nothing for {seconds:g} s") from error


async def receive_snapshot(link: Link, stream: str, writer: PartWriter, noted: Callable[[], None]) -> dict[str, Any]:
    """Write what the server sends for a stream; return the stream's ``config`` and its ``state`` at the beginning.

    Raises:
        BusError: the server ended it before it was complete.
        OSError: it cannot be written.
    """
    arrivals = _Arrivals()

    def take(_subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        if arrivals.ended:
            return
        if not data:
            status = (headers or {}).get("Status", "")
            about = f"{status} {(headers or {}).get('Description', '')}"
            failed = BusError(f"the nats-server has ended the snapshot of {stream}: {about}")
            arrivals.end(None if status in _COMPLETE else failed)
            return
        try:
            writer.write(data)
        except OSError as error:  # a tap may not raise
            arrivals.end(error)
            return
        if reply:
            link.requester.send_one_way(reply, b"", {})
        arrivals.note()

    token = uuid4().hex
    subscription = await link.client.subscribe(link.subjects.snapshot(token), future=Tap(take))
    try:
        await link.client.flush()
        began = await _ask(link, stream, token)
        while not arrivals.ended:
            await arrivals.next(SILENCE, f"the snapshot of {stream} stands still")
            noted()
        if arrivals.failure is not None:
            raise arrivals.failure
        return began
    finally:
        with suppress(nats_errors.Error):
            await subscription.unsubscribe()


async def _ask(link: Link, stream: str, token: str) -> dict[str, Any]:
    operation = f"STREAM.SNAPSHOT.{stream}"
    if not link.restricted:
        return await link.api.call(operation, {"deliver_subject": link.subjects.snapshot(token)})
    reply = await link.requester.send(link.subjects.snapshot_request(stream), token.encode())
    return await link.api.settle(operation, reply)


async def send_snapshot(
    link: Link, stream: str, config: dict[str, Any], chunks: Iterable[bytes], noted: Callable[[int], None]
) -> None:
    """Have the server build a stream from its snapshot.

    Raises:
        BusError: it refuses to: the snapshot is damaged, or the stream exists.
    """
    began = await link.api.call(f"STREAM.RESTORE.{stream}", {"config": config, "state": {}})
    deliver = began["deliver_subject"]
    arrivals, result = _Arrivals(), list[dict[str, Any]]()

    def take(_subject: str, _reply: str, data: bytes, _headers: dict[str, str] | None) -> None:
        if data:
            result.append(json.loads(data))
            arrivals.end()
        else:
            arrivals.note()

    inbox = link.client.new_inbox()
    subscription = await link.client.subscribe(inbox, future=Tap(take))
    try:
        for sent, chunk in enumerate(chunks):
            while sent - arrivals.count >= WINDOW and not arrivals.ended:
                await arrivals.next(SILENCE, f"the restoration of {stream} stands still")
            if arrivals.ended:
                break
            await link.client.publish(deliver, chunk, inbox)
            noted(len(chunk))
        if not arrivals.ended:
            await link.client.publish(deliver, b"", inbox)
        while not arrivals.ended:
            await arrivals.next(RESTORE_SECONDS, f"the restoration of {stream} stands still")
        if (error := result[0].get("error")) is not None:
            raise BusError(f"the nats-server does not restore {stream}: {error.get('description', '')}")
    finally:
        with suppress(nats_errors.Error):
            await subscription.unsubscribe()
