"""The store of dead letters in a stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import uuid4

from plancast_bus.errors import DeadLetterNotFound, InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import REFERENCE_TYPES, pack, unpack_rows
from plancast_bus.events.envelope import MAX_NAME
from plancast_bus.events.references import Writer
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.bus import CUT_BYTES, DeadLetter, Delivery, refuse_replay
from plancast_bus.subjects import encode_token

LETTER = "Plancast-Dead-Letter"
"""Header that describes the message and the reason: JSON, ASCII."""
MAX_DETAIL = 2000
"""Maximum characters of the detail."""
MAX_CUT_DETAIL = 200
"""The same for a message that is too large or in a bundle."""
MAX_CONTENT_TYPE = 200
"""Maximum characters of a content type."""
MIN_BUNDLE, MAX_BUNDLE = 16, 1_000
"""Messages from which on bundles are written, and the maximum in a bundle."""
BUNDLE_BYTES = 256 * 1024
"""Approximate maximum bytes of a bundle."""
ENTRY_BYTES = 256
"""Approximate bytes of an entry of a bundle besides its payload and subject."""
BUNDLE = "~"
"""Separates reason and number of messages in the subject of a bundle; no encoded reason contains it."""
BUNDLED = ("subject", "content_type", "message_id", "detail")
"""Fields of each entry of a bundle, before the payload."""

Letter = dict[str, str | int | None]


class JetStreamDeadLetters(Store):
    """Dead letters; a letter's number is its sequence in the stream."""

    def __init__(self, access: StreamAccess, writer: Writer = "runtime") -> None:
        super().__init__(access)
        self._writer = writer
        self._stream = self._names.dead_letters

    async def put(self, delivery: Delivery, reason: str, detail: str) -> None:
        payload, size = delivery.payload, len(delivery.payload)
        while True:
            try:
                await self._put(delivery, payload, reason, detail)
                return
            except PayloadTooLarge:  # including the headers of the letter
                if not payload:
                    raise
            payload = payload[: min(CUT_BYTES, size // 2)] if len(payload) == size else payload[: len(payload) // 2]
            detail = detail[:MAX_CUT_DETAIL]

    async def _put(self, delivery: Delivery, payload: bytes, reason: str, detail: str) -> None:
        letter = self._letter(delivery, reason, detail[:MAX_DETAIL])
        if len(payload) < len(delivery.payload):
            letter["cut_from"] = len(delivery.payload)
        await self._store(encode_token(reason), f"{delivery.stream}:{delivery.sequence}", letter, payload)

    def _letter(self, delivery: Delivery, reason: str, detail: str) -> Letter:
        content_type, message_id = delivery.content_type, delivery.message_id  # of any length
        return {
            "reason": reason,
            "detail": detail,
            "subject": self._subjects.published_from_stored(delivery.subject),
            "content_type": content_type and content_type[:MAX_CONTENT_TYPE],
            "message_id": message_id and message_id[:MAX_NAME],
        }

    async def _store(self, token: str, message_id: str, letter: Letter, payload: bytes) -> None:
        headers = {"Nats-Msg-Id": message_id, LETTER: json.dumps(letter, separators=(",", ":"))}
        await self._publisher.publish_acked(self._subjects.dead_letter(token, self._writer), payload, headers)

    async def put_all(self, reason: str, messages: Sequence[tuple[Delivery, str]]) -> None:
        writes: list[Coroutine[Any, Any, None]] = []
        bundle: list[tuple[Delivery, str]] = []
        size = 0
        for delivery, detail in messages:
            weight = len(delivery.payload) + len(delivery.subject) + ENTRY_BYTES
            if len(messages) < MIN_BUNDLE or weight > BUNDLE_BYTES // 2:
                writes.append(self.put(delivery, reason, detail))
                continue
            if size + weight > BUNDLE_BYTES or len(bundle) == MAX_BUNDLE:
                writes.append(self._put_bundle(reason, bundle))
                bundle, size = [], 0
            bundle.append((delivery, detail))
            size += weight
        if bundle:
            writes.append(self._put_bundle(reason, bundle))
        for failure in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def _put_bundle(self, reason: str, bundle: list[tuple[Delivery, str]]) -> None:
        if len(bundle) == 1:
            ((delivery, detail),) = bundle
            await self.put(delivery, reason, detail)
            return
        letters = [self._letter(delivery, reason, detail[:MAX_CUT_DETAIL]) for delivery, detail in bundle]
        entries = [[*map(letter.get, BUNDLED), each.payload] for letter, (each, _) in zip(letters, bundle, strict=True)]
        origins = hashlib.sha256("".join(f"{each.stream}:{each.sequence} " for each, _ in bundle).encode())
        letter = letters[0] | {"more": len(bundle) - 1}
        referring = (each for each, _ in bundle if each.content_type in REFERENCE_TYPES)
        if (first := next(referring, None)) is not None:
            letter["content_type"] = first.content_type  # of one message at least; the entries have their own
        token = f"{encode_token(reason)}{BUNDLE}{len(bundle)}"
        try:
            await self._store(token, origins.hexdigest(), letter, pack(entries))
        except PayloadTooLarge:  # for this server
            half = len(bundle) // 2
            await self._put_bundle(reason, bundle[:half])
            await self._put_bundle(reason, bundle[half:])

    async def count(self) -> int:
        counts = await self._reader.subjects(self._stream, self._subjects.dead_letter("*", "*"))
        return sum(count * _messages_of(subject) for subject, count in counts.items())

    async def list(self, *, limit: int | None = None, after: int = 0) -> AsyncGenerator[DeadLetter]:
        shown = 0
        reading = self._reader.read(self._stream, self._subjects.dead_letter("*", "*"), "all", after=after)
        async with aclosing(reading):
            async for message in reading:
                if limit is not None and shown >= limit:
                    return
                shown += 1
                yield _letter(message)

    async def with_references(self) -> AsyncGenerator[DeadLetter]:
        every = self._subjects.dead_letter("*", "*")
        async with aclosing(self._reader.read(self._stream, every, "all", headers_only=True)) as headers:
            found = [each.sequence async for each in headers if _may_refer(each)]
        for number in found:
            message = await self._api.numbered(self._stream, number)
            for letter in _letters(message) if message is not None else ():
                if letter.content_type in REFERENCE_TYPES:
                    yield letter

    async def get(self, number: int) -> DeadLetter:
        return _letter(await self._message(number))

    async def _message(self, number: int) -> StoredMessage:
        message = await self._api.numbered(self._stream, number) if number > 0 else None
        if message is None:
            raise DeadLetterNotFound(f"there is no dead letter {number}")
        return message

    async def _publish(self, subject: str, content_type: str | None, payload: bytes) -> None:
        headers = {"Nats-Msg-Id": uuid4().hex}
        if content_type is not None:
            headers["Content-Type"] = content_type
        await self._publisher.publish_acked(subject, payload, headers)

    async def replay(self, number: int) -> None:
        message = await self._message(number)
        entries = _letters(message)
        for each in entries:
            refuse_replay(each, self._subjects)
        await asyncio.gather(*(self._publish(each.subject, each.content_type, each.payload) for each in entries))
        await self._api.call(f"STREAM.MSG.DELETE.{self._stream}", {"seq": number, "no_erase": True})


def _may_refer(message: StoredMessage) -> bool:
    """Return whether the headers of a letter name an event whose data is a reference."""
    try:
        return json.loads(message.headers[LETTER])["content_type"] in REFERENCE_TYPES
    except (LookupError, ValueError, TypeError, RecursionError):
        return False


def _letters(message: StoredMessage) -> list[DeadLetter]:
    """Decode a letter into one for each of its messages."""
    letter = _letter(message)
    return _bundled(letter, message.payload) if letter.more else [letter]


def _messages_of(subject: str) -> int:
    """Return the number of messages in a letter with this subject."""
    size = subject.partition(BUNDLE)[2]
    return int(size) if size.isdecimal() else 1


def _letter(message: StoredMessage) -> DeadLetter:
    """Decode a letter; a malformed one, which a worker's login can store, has the reason ``foreign``."""
    number, payload, time = message.sequence, message.payload, message.time
    writer: Writer = "runtime" if message.subject.split(".")[-2] == "runtime" else "login"
    try:
        fields = json.loads(message.headers[LETTER])
        cut_from, more = fields.get("cut_from"), fields.get("more", 0)
        if not isinstance(cut_from, int | None) or not isinstance(more, int):
            raise TypeError("a number has another type")
        letter = DeadLetter(
            number, fields["reason"], fields["detail"], fields["subject"], payload, fields["content_type"],
            fields["message_id"],
            time, cut_from, writer, more,
        )  # fmt: skip
        texts = (letter.reason, letter.detail, letter.subject, letter.content_type or "", letter.message_id or "")
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("a text has another type")
        return _bundled(letter, payload)[0] if more else letter
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError, InvalidEnvelope):
        detail = "not written by plancast: what describes the message is missing or malformed"
        return DeadLetter(number, "foreign", detail, "", payload, None, None, time, writer=writer)


def _bundled(letter: DeadLetter, payload: bytes) -> list[DeadLetter]:
    """Split a bundle into one letter per message.

    Raises:
        InvalidEnvelope, LookupError, TypeError, ValueError: the payload is not a bundle.
    """
    found = []
    for subject, content_type, message_id, detail, each in unpack_rows(payload, len(BUNDLED) + 1, MAX_BUNDLE):
        texts = (subject, detail, content_type or "", message_id or "")
        if not isinstance(each, bytes) or not all(isinstance(text, str) for text in texts):
            raise TypeError("an entry of a bundle is malformed")
        found.append(
            replace(
                letter, subject=subject, content_type=content_type, message_id=message_id, detail=detail, payload=each
            )
        )
    return found
