"""Values in a stream: a message for each 512 KiB of a content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from cachetools import LRUCache

from plancast_bus.errors import AccessDenied, BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import deflate, inflate
from plancast_bus.events.folding import Reference
from plancast_bus.events.references import Writer
from plancast_bus.jetstream.client.api import MESSAGE_GONE, ApiError, StoredMessage
from plancast_bus.jetstream.client.request_reply import NoResponders
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.values import FRAME_BYTES, PlanWithValues, StoredValue, checked, frames_of
from plancast_bus.subjects import decode_token

CACHE_BYTES = 32 << 20
"""Contents that a connection keeps in memory: watchers and pages read the same ones again."""
AT_ONCE = 32
"""Messages under way at a time, each of up to :data:`FRAME_BYTES`."""


LEAST_DEFLATED = 512
"""Bytes from which a message is worth compressing."""
MOST_AT_ONCE = 64 * 1024
"""Bytes up to which a message is compressed where it is sent; larger ones in a thread, as it takes milliseconds."""
ENCODING, DEFLATE = "Content-Encoding", "deflate"


class _Read(NamedTuple):
    content: bytes
    stored_at: float
    """By the server's clock; 0 where another process has read it."""


class JetStreamValues(Store):
    """The store of values."""

    def __init__(self, access: StreamAccess, writer: Writer = "runtime") -> None:
        super().__init__(access)
        self.writer: Writer = writer
        self._cache: LRUCache[tuple[str, bytes], _Read] = LRUCache(
            CACHE_BYTES, getsizeof=lambda each: len(each.content)
        )

    async def put(self, tenant: str, plan: str | None, contents: Mapping[bytes, bytes]) -> None:
        messages = [(self._subjects.plan_with_values(plan), b"")] if plan is not None else []
        for digest, content in contents.items():
            for frame, start in enumerate(range(0, len(content), FRAME_BYTES)):
                subject = self._subjects.value(tenant, digest.hex(), frame, self.writer)
                messages.append((subject, content[start : start + FRAME_BYTES]))
        for start in range(0, len(messages), AT_ONCE):
            await asyncio.gather(*(self._store(*each) for each in messages[start : start + AT_ONCE]))

    async def _store(self, subject: str, frame: bytes) -> None:
        """Store a message; compressed where that saves much."""
        headers = {}
        if len(frame) >= LEAST_DEFLATED:
            deflated = await asyncio.to_thread(deflate, frame) if len(frame) > MOST_AT_ONCE else deflate(frame)
            if len(deflated) < len(frame) * 7 // 8:
                frame, headers = deflated, {ENCODING: DEFLATE}
        await self._publisher.publish_acked(subject, frame, headers)

    async def get(
        self,
        tenant: str,
        references: Iterable[Reference],
        writer: Writer = "runtime",
        stored_at: dict[bytes, float] | None = None,
    ) -> dict[bytes, bytes]:
        contents: dict[bytes, bytes] = {}
        places = asyncio.Semaphore(AT_ONCE)

        async def read(reference: Reference) -> None:
            key = tenant, reference.digest
            found = self._cache.get(key)
            if found is None:
                name, numbers = reference.digest.hex(), range(frames_of(reference))
                subjects = [self._subjects.value(tenant, name, frame, writer) for frame in numbers]
                frames = await asyncio.gather(*(self._frame(subject, places) for subject in subjects))
                parts = [each for each in frames if each is not None]
                content = checked(reference, b"".join(each.content for each in parts) or None)
                found = _Read(content, min(each.stored_at for each in parts))
                if len(content) <= CACHE_BYTES:
                    self._cache[key] = found
            contents[reference.digest] = found.content
            if stored_at is not None and self.writer == "runtime":
                stored_at[reference.digest] = found.stored_at

        await asyncio.gather(*map(read, references))
        return contents

    async def _frame(self, subject: str, places: asyncio.Semaphore) -> _Read | None:
        async with places:
            if self.writer == "runtime":
                return await self._stored(subject)
            try:
                content = await self._api.ask(self._subjects.value_read(subject))
                return _Read(content, 0.0) if content else None
            except NoResponders as absence:  # observers may read the stream when no runtime is there
                try:
                    return await self._stored(subject)
                except AccessDenied:
                    raise BusUnavailable("no dispatcher runs, which serves large values to logins") from absence

    async def _stored(self, subject: str) -> _Read | None:
        message = await self._newest(self._names.values, subject)
        if message is None:
            return None
        content = message.payload
        if message.headers.get(ENCODING) == DEFLATE:
            large = len(content) > MOST_AT_ONCE
            content = await asyncio.to_thread(_inflated, content) if large else _inflated(content)
        return _Read(content, message.time)

    async def serve(self, subject: str) -> bytes:
        """Return what a login reads on a subject of ``Subjects.value_read``; empty if there is nothing."""
        try:
            found = await self._stored(self._subjects.parse_value_read(subject))
        except InvalidSubject:
            return b""
        return found.content if found is not None else b""

    async def now(self) -> float:
        subject = self._subjects.value_clock
        await self._publisher.publish_acked(subject, b"", {})
        message = await self._api.last_from_leader(self._names.values, subject)
        if message is None:
            raise BusUnavailable(f"{self._names.values} was emptied a moment ago")
        return message.time

    async def values(self) -> AsyncGenerator[StoredValue]:
        async with aclosing(self._listed(self._subjects.every_value)) as messages:
            async for message in messages:
                try:
                    tenant, digest = self._subjects.parse_value(message.subject)
                    content = bytes.fromhex(digest)
                except (InvalidSubject, ValueError):
                    continue  # nothing that plancast wrote
                size = int(message.headers.get("Nats-Msg-Size", 0))
                yield StoredValue(tenant, content, message.sequence, size, message.time)

    async def plans(self) -> AsyncGenerator[PlanWithValues]:
        async with aclosing(self._listed(self._subjects.plans_with_values)) as messages:
            async for message in messages:
                plan = decode_token(message.subject.rpartition(".")[2])
                yield PlanWithValues(plan, message.sequence, message.time)

    def _listed(self, subject: str) -> AsyncGenerator[StoredMessage]:
        return self._reader.read(self._names.values, subject, "all", headers_only=True)

    async def drop(self, stored: Sequence[StoredValue | PlanWithValues]) -> None:
        for each in stored:
            try:
                request = {"seq": each.version, "no_erase": True}
                await self._api.call(f"STREAM.MSG.DELETE.{self._names.values}", request)
            except ApiError as error:
                if error.code not in MESSAGE_GONE:
                    raise


def _inflated(payload: bytes) -> bytes:
    """Decompress a message; empty where it is damaged, as the digest tells."""
    try:
        return inflate(payload, FRAME_BYTES)
    except InvalidEnvelope:
        return b""
