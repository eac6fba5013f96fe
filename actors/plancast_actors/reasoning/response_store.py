"""Durable replies of models, so that a crash after a reply does not pay for it twice."""

from __future__ import annotations

import hashlib
import logging
from functools import partial

from plancast.models.port import ReasonReply
from plancast.models.response_cache import Key
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.ports.bus import Bus
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)
KIND = "answers"


class ResponseStore:
    """Replies in the bus's registry, each for some seconds.

    Requests and API keys are not stored, idempotency keys only as hashes.
    """

    def __init__(self, bus: Bus, seconds: float = 86_400.0) -> None:
        self._bus = bus
        self._seconds = seconds

    async def get(self, key: Key) -> ReasonReply | None:
        """The stored reply, or None. Waits while NATS is away: asking the model again might pay twice."""
        stored = await retrying(partial(self._bus.registry.get, KIND, _hashed(key)), logger, retried=BusUnavailable)
        return ReasonReply.from_dict(stored) if stored is not None else None

    async def put(self, key: Key, reply: ReasonReply) -> None:
        """Store a reply, durably. Waits while NATS is away; a reply that NATS refuses is dropped with a warning."""
        store = partial(self._bus.registry.put, KIND, _hashed(key), reply.to_dict(), ttl=self._seconds)
        try:
            await retrying(store, logger, retried=BusUnavailable)
        except BusError as error:
            logger.warning("a reply of model %s cannot be stored: %s", reply.model, error)


def _hashed(key: Key) -> str:
    tenant, idempotency_key = (part.encode() for part in key)
    return hashlib.sha256(b"%d:%b%b" % (len(tenant), tenant, idempotency_key)).hexdigest()
