"""The store of trees of plans: one message per tree with digests of its plans, replaced by compare-and-set."""

from __future__ import annotations

import asyncio

from cachetools import LRUCache

from plancast_bus.jetstream.client.acks import WrongLastSequence
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.stores.checkpoint_mac import EXPECTED, TTL, ttl_header
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.trees import KIND, MEMBER_BYTES, member
from plancast_bus.subjects import Subjects

CACHED = 256
"""Trees cached in the process."""


class _Tree:
    """A tree as last read or written. Since trees only grow, its members stay valid."""

    def __init__(self) -> None:
        self.version = 0
        self.members = b""
        self.joining: dict[bytes, None] = {}
        """Members that the next write adds."""
        self.writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self.members) // MEMBER_BYTES

    def __contains__(self, wanted: bytes) -> bool:
        at = self.members.find(wanted)
        while at % MEMBER_BYTES and at > 0:  # spans two digests
            at = self.members.find(wanted, at + 1)
        return at >= 0


class JetStreamTrees:
    """Trees of plans. Plans that join during a write are added together by the next one."""

    def __init__(self, api: JetStreamApi, publisher: Publisher, subjects: Subjects) -> None:
        self._api = api
        self._publisher = publisher
        self._subjects = subjects
        self._stream = StreamNames.of(subjects.prefix).meta
        self._trees: LRUCache[str, _Tree] = LRUCache(CACHED)

    async def join(self, tree: str, plan: str, limit: int, ttl: float) -> bool:
        known, added = self._trees.setdefault(tree, _Tree()), member(plan)
        known.joining[added] = None
        async with known.writing:
            while added not in known and len(known) < limit:
                await self._write(tree, known, limit, ttl)
            known.joining.pop(added, None)
            return added in known

    async def _write(self, tree: str, known: _Tree, limit: int, ttl: float) -> None:
        """Add as many plans as fit, or read what another process has written."""
        added = [each for each in known.joining if each not in known][: limit - len(known)]
        members = known.members + b"".join(added)
        headers = {EXPECTED: str(known.version), TTL: ttl_header(ttl)}
        subject = self._subjects.registry(KIND, tree)
        try:
            ack = await self._publisher.publish_acked(subject, members, headers)
        except WrongLastSequence:
            stored = await self._api.last_from_leader(self._stream, subject)
            known.members = b"" if stored is None or stored.is_marker else stored.payload
            known.version = stored.sequence if stored is not None else 0
        else:
            known.version, known.members = ack.sequence, members
            for each in added:
                known.joining.pop(each, None)
