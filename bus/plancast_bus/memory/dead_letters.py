"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.errors import DeadLetterNotFound
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.ports.bus import CUT_BYTES, DeadLetter, Delivery, refuse_replay

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus

LETTER_BYTES = 1_024
"""Approximate bytes that a letter adds to a message besides its detail."""


class DeadLetterTable:
    def __init__(self, clock: Clock, max_age: float, max_payload: int) -> None:
        self._clock = clock
        self._max_payload = max_payload
        self._max_age = max_age
        self._letters: dict[int, DeadLetter] = {}
        self._origins: dict[tuple[str, int], int] = {}
        self._last = 0

    def put(self, delivery: Delivery, subject: str, reason: str, detail: str) -> None:
        self.valid()
        origin = (delivery.stream, delivery.sequence)
        if origin in self._origins:
            return
        size = len(delivery.payload)
        whole = size + len(detail) + LETTER_BYTES <= self._max_payload
        self._last += 1
        self._origins[origin] = self._last
        self._letters[self._last] = DeadLetter(
            number=self._last,
            reason=reason,
            detail=detail,
            subject=subject,
            payload=delivery.payload if whole else delivery.payload[: min(CUT_BYTES, size // 2)],
            content_type=delivery.content_type,
            message_id=delivery.message_id,
            time=self._clock.time(),
            cut_from=None if whole else size,
        )

    def valid(self) -> dict[int, DeadLetter]:
        """Return the letters by number, oldest first, without expired ones."""
        while self._max_age and self._letters:
            oldest = next(iter(self._letters.values()))
            if oldest.time > self._clock.time() - self._max_age:
                break
            self.remove(oldest.number)
        return self._letters

    def remove(self, number: int) -> None:
        self._letters.pop(number, None)
        self._origins = {origin: each for origin, each in self._origins.items() if each != number}


class MemoryDeadLetters:
    """The dead letters as accessed by a connection."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def put(self, delivery: Delivery, reason: str, detail: str) -> None:
        table = await self._table()
        table.put(delivery, self._bus.subjects.published_from_stored(delivery.subject), reason, detail)

    async def put_all(self, reason: str, messages: Sequence[tuple[Delivery, str]]) -> None:
        for delivery, detail in messages:
            await self.put(delivery, reason, detail)

    async def count(self) -> int:
        return len((await self._table()).valid())

    async def list(self, *, limit: int | None = None, after: int = 0) -> AsyncIterator[DeadLetter]:
        letters = (await self._table()).valid().values()
        for letter in [each for each in letters if each.number > after][:limit]:
            yield letter

    async def with_references(self) -> AsyncGenerator[DeadLetter]:
        for letter in list((await self._table()).valid().values()):
            if letter.content_type in REFERENCE_TYPES:
                yield letter

    async def get(self, number: int) -> DeadLetter:
        letter = (await self._table()).valid().get(number)
        if letter is None:
            raise DeadLetterNotFound(f"there is no dead letter {number}")
        return letter

    async def replay(self, number: int) -> None:
        letter = await self.get(number)
        refuse_replay(letter, self._bus.subjects)
        # With its old id the stream would drop it as a duplicate.
        message_id = f"replay-{number}-{letter.message_id or ''}"
        world = self._bus.world
        await self._bus.point("publish.before", letter.subject)
        world.publish(letter.subject, letter.payload, letter.content_type, message_id)
        await self._bus.point("publish.after", letter.subject)
        world.dead_letters.remove(number)

    async def _table(self) -> DeadLetterTable:
        await self._bus.turn()
        return self._bus.world.dead_letters
