"""Answers of models kept durably, so that a crash after a model has answered does not pay for the answer twice."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from plancast.models.port import ReasonReply
from plancast.models.response_cache import Key
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.ports.bus import Bus

logger = logging.getLogger(__name__)
KIND = "answers"
RETRY_SECONDS = 0.5
T = TypeVar("T")


class AnswerStore(Protocol):
    """Where answers are kept, by tenant and idempotency key."""

    async def get(self, key: Key) -> ReasonReply | None:
        """The kept answer, or None."""
        ...

    async def put(self, key: Key, reply: ReasonReply) -> None:
        """Keep an answer; it is durable when this returns."""
        ...


class KeptAnswers:
    """Answers in the bus's registry. Neither questions nor API keys are stored, and idempotency keys only hashed.

    Args:
        bus: Its registry is used.
        seconds: How long an answer is kept.
    """

    def __init__(self, bus: Bus, seconds: float = 86_400.0) -> None:
        self._bus = bus
        self._seconds = seconds

    async def get(self, key: Key) -> ReasonReply | None:
        """See :class:`AnswerStore`. Without NATS it waits: asking the model anew might pay twice."""
        kept = await _patiently(lambda: self._bus.registry.get(KIND, _hashed(key)))
        return ReasonReply.from_dict(kept) if kept is not None else None

    async def put(self, key: Key, reply: ReasonReply) -> None:
        """See :class:`AnswerStore`. Without NATS it waits; an answer that NATS refuses is not kept, with a warning."""
        value = reply.to_dict()
        try:
            await _patiently(lambda: self._bus.registry.put(KIND, _hashed(key), value, ttl=self._seconds))
        except BusError as error:
            logger.warning("an answer of model %s cannot be kept: %s", reply.model, error)


def _hashed(key: Key) -> str:
    tenant, idempotency_key = (part.encode() for part in key)
    return hashlib.sha256(b"%d:%b%b" % (len(tenant), tenant, idempotency_key)).hexdigest()


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do it when NATS is there; whoever waits for it may be cancelled."""
    while True:
        try:
            return await work()
        except BusUnavailable as error:
            logger.warning("waiting for NATS: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
