"""Poison: messages that cannot be read, put aside together, so that a flood of them holds up nothing behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from plancast.telemetry.logging import IN_HAND
from plancast.telemetry.redaction import redact
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.retry import retrying

Entry = tuple[Delivery, str, Callable[[], None], dict[str, Any]]


class Poison:
    """Puts messages aside for one reason: those that come while others are being put aside go together, as the next.

    How many may wait is bounded by how many their reader holds unacknowledged.

    Args:
        bus: Whose dead letters.
        reason: Why.
        logger: Gets one record for all that are put aside together.
    """

    def __init__(self, bus: Bus, reason: str, logger: logging.Logger) -> None:
        self._bus = bus
        self._reason = reason
        self._logger = logger
        self._waiting: list[Entry] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether all are put aside."""
        return self._task is None

    def add(self, delivery: Delivery, detail: str, kept: Callable[[], None], about: dict[str, Any]) -> None:
        """Put a message aside; ``kept`` is called when that is durable, ``about`` are fields for the log."""
        self._waiting.append((delivery, detail, kept, about))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._put_all())

    async def stop(self) -> None:
        """Put nothing aside any more; what waits is delivered again."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _put_all(self) -> None:
        IN_HAND.set(None)  # what was in hand before is not what this is about
        try:
            while self._waiting:
                entries, self._waiting = self._waiting, []
                self._log(entries)
                await self._put(entries)
                for _, _, kept, _ in entries:
                    kept()
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _put(self, entries: list[Entry]) -> None:
        redacted = {detail: redact(detail) for detail in {entry[1] for entry in entries}}  # a flood says one thing
        messages = [(delivery, redacted[detail]) for delivery, detail, _, _ in entries]
        try:
            await retrying(lambda: self._bus.dead_letters.put_all(self._reason, messages), self._logger)
        except Exception as error:
            if len(entries) > 1:  # one of them may be to blame
                for entry in entries:
                    await self._put([entry])
                return
            # What no patience mends: to read it again and again would not either.
            self._logger.error("a message cannot be put aside, and is dropped", exc_info=error, extra=entries[0][3])

    def _log(self, entries: list[Entry]) -> None:
        _, detail, _, about = entries[0]
        if len(entries) == 1:
            self._logger.warning("event put aside (%s): %s", self._reason, detail, extra=about)
        else:
            self._logger.warning(
                "%d events put aside (%s), the first: %s", len(entries), self._reason, detail, extra=about
            )
