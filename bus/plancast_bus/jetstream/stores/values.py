"""Values in a stream: a message for each 512 KiB of a content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from cachetools import LRUCache

from plancast_bus.errors import AccessDenied, BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import deflate, inflate
from plancast_bus.events.references import Writer
from plancast_bus.events.value_parts import Reference
from plancast_bus.jetstream.client.api import MESSAGE_GONE, ApiError, StoredMessage
from plancast_bus.jetstream.client.request_reply import NoResponders
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.values import FRAME_BYTES, PlanWithValues, StoredValue, checked, frames_of
from plancast_bus.subjects import decode_token

CACHE_BYTES = 32 << 20
"""Bytes of contents that a connection keeps in memory: watchers and pages read the same ones again."""
MOST_CACHED = FRAME_BYTES
"""Bytes of the largest of them: a few large ones would fill the memory of a host whose plans are passivated."""
AT_ONCE = 32
"""Requests under way at a time, each for up to :data:`FRAME_BYTES`."""
BATCH = 256
"""Maximum number of values per request."""
BATCH_BYTES = 2 * FRAME_BYTES
"""Maximum bytes per response, headers included."""
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
        found: dict[bytes, _Read] = {}
        missing: dict[bytes, Reference] = {}
        for each in references:
            known = self._cache.get((tenant, each.digest))
            if known is not None:
                found[each.digest] = known
            else:
                missing[each.digest] = each
        places = asyncio.Semaphore(AT_ONCE)

        async def read(batch: list[Reference]) -> None:
            frames: dict[str, _Read] = {}
            if len(batch) > 1:
                async with places:
                    frames = await self._batch([self._subject(tenant, each, 0, writer) for each in batch])
            for each in batch:
                content = await self._content(tenant, each, writer, frames, places)
                if len(content.content) <= MOST_CACHED:
                    self._cache[tenant, each.digest] = content
                found[each.digest] = content

        await asyncio.gather(*map(read, self._batches(missing.values())))
        if stored_at is not None and self.writer == "runtime":
            stored_at.update((digest, each.stored_at) for digest, each in found.items())
        return {digest: each.content for digest, each in found.items()}

    def _batches(self, references: Iterable[Reference]) -> Iterator[list[Reference]]:
        """Divide references into those that are read with one request, and large ones, which take one for each frame.

        Logins read each message by itself, from a dispatcher.
        """
        batch: list[Reference] = []
        size = 0
        for each in references:
            size += each.size
            if batch and (size > FRAME_BYTES or len(batch) == BATCH or self.writer != "runtime"):
                yield batch
                batch, size = [], each.size
            batch.append(each)
        if batch:
            yield batch

    async def _batch(self, subjects: list[str]) -> dict[str, _Read]:
        """Return those of these messages that are found at once.

        A replica may lag, and references of forged events may give a wrong size: the bytes of a request are bounded.
        """
        request = {"multi_last": subjects, "batch": len(subjects), "max_bytes": BATCH_BYTES}
        messages, _ = await self._reader.get(self._names.values, request)
        return {each.subject: await _read(each) for each in messages}

    async def _content(
        self, tenant: str, reference: Reference, writer: Writer, read: dict[str, _Read], places: asyncio.Semaphore
    ) -> _Read:
        """Return a content; its frames are those that were read, or else read now.

        Raises:
            UnreadableValue: it is missing or damaged.
        """
        subjects = [self._subject(tenant, reference, frame, writer) for frame in range(frames_of(reference))]
        if len(subjects) == 1 and subjects[0] in read:
            frames: list[_Read | None] = [read[subjects[0]]]
        else:
            frames = await asyncio.gather(*(self._frame(subject, places) for subject in subjects))
        parts = [each for each in frames if each is not None]
        content = checked(reference, b"".join(each.content for each in parts) or None)
        return _Read(content, min(each.stored_at for each in parts))

    def _subject(self, tenant: str, reference: Reference, frame: int, writer: Writer) -> str:
        return self._subjects.value(tenant, reference.digest.hex(), frame, writer)

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
        return await _read(message) if message is not None else None

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


async def _read(message: StoredMessage) -> _Read:
    content = message.payload
    if message.headers.get(ENCODING) == DEFLATE:
        large = len(content) > MOST_AT_ONCE
        content = await asyncio.to_thread(_inflated, content) if large else _inflated(content)
    return _Read(content, message.time)


def _inflated(payload: bytes) -> bytes:
    """Decompress a message; empty where it is damaged, as the digest tells."""
    try:
        return inflate(payload, FRAME_BYTES)
    except InvalidEnvelope:
        return b""
