"""EffectLedger: the records of effects, each written by compare-and-set.

The record of an effect is written before its attempt begins, and again when the outcome is known. Two processes that
work on one effect, or on two tasks of one key, meet at the compare-and-set: the loser reads what the winner wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

from plancast.effects.record import EffectRecord, EffectState
from plancast_bus.errors import AccessDenied, BusError, CommitConflict, InvalidEnvelope, PayloadTooLarge
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.registry import Registry
from plancast_bus.retry import FIRST_PAUSE, retrying
from plancast_bus.subjects import name_of_type

logger = logging.getLogger(__name__)
T = TypeVar("T")
KIND: Final = "effect"
"""Prefix of the registrations' kind; the task type follows, so that a worker's login can access only its own."""
PART_BYTES: Final = 512 * 1024
"""Largest part in which a record is stored; further parts are registrations of their own, by content."""
UNSETTLED_SECONDS: Final = 366 * 86_400.0
"""Seconds for which further parts of an unsettled effect are kept."""
_SETTLED: Final = frozenset((EffectState.DONE, EffectState.FAILED, EffectState.UNDONE, EffectState.WITHDRAWN))
_FINAL: Final = (CommitConflict, AccessDenied, InvalidEnvelope, PayloadTooLarge)
_WHOLE, _PARTS = b"\x00", b"\x01"


class StoredEffect(NamedTuple):
    """A record with the store's version, which the next write of it expects."""

    record: EffectRecord | None
    version: int


class EffectLedger:
    """The records of the effects of one task type. Its calls wait while NATS is away.

    Args:
        registry: Where they are stored.
        event_type: The task type.
        kept_seconds: Seconds for which the record of a settled effect is kept after its last change. One that is begun
            or unknown stays until it is settled.
    """

    def __init__(self, registry: Registry, event_type: str, kept_seconds: float) -> None:
        self._registry = registry
        self._kind = f"{KIND}.{name_of_type(event_type)}"
        self._kept_seconds = kept_seconds

    async def read(self, address: str) -> StoredEffect:
        """Return the record at an address; without one, its version may be that of one that has expired.

        Raises:
            AccessDenied: this user may not read it.
            InvalidEnvelope: it is damaged.
        """
        stored, version = await _patiently(partial(self._registry.read, self._kind, address))
        return StoredEffect(EffectRecord.decode(await self._joined(stored)) if stored else None, version)

    async def write(self, address: str, record: EffectRecord, version: int) -> int:
        """Replace the version of a record (0: none), durably, and return the new version.

        Raises:
            CommitConflict: another version is stored.
            AccessDenied: this user may not write it.
        """
        ttl = self._kept_seconds if record.state in _SETTLED else None
        encoded = record.encode()
        is_whole = len(encoded) <= PART_BYTES
        content = _WHOLE + encoded if is_whole else await self._parted(encoded, ttl or UNSETTLED_SECONDS)
        try:
            return await _patiently(partial(self._registry.replace, self._kind, address, content, version, ttl))
        except CommitConflict:
            stored, found = await _patiently(partial(self._registry.read, self._kind, address))
            if stored == content:  # by its writer's id it is this very write, whose acknowledgement was lost
                return found
            raise

    async def _parted(self, content: bytes, ttl: float) -> bytes:
        names = []
        for at in range(0, len(content), PART_BYTES):
            part = content[at : at + PART_BYTES]
            names.append(sha256(part).hexdigest()[:40])
            await _patiently(partial(self._registry.put, self._kind, names[-1], {"part": part}, ttl=ttl))
        return _PARTS + pack(names)

    async def _joined(self, stored: bytes) -> bytes:
        if stored[:1] == _WHOLE:
            return stored[1:]
        parts: list[bytes] = []
        for name in unpack(stored[1:]):
            found = await _patiently(partial(self._registry.get, self._kind, name))
            if found is None:
                raise InvalidEnvelope(f"the part {name} of an effect's record is missing")
            parts.append(found["part"])
        return b"".join(parts)


async def _patiently(operation: Callable[[], Awaitable[T]]) -> T:
    try:
        return await operation()
    except _FINAL:
        raise
    except BusError as error:  # rare: a record is written for each task, so this must cost nothing before
        logger.warning("retrying: %s", error)
        await asyncio.sleep(FIRST_PAUSE)
    return await retrying(operation, logger, final=_FINAL)
