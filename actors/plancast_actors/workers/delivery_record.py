"""TaskRecord: what is remembered of a task that comes again and again, so that only what was begun counts."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress

from plancast_bus.errors import AccessDenied, BusError, InvalidEnvelope
from plancast_bus.ports.bus import Delivery, Registry
from plancast_bus.retry import retrying
from plancast_bus.subjects import name_of_type

logger = logging.getLogger(__name__)
KIND = "task"
"""Of the registrations that records are kept as. The task follows, so that a worker's login is held to its own."""
TRUSTED = 3
"""Deliveries of a task of which nothing is noted, so that what goes well costs nothing."""
KEPT_SECONDS = 86_400.0
"""How long a record is kept after its last change, at least."""


class TaskRecord:
    """What has become of earlier deliveries of one stored request. It is read when it may matter, and not before.

    That a task comes once more proves nothing: its deliveries and acknowledgements get lost while NATS is away. So
    beyond the first deliveries it is noted durably before a task is begun, and again when it has ended in any way;
    only a process that ends in between leaves the first note as it is.

    Args:
        registry: Where records are kept.
        task: The task's event type.
        delivery: Of the task.
        request_id: Of the request.
        trusted: Deliveries of which nothing is noted.
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
        """Whether it comes so often that its beginning and its end are noted."""
        self.lost = 0
        """How often it was begun, and its process ended."""
        self.tried = 0
        """How often it was given back to be tried again."""
        self.answered = False
        """Whether its answer is durable already; then only the acknowledgement was lost."""

    async def read(self) -> None:
        """Learn what is remembered. Without NATS it waits; who may not read records has deliveries counted instead."""
        if self._known:
            return
        try:
            said = await retrying(
                lambda: self._registry.get(self._kind, self._key()), logger, final=(AccessDenied, InvalidEnvelope)
            )
        except BusError as error:
            logger.warning("the record of a task cannot be read, its deliveries are counted: %s", error)
            before = self._delivery.attempt - 1
            said = {"lost": max(before - self._trusted, 0), "tried": before}
        said = said or {}
        self.lost, self.tried = int(said.get("lost", 0)), int(said.get("tried", 0))
        self.answered = bool(said.get("answered", False))
        self._known = True

    async def begin(self) -> None:
        """The task is begun: until it ends, its process is taken to be lost in it."""
        if self.watched:
            await self._note(lost=self.lost + 1)
            self._begun = True

    async def interrupted(self) -> None:
        """The task is given back unfinished, by a process that ends in order."""
        if self._begun:
            with suppress(BusError):
                await self._registry.put(self._kind, self._key(), self._fields(self.lost), ttl=KEPT_SECONDS)

    async def may_try_again(self, max_attempts: int) -> bool:
        """Whether the task that was just tried may be tried once more."""
        if max_attempts > 1:
            await self.read()
        return self.tried + 1 < max_attempts

    async def try_again(self, delay: float) -> None:
        """The task has asked to be tried again after so many seconds."""
        await self.read()
        self.tried += 1
        await self._note(lost=self.lost, seconds=KEPT_SECONDS + 2 * delay)

    async def done(self) -> None:
        """The task's answer is durable."""
        if self.watched:
            self.answered = True
            await self._note(lost=self.lost)
        elif self._delivery.attempt > 1:  # it may have been tried before; nobody will ask for that again
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
            logger.warning("the record of a task cannot be kept: %s", error)

    def _fields(self, lost: int) -> dict[str, int]:
        return {"lost": lost, "tried": self.tried, "answered": int(self.answered)}

    def _key(self) -> str:
        """Of the message, not of the request alone: a dead letter that is replayed begins anew."""
        about = f"{self._delivery.stream}:{self._delivery.sequence}:{self._request_id}"
        return hashlib.sha256(about.encode("utf-8", "replace")).hexdigest()[:32]
