"""Checkpoints in a stream: one message for each plan, replaced by compare-and-set."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from plancast_bus.checkpoints import Checkpoint, Committed, KeptMachine, PlanFilter, PlanSummary
from plancast_bus.codec import unpack
from plancast_bus.effects import SealHistory
from plancast_bus.errors import BusError, BusUnavailable, CommitConflict
from plancast_bus.jetstream.api import MESSAGE_GONE, ApiError, JetStreamApi, StoredMessage
from plancast_bus.jetstream.exchange import Headers
from plancast_bus.jetstream.publishing import Publisher
from plancast_bus.jetstream.reading import StreamReader
from plancast_bus.jetstream.replies import PubAck, WrongLastSequence
from plancast_bus.jetstream.streams import StreamNames
from plancast_bus.subjects import Subjects, decode_token

logger = logging.getLogger(__name__)

SUMMARY = "Plancast-Plan"
"""Header that carries the summary of a plan."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
ANY = PlanFilter()
MACHINES = 1024
"""State machines that are remembered in the process."""


class JetStreamCheckpoints:
    """The checkpoint store. A checkpoint's version is its sequence in the stream."""

    def __init__(
        self,
        api: JetStreamApi,
        publisher: Publisher,
        reader: StreamReader,
        subjects: Subjects,
        *,
        replicated: bool = False,
    ) -> None:
        self._api = api
        # A replica that is behind would show a plan as it was, and an event that moves it now as one that does not.
        self._newest = api.last_from_leader if replicated else api.last
        self._publisher = publisher
        self._reader = reader
        self._subjects = subjects
        self._names = StreamNames.of(subjects.prefix)
        self._machines: dict[str, bytes] = {}

    async def load(self, correlation_id: str) -> Checkpoint | None:
        """The newest checkpoint of the plan, or None."""
        message = await self._newest(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
        return _decode(correlation_id, message)

    async def commit(self, checkpoint: Checkpoint) -> int:
        """Store a checkpoint over version ``checkpoint.version`` and return the new version.

        Raises:
            CommitConflict, BusUnavailable, PayloadTooLarge, PublishRefused: see the contract.
        """
        subject, body, headers = self._message(checkpoint)
        try:
            ack = await self._publisher.publish_acked(subject, body, headers)
        except (WrongLastSequence, BusUnavailable) as error:
            return await self._read_back(checkpoint, subject, body, headers[SUMMARY], error)
        return ack.sequence

    def begin_commit(self, checkpoint: Checkpoint) -> asyncio.Future[int]:
        """Begin to store a checkpoint; see the contract."""
        subject, body, headers = self._message(checkpoint)
        return self._publisher.begin(subject, body, headers, _sequence)

    def _message(self, checkpoint: Checkpoint) -> tuple[str, bytes, Headers]:
        headers = {EXPECTED: str(checkpoint.version), SUMMARY: checkpoint.summary.to_header()}
        if checkpoint.expires_after > 0:
            headers[TTL] = ttl_header(checkpoint.expires_after)
        return self._subjects.checkpoint(checkpoint.correlation_id), checkpoint.encode(), headers

    async def _read_back(self, checkpoint: Checkpoint, subject: str, body: bytes, summary: str, cause: BusError) -> int:
        """Find out whether a write that was refused or not answered is stored all the same."""
        plan = checkpoint.correlation_id
        try:
            stored = await self._api.last_from_leader(self._names.checkpoints, subject)
        except BusUnavailable as error:
            raise BusUnavailable(
                f"whether revision {checkpoint.revision} of plan {plan} is committed is not known: {error}"
            ) from cause
        if stored is not None and stored.is_marker:
            stored = None
        # All of it is compared: the same activation may have gone on with another turn after an unknown outcome.
        if stored is not None and (stored.payload, stored.headers.get(SUMMARY)) == (body, summary):
            return stored.sequence
        version = stored.sequence if stored is not None else 0
        if isinstance(cause, BusUnavailable) and version == checkpoint.version:
            raise cause  # nothing stored yet, but it may still be under way
        raise CommitConflict(
            f"plan {plan} was committed, or forgotten, by someone else: version {version} is stored, and "
            f"revision {checkpoint.revision} was to follow version {checkpoint.version}"
        ) from cause

    async def history(self, correlation_id: str) -> list[bytes]:
        """All timeline entries of the plan, oldest first; empty when unknown."""
        # The checkpoint first: what is sealed afterwards is then found twice instead of not at all.
        checkpoint = await self.load(correlation_id)
        if checkpoint is None:
            return []
        parts: dict[int, bytes] = {}
        subject = self._subjects.history(correlation_id, "*")
        reading = self._reader.read(self._names.history, subject, "last_per_subject")
        async with aclosing(reading):
            async for message in reading:
                parts[int(message.subject.rpartition(".")[2])] = message.payload
        for effect in checkpoint.outbox:  # a part may be committed and not yet put away
            if isinstance(effect, SealHistory) and effect.plan == correlation_id:
                parts[effect.first_revision] = effect.payload
        entries: list[bytes] = []
        for _first_revision, payload in sorted(parts.items()):
            _append(entries, unpack(payload))
        _append(entries, checkpoint.timeline)
        return entries

    async def summaries(
        self,
        *,
        status: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[PlanSummary]:
        """The plans that are stored, newest commit last, filtered."""
        shown: set[str] = set()
        wanted = PlanFilter(status, session_id, tenant_id)
        every = f"{self._subjects.store}.checkpoints.*"
        reading = self._reader.read(self._names.checkpoints, every, "last_per_subject", headers_only=True)
        async with aclosing(reading):
            async for message in reading:
                if limit is not None and len(shown) >= limit:
                    return
                line = message.headers.get(SUMMARY)
                if line is None or message.is_marker or message.subject in shown:
                    continue
                summary = wanted.read(line)
                if summary is not None:
                    shown.add(message.subject)
                    yield summary

    async def committed_after(self, version: int) -> AsyncGenerator[Committed]:
        """The plans whose newest commit came after the one with this version, in the order of commits."""
        every = f"{self._subjects.store}.checkpoints.*"
        reading = self._reader.read(self._names.checkpoints, every, "all", headers_only=True, after=version)
        async with aclosing(reading):
            async for message in reading:  # the stream holds one message for each plan
                if (committed := self._committed(message, ANY)) is not None:
                    yield committed

    async def follow(self, version: int = 0) -> AsyncGenerator[Committed]:
        """The plans whose newest commit came after the one with this version, then each further commit."""
        every = f"{self._subjects.store}.checkpoints.*"
        async with aclosing(self._reader.follow(self._names.checkpoints, every, after=version)) as reading:
            async for message in reading:
                if (committed := self._committed(message, ANY)) is not None:
                    yield committed

    async def newest(self, wanted: PlanFilter | None = None, *, before: int = 0) -> AsyncGenerator[Committed]:
        """The plans that are stored, filtered, newest commit first."""
        every, newest = f"{self._subjects.store}.checkpoints.*", 0
        reading = self._reader.read_back(self._names.checkpoints, every, before=before)
        async with aclosing(reading):
            async for message in reading:
                newest = newest or message.sequence
                if (committed := self._committed(message, wanted or ANY)) is not None:
                    yield committed
        if before or not newest:
            return
        moved = self._reader.read(self._names.checkpoints, every, "all", headers_only=True, after=newest)
        async with aclosing(moved):
            async for message in moved:
                if (committed := self._committed(message, wanted or ANY)) is not None:
                    yield committed

    def _committed(self, message: StoredMessage, wanted: PlanFilter) -> Committed | None:
        line = message.headers.get(SUMMARY)
        summary = wanted.read(line) if line is not None and not message.is_marker else None
        if summary is None:
            return None
        ttl = message.headers.get(TTL)
        expires_at = message.time + float(ttl) if ttl is not None and ttl.isdigit() else 0.0
        return Committed(message.sequence, decode_token(message.subject.rpartition(".")[2]), summary, expires_at)

    async def watch(self, correlation_id: str) -> AsyncGenerator[Checkpoint]:
        """The newest checkpoint of the plan, then each further one, until the caller stops."""
        watching = self._reader.watch(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
        async with aclosing(watching):
            async for message in watching:
                checkpoint = _decode(correlation_id, message)
                if checkpoint is not None:
                    yield checkpoint

    async def forget(self, correlation_id: str, aliases: Sequence[str] = ()) -> None:
        """Remove the plan's checkpoint, its history, and what was noted of these further correlation ids."""
        await self._api.purge(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
        await self._api.purge(self._names.history, self._subjects.history(correlation_id, "*"))
        for alias in aliases:
            if await self.get_alias(alias) == correlation_id:  # it may be another plan's by now
                await self._api.purge(self._names.meta, self._subjects.alias(alias))

    async def put_machine(self, digest: str, encoded: bytes) -> None:
        """Keep a state machine under its content hash; repeating it only says that it is needed still."""
        await self._publisher.publish_acked(self._subjects.machine(digest), encoded, {})
        self._remember(digest, encoded)

    async def get_machine(self, digest: str) -> bytes | None:
        """The state machine with this content hash, or None."""
        if digest in self._machines:
            return self._machines[digest]
        message = await self._newest(self._names.meta, self._subjects.machine(digest))
        if message is None or message.is_marker:
            return None
        self._remember(digest, message.payload)
        return message.payload

    async def machines(self, after: int = 0) -> AsyncGenerator[KeptMachine]:
        """The state machines whose newest put came after the one with this version, in the order of puts."""
        every = self._subjects.machine("*")
        async with aclosing(self._reader.read(self._names.meta, every, "all", headers_only=True, after=after)) as kept:
            async for message in kept:
                if not message.is_marker:
                    yield KeptMachine(message.subject.rpartition(".")[2], message.sequence, message.time)

    async def drop_machine(self, kept: KeptMachine) -> None:
        """Remove a state machine, unless it was put again since."""
        self._machines.pop(kept.digest, None)
        try:
            await self._api.call(f"STREAM.MSG.DELETE.{self._names.meta}", {"seq": kept.version, "no_erase": True})
        except ApiError as error:
            if error.code not in MESSAGE_GONE:
                raise

    async def put_alias(self, correlation_id: str, plan: str) -> None:
        """Note that events with ``correlation_id`` belong to the plan whose correlation id is ``plan``."""
        await self._publisher.publish_acked(self._subjects.alias(correlation_id), plan.encode(), {})

    async def get_alias(self, correlation_id: str) -> str | None:
        """The plan's own correlation id that a further one was noted for, or None."""
        message = await self._newest(self._names.meta, self._subjects.alias(correlation_id))
        return None if message is None or message.is_marker else message.payload.decode()

    def _remember(self, digest: str, encoded: bytes) -> None:
        if len(self._machines) >= MACHINES:
            self._machines.pop(next(iter(self._machines)))
        self._machines[digest] = encoded


def _sequence(ack: PubAck) -> int:
    return ack.sequence


def ttl_header(seconds: float) -> str:
    """A time to live as the server takes it: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))


def _decode(correlation_id: str, message: StoredMessage | None) -> Checkpoint | None:
    if message is None or message.is_marker:
        return None
    summary = PlanSummary.from_header(message.headers[SUMMARY])
    return Checkpoint.decode(correlation_id, message.payload, summary, message.sequence)


def _append(entries: list[bytes], more: Iterable[bytes]) -> None:
    """Append entries, some of which may be there already: where two parts overlap, they are equal."""
    more = list(more)
    if not more:
        return
    for position in range(len(entries) - 1, -1, -1):
        if entries[position] == more[0]:
            del entries[position:]
            break
    entries.extend(more)
