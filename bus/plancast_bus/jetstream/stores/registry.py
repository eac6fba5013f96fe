"""The registry: registrations as messages that expire on the server."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

from plancast_bus.errors import InvalidEnvelope, InvalidSubject, PayloadTooLarge
from plancast_bus.events.codec import pack, unpack
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, TTL, ttl_header
from plancast_bus.jetstream.stores.store import Store
from plancast_bus.subjects import decode_token

logger = logging.getLogger(__name__)

DELETED = "KV-Operation"
"""Header that marks a deletion; see :attr:`StoredMessage.is_marker`."""
MAX_LISTED = 512 * 1024
"""Maximum bytes of a listed registration. Untrusted workers' logins write some, and small values expand many times in
memory; legitimate ones contain at most two schemas of 64 KiB."""


class JetStreamRegistry(Store):
    """Registrations with a lifetime."""

    async def put(self, kind: str, key: str, value: dict[str, Any], *, ttl: float | None = None) -> None:
        """Register for ``ttl`` seconds, rounded up to whole ones.

        Raises:
            PayloadTooLarge: an app, agent or event exceeds 512 KiB.
        """
        headers = {TTL: ttl_header(ttl)} if ttl is not None else {}
        payload = pack(value)
        if self._subjects.is_listed(kind) and len(payload) > MAX_LISTED:
            raise PayloadTooLarge(f"the {kind} {key[:80]!r} has {len(payload)} bytes to register, at most {MAX_LISTED}")
        await self._publisher.publish_acked(self._subjects.registry(kind, key), payload, headers)

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        message = await self._api.last(self._stream(kind), self._subjects.registry(kind, key))
        if message is None or message.is_marker:
            return None
        value: dict[str, Any] = unpack(message.payload)
        return value

    async def list(self, kind: str) -> dict[str, dict[str, Any]]:
        registrations: dict[str, dict[str, Any]] = {}
        reading = self._reader.read(self._stream(kind), self._subjects.registered(kind), "last_per_subject")
        async with aclosing(reading):
            async for message in reading:
                if message.is_marker:
                    continue
                token = message.subject.rpartition(".")[2]
                try:
                    if self._subjects.is_listed(kind) and len(message.payload) > MAX_LISTED:
                        raise InvalidEnvelope(f"it has more than {MAX_LISTED} bytes")
                    registrations[decode_token(token)] = unpack(message.payload)
                except (InvalidEnvelope, InvalidSubject):
                    logger.warning("a registration cannot be read and is skipped", extra={"kind": kind, "key": token})
        return registrations

    async def delete(self, kind: str, key: str) -> None:
        # A marker instead of a purge: a worker whose account has no JetStream may publish, but not purge.
        await self._publisher.publish_acked(self._subjects.registry(kind, key), b"", {TTL: "1", DELETED: "DEL"})

    async def read(self, kind: str, key: str) -> tuple[bytes, int]:
        message = await self._newest(self._stream(kind), self._subjects.registry(kind, key))
        if message is None:
            return b"", 0
        return b"" if message.is_marker else message.payload, message.sequence

    async def replace(self, kind: str, key: str, value: bytes, version: int, ttl: float | None) -> int:
        headers = {EXPECTED: str(version)}
        if ttl is not None:
            headers[TTL] = ttl_header(ttl)
        return (await self._publisher.publish_acked(self._subjects.registry(kind, key), value, headers)).sequence

    def _stream(self, kind: str) -> str:
        return self._names.registry if self._subjects.is_listed(kind) else self._names.meta
