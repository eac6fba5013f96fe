"""DeliveryRecord: counts the attempts of a task that is redelivered, so that only started ones count."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress

from plancast_bus.errors import AccessDenied, BusError, InvalidEnvelope
from plancast_bus.ports.bus import Delivery
from plancast_bus.ports.registry import Registry
from plancast_bus.retry import retrying
from plancast_bus.subjects import name_of_type

logger = logging.getLogger(__name__)
KIND = "task"
"""Prefix of the registrations' kind; the task type follows, so that a worker's login can access only its own."""
TRUSTED = 3
"""Deliveries of a task before anything is recorded: tasks that succeed cost no record."""
KEPT_SECONDS = 86_400.0
"""Minimum time to live of a record after its last change."""


class DeliveryRecord:
    """Outcomes of earlier deliveries of one stored request; read lazily.

    A redelivery alone proves nothing: deliveries and acknowledgements get lost while NATS is away. So beyond the first
    deliveries, the start and the end of an attempt are recorded durably. Only a process that dies in between leaves a
    start without an end.
    """

    __slots__ = (
        "_begun", "_delivery", "_kind", "_known", "_registry", "_request_id", "_trusted",
        "answered", "lost", "tried", "watched",
    )  # fmt: skip

    def __init__(
        self, registry: Registry, task: str, delivery: Delivery, request_id: str, trusted: int = TRUSTED
    ) -> None:
        self._registry = registry
        self._kind = f"{KIND}.{name_of_type(task)}"
        self._delivery = delivery
        self._request_id = request_id
        self._trusted = trusted
        self._known = delivery.attempt == 1
        self._begun = False
        self.watched = delivery.attempt > trusted
        """True if starts and ends of attempts are recorded."""
        self.lost = 0
        """Attempts during which the process died."""
        self.tried = 0
        """Attempts that asked for a retry."""
        self.answered = False
        """True if the response is durable already, so that only the acknowledgement was lost."""

    async def read(self) -> None:
        """Read the record, waiting while NATS is away; a login that may not read it counts deliveries instead."""
        if self._known:
            return
        try:
            fields = await retrying(
                lambda: self._registry.get(self._kind, self._key()), logger, final=(AccessDenied, InvalidEnvelope)
            )
        except BusError as error:
            logger.warning("the record of a task cannot be read, its deliveries are counted instead: %s", error)
            before = self._delivery.attempt - 1
            fields = {"lost": max(before - self._trusted, 0), "tried": before}
        fields = fields or {}
        self.lost, self.tried = int(fields.get("lost", 0)), int(fields.get("tried", 0))
        self.answered = bool(fields.get("answered", False))
        self._known = True

    async def begin(self) -> None:
        """Record a start; without an end it counts as a process that died."""
        if self.watched and not self._begun:
            await self._note(lost=self.lost + 1)
            self._begun = True

    async def interrupted(self) -> None:
        """Record that the process has shut down in order before the task ended."""
        if self._begun:
            with suppress(BusError):
                await self._registry.put(self._kind, self._key(), self._fields(self.lost), ttl=KEPT_SECONDS)

    async def may_try_again(self, max_attempts: int) -> bool:
        """True if the task that has just failed may be retried."""
        if max_attempts > 1:
            await self.read()
        return self.tried + 1 < max_attempts

    async def try_again(self, delay: float) -> None:
        """Record a retry after ``delay`` seconds."""
        await self.read()
        self.tried += 1
        await self._note(lost=self.lost, seconds=KEPT_SECONDS + 2 * delay)

    async def done(self) -> None:
        """Record that the response is durable."""
        if self.watched:
            self.answered = True
            await self._note(lost=self.lost)
        elif self._delivery.attempt > 1:  # an earlier retry may have left a record that is of no more use
            await self._note(lost=0, seconds=1.0)

    async def _note(self, *, lost: int, seconds: float = KEPT_SECONDS) -> None:
        fields = self._fields(lost)
        try:
            await retrying(
                lambda: self._registry.put(self._kind, self._key(), fields, ttl=seconds),
                logger,
                final=(AccessDenied, InvalidEnvelope),
            )
        except BusError as error:
            logger.warning("the record of a task cannot be stored: %s", error)

    def _fields(self, lost: int) -> dict[str, int]:
        return {"lost": lost, "tried": self.tried, "answered": int(self.answered)}

    def _key(self) -> str:
        """Key by message and request: a dead letter that is replayed starts a new record."""
        identity = f"{self._delivery.stream}:{self._delivery.sequence}:{self._request_id}"
        return hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:32]
