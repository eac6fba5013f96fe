"""DeadLetterWriter: dead-letters undecodable messages in batches, so that a flood of them blocks no others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from plancast.telemetry.logging import LOG_CONTEXT
from plancast.telemetry.redaction import redact
from plancast_bus.ports.bus import Bus, Delivery
from plancast_bus.retry import retrying

Entry = tuple[Delivery, str, Callable[[], None], dict[str, Any]]


class DeadLetterWriter:
    """Dead-letters messages for one reason; those that arrive during a write are the next batch.

    The number of unacknowledged messages of the reader bounds what waits. ``logger`` gets one record per batch.
    """

    def __init__(self, bus: Bus, reason: str, logger: logging.Logger) -> None:
        self._bus = bus
        self._reason = reason
        self._logger = logger
        self._waiting: list[Entry] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def add(self, delivery: Delivery, detail: str, stored: Callable[[], None], about: dict[str, Any]) -> None:
        """Dead-letter a message; ``stored`` is called once that is durable, ``about`` are log fields."""
        self._waiting.append((delivery, detail, stored, about))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def stop(self) -> None:
        """Stop; messages that wait are redelivered."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write_all(self) -> None:
        LOG_CONTEXT.set(None)  # log records must not name the event before
        try:
            while self._waiting:
                entries, self._waiting = self._waiting, []
                self._log(entries)
                await self._put(entries)
                for _, _, stored, _ in entries:
                    stored()
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _put(self, entries: list[Entry]) -> None:
        redacted = {detail: redact(detail) for detail in {entry[1] for entry in entries}}  # the same text in a flood
        messages = [(delivery, redacted[detail]) for delivery, detail, _, _ in entries]
        try:
            await retrying(lambda: self._bus.dead_letters.put_all(self._reason, messages), self._logger)
        except Exception as error:
            if len(entries) > 1:  # one of them may be the cause
                for entry in entries:
                    await self._put([entry])
                return
            # Not retryable; to read the message again would not help either.
            self._logger.error("a message cannot be dead-lettered, and is dropped", exc_info=error, extra=entries[0][3])

    def _log(self, entries: list[Entry]) -> None:
        _, detail, _, about = entries[0]
        if len(entries) == 1:
            self._logger.warning("event dead-lettered (%s): %s", self._reason, detail, extra=about)
        else:
            self._logger.warning(
                "%d events dead-lettered (%s), the first: %s", len(entries), self._reason, detail, extra=about
            )
