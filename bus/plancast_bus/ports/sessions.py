"""Sessions: values that plans of one session share, and their store: one registration per session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from plancast_bus.errors import CommitConflict, InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.effects import Share
from plancast_bus.ports.registry import Registry

KIND: Final = "session"
"""Kind of the registrations in which sessions are stored."""


class SharedValue(NamedTuple):
    """A value with the version of the commit that shared it; versions grow with every commit of any plan."""

    version: int
    value: Any


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """Bounds of what a session holds; beyond them the values that were shared first are dropped."""

    values: int
    size: int
    """Bytes of all names and values in msgpack."""
    ttl: float
    """Seconds after its last change until a session is removed; 0: never."""


class Sessions:
    """The store of shared values."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def merge(self, share: Share, version: int, bounds: SessionBounds) -> None:
        """Store the values that a committed turn shares, durably and idempotently.

        Of two values with one name that of the newer commit stays, by the commits' versions.

        Raises:
            BusUnavailable: the outcome is unknown.
        """
        while True:
            stored, found = await self._registry.read(KIND, share.session)
            after = merged(stored, share, version, bounds)
            if after == stored:
                return
            try:
                await self._registry.replace(KIND, share.session, after, found, bounds.ttl or None)
                return
            except CommitConflict:  # another plan of the session was faster, or an acknowledgement was lost
                await asyncio.sleep(random.random() * 0.01)

    async def read(self, session: str) -> dict[str, Any]:
        """Return the values of a session by name; empty for an unknown session.

        Raises:
            BusUnavailable: the store cannot be reached.
        """
        stored, _version = await self._registry.read(KIND, session)
        return plain_values(stored)


def session_name(tenant_id: str, session_id: str) -> str:
    """Name a session of a tenant; names of different tenants never collide."""
    return blake2b(_bytes(session_id), digest_size=16, key=blake2b(_bytes(tenant_id)).digest()).hexdigest()


def merged(stored: bytes, share: Share, version: int, bounds: SessionBounds) -> bytes:
    """Return a stored session with the values of a commit; equal to ``stored`` if that changes nothing."""
    values = decode_session(stored)
    before = dict(values)
    for name, value in unpack(share.values).items():
        if name not in values or values[name].version < version:
            values[name] = SharedValue(version, value)
    while len(values) > bounds.values or _size(values) > bounds.size:
        del values[min(values, key=lambda name: values[name].version)]
    if values == before:
        return stored
    return pack({name: list(each) for name, each in values.items()}) if values else b""


def decode_session(stored: bytes) -> dict[str, SharedValue]:
    """Decode the stored form of a session; empty for no bytes.

    Raises:
        InvalidEnvelope: the bytes are not a session.
    """
    if not stored:
        return {}
    try:
        return {name: SharedValue(version, value) for name, (version, value) in unpack(stored).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidEnvelope(f"a stored session is damaged: {error}") from error


def plain_values(stored: bytes) -> dict[str, Any]:
    """The values of a stored session by name, those that were shared first first."""
    values = decode_session(stored)
    return {name: values[name].value for name in sorted(values, key=lambda name: values[name].version)}


def _size(values: Mapping[str, SharedValue]) -> int:
    return len(pack({name: each.value for name, each in values.items()}))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
