"""Dead letters in a stream of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from plancast_bus.contracts import CUT_BYTES, DeadLetter, Delivery, refuse_cut
from plancast_bus.errors import DeadLetterNotFound, PayloadTooLarge
from plancast_bus.jetstream.api import JetStreamApi, StoredMessage
from plancast_bus.jetstream.publishing import Publisher
from plancast_bus.jetstream.reading import StreamReader
from plancast_bus.jetstream.streams import StreamNames
from plancast_bus.subjects import Subjects, encode_token

LETTER = "Plancast-Dead-Letter"
"""Header that says what the message was and why it is here: JSON, ASCII."""
MAX_DETAIL = 2000
"""Characters of the detail that are kept."""
MAX_CUT_DETAIL = 200
"""The same, when the message is too large."""


class JetStreamDeadLetters:
    """The messages that could not be processed. A letter's number is its sequence in the stream."""

    def __init__(self, api: JetStreamApi, publisher: Publisher, reader: StreamReader, subjects: Subjects) -> None:
        self._api = api
        self._publisher = publisher
        self._reader = reader
        self._subjects = subjects
        self._stream = StreamNames.of(subjects.prefix).dead_letters

    async def put(self, delivery: Delivery, reason: str, detail: str) -> None:
        """Keep a message with the reason; repeating it for the same delivery keeps one."""
        payload, size = delivery.payload, len(delivery.payload)
        while True:
            try:
                await self._put(delivery, payload, reason, detail)
                return
            except PayloadTooLarge:  # with what a letter adds to it
                if not payload:
                    raise
            payload = payload[: min(CUT_BYTES, size // 2)] if len(payload) == size else payload[: len(payload) // 2]
            detail = detail[:MAX_CUT_DETAIL]

    async def _put(self, delivery: Delivery, payload: bytes, reason: str, detail: str) -> None:
        letter: dict[str, str | int | None] = {
            "reason": reason,
            "detail": detail[:MAX_DETAIL],
            "subject": self._subjects.published_from_stored(delivery.subject),
            "content_type": delivery.content_type,
            "message_id": delivery.message_id,
        }
        if len(payload) < len(delivery.payload):
            letter["cut_from"] = len(delivery.payload)
        headers = {
            "Nats-Msg-Id": f"{delivery.stream}:{delivery.sequence}",
            LETTER: json.dumps(letter, separators=(",", ":")),
        }
        await self._publisher.publish_acked(self._subjects.dead_letter(encode_token(reason)), payload, headers)

    async def count(self) -> int:
        """How many there are."""
        state = (await self._api.call(f"STREAM.INFO.{self._stream}"))["state"]
        return int(state["messages"])

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[DeadLetter]:
        """Oldest first."""
        shown = 0
        reading = self._reader.read(self._stream, self._subjects.dead_letter("*"), "all")
        async with aclosing(reading):
            async for message in reading:
                if limit is not None and shown >= limit:
                    return
                shown += 1
                yield _letter(message)

    async def get(self, number: int) -> DeadLetter:
        """
        Raises:
            DeadLetterNotFound: there is none of this number.
        """
        message = await self._api.numbered(self._stream, number) if number > 0 else None
        if message is None:
            raise DeadLetterNotFound(f"there is no dead letter {number}")
        return _letter(message)

    async def replay(self, number: int) -> None:
        """Publish it again as it came, and forget it here."""
        letter = await self.get(number)
        refuse_cut(letter)
        headers = {"Nats-Msg-Id": uuid4().hex}
        if letter.content_type is not None:
            headers["Content-Type"] = letter.content_type
        await self._publisher.publish_acked(letter.subject, letter.payload, headers)
        await self._api.call(f"STREAM.MSG.DELETE.{self._stream}", {"seq": number, "no_erase": True})


def _letter(message: StoredMessage) -> DeadLetter:
    said = json.loads(message.headers[LETTER])
    return DeadLetter(
        number=message.sequence,
        reason=said["reason"],
        detail=said["detail"],
        subject=said["subject"],
        payload=message.payload,
        content_type=said["content_type"],
        message_id=said["message_id"],
        time=message.time,
        cut_from=said.get("cut_from"),
    )
