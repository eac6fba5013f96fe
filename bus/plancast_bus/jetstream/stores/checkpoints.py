"""Checkpoints in a stream: two messages per plan, the newest stored by compare-and-set, each with a MAC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from cachetools import LRUCache

from plancast_bus.errors import (
    BusError,
    BusUnavailable,
    CommitConflict,
    InvalidEnvelope,
    InvalidSubject,
    UnreadableCheckpoint,
)
from plancast_bus.jetstream.client.acks import PubAck, WrongLastSequence
from plancast_bus.jetstream.client.api import MESSAGE_GONE, ApiError, StoredMessage
from plancast_bus.jetstream.client.request_reply import Headers
from plancast_bus.jetstream.stores.checkpoint_mac import (
    EXPECTED,
    MAC,
    ROLLUP,
    SUMMARY,
    TTL,
    CheckpointKeys,
    Forged,
    covered_text,
    ttl_header,
    verified_summary,
)
from plancast_bus.jetstream.stores.dead_letters import JetStreamDeadLetters
from plancast_bus.jetstream.stores.key_store import KeyStore
from plancast_bus.jetstream.stores.store import Store, StreamAccess
from plancast_bus.ports.bus import Delivery
from plancast_bus.ports.checkpoints import Checkpoint, Committed, PlanFilter, PlanSummary, StoredMachine
from plancast_bus.ports.values import ValueStore, in_full, timeline_of
from plancast_bus.subjects import decode_token

logger = logging.getLogger(__name__)

FORGED = "forged-checkpoint"
"""Reason of the dead letter of a rejected checkpoint."""
ANY = PlanFilter()
MACHINES = 1024
"""State machines cached in the process."""


class JetStreamCheckpoints(Store):
    """The checkpoint store. A checkpoint's version is its sequence in the stream."""

    def __init__(
        self, access: StreamAccess, keys: KeyStore, dead_letters: JetStreamDeadLetters, values: ValueStore
    ) -> None:
        super().__init__(access)
        self._keys = keys
        self._dead_letters = dead_letters
        self._values = values
        self._machines: LRUCache[str, bytes] = LRUCache(MACHINES)

    async def load(self, correlation_id: str, *, folded: bool = False) -> Checkpoint | None:
        checkpoint = await self._load(correlation_id)
        return checkpoint if checkpoint is None or folded else await in_full(checkpoint, self._values)

    async def _load(self, correlation_id: str) -> Checkpoint | None:
        while True:
            message = await self._newest(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
            if message is None:
                return None
            keys = await self._keys.read()
            try:
                return _decode(correlation_id, message, keys)
            except Forged as refusal:
                before = await self._before(correlation_id, message, keys, refusal)
            if before is not None:
                return before

    async def _before(
        self, correlation_id: str, refused: StoredMessage, keys: CheckpointKeys | None, refusal: Forged
    ) -> Checkpoint | None:
        """Return the checkpoint before a rejected one; None when the rejected one is no longer the newest.

        Raises:
            UnreadableCheckpoint: the one before is not valid either.
        """
        stored = await self._messages(correlation_id)
        if not stored or stored[-1].sequence != refused.sequence:
            return None
        faults = [f"sequence {refused.sequence}: {refusal}"]
        try:
            if len(stored) < 2:
                raise Forged("there is none before it")
            checkpoint = _decode(correlation_id, stored[-2], keys)
        except Forged as second:
            faults += [f"sequence {each.sequence}: {second}" for each in stored[-2:-1]]
            raise UnreadableCheckpoint(
                f"no checkpoint of plan {correlation_id} in {self._names.checkpoints} is one that this deployment has "
                f"written ({'; '.join(faults)}). Nothing was removed. Does this process have all keys that the others "
                "have (PLANCAST_BUS__CHECKPOINT_KEYS)? If so, another program writes into the stream"
            ) from refusal
        logger.error(
            "a checkpoint of plan %s is rejected (%s); the one before it, sequence %d, is used",
            correlation_id,
            faults[0],
            checkpoint.version,
            extra={"correlation_id": correlation_id},
        )
        if keys is not None:
            await self._put_aside(correlation_id, refused, faults[0])
            if checkpoint.expires_after:  # no commit will replace the rejected one, which would outlive the plan
                await self._drop(self._names.checkpoints, refused.sequence)
                return checkpoint
        return replace(checkpoint, version=refused.sequence)

    async def _messages(self, correlation_id: str) -> list[StoredMessage]:
        subject = self._subjects.checkpoint(correlation_id)
        async with aclosing(self._reader.read(self._names.checkpoints, subject, "all")) as reading:
            return [message async for message in reading]

    async def kept(self, correlation_id: str) -> list[Checkpoint]:
        while True:
            keys, messages = await self._keys.read(), await self._messages(correlation_id)
            found = []
            for message in messages:
                with suppress(Forged):
                    found.append(_decode(correlation_id, message, keys))
            if found or not messages:
                return found
            await self._load(correlation_id)  # says why, or the plan has moved on

    async def _put_aside(self, correlation_id: str, refused: StoredMessage, fault: str) -> None:
        headers = refused.headers
        delivery = Delivery(
            refused.subject, refused.payload, headers.get("Content-Type"), headers.get("Nats-Msg-Id"),
            self._names.checkpoints, refused.sequence, 1, "",
        )  # fmt: skip
        await self._dead_letters.put(delivery, FORGED, f"no checkpoint of plan {correlation_id}: {fault}")

    async def commit(self, checkpoint: Checkpoint) -> int:
        subject, body, headers = self._message(checkpoint, await self._keys.require())
        try:
            ack = await self._publisher.publish_acked(subject, body, headers)
        except (WrongLastSequence, BusUnavailable) as error:
            return await self._read_back(checkpoint, subject, body, headers, error)
        return ack.sequence

    def begin_commit(self, checkpoint: Checkpoint) -> asyncio.Future[int]:
        if self._keys.keys is None:
            raise BusUnavailable("the key of checkpoints is not read yet")
        subject, body, headers = self._message(checkpoint, self._keys.keys)
        return self._publisher.begin(subject, body, headers, _sequence)

    def _message(self, checkpoint: Checkpoint, keys: CheckpointKeys) -> tuple[str, bytes, Headers]:
        subject, body = self._subjects.checkpoint(checkpoint.correlation_id), checkpoint.encode()
        headers = {EXPECTED: str(checkpoint.version), SUMMARY: checkpoint.summary.to_header()}
        if checkpoint.expires_after > 0:
            headers[TTL], headers[ROLLUP] = ttl_header(checkpoint.expires_after), "sub"
        headers[MAC] = keys.mac(covered_text(subject, headers), body)
        return subject, body, headers

    async def _read_back(
        self, checkpoint: Checkpoint, subject: str, body: bytes, headers: Headers, cause: BusError
    ) -> int:
        """Determine whether a write that was refused or not acknowledged is stored nevertheless."""
        plan = checkpoint.correlation_id
        try:
            stored = await self._api.last_from_leader(self._names.checkpoints, subject)
        except BusUnavailable as error:
            raise BusUnavailable(
                f"it is unknown whether revision {checkpoint.revision} of plan {plan} is committed: {error}"
            ) from cause
        # Everything is compared: the same activation may have started another turn after an unknown outcome.
        if stored is not None and stored.payload == body and stored.headers.items() >= headers.items():
            return stored.sequence
        version = stored.sequence if stored is not None else 0
        if isinstance(cause, BusUnavailable) and version == checkpoint.version:
            raise cause  # not stored yet, but may still be in flight
        raise CommitConflict(
            f"plan {plan} was committed or removed by another writer: version {version} is stored, and "
            f"revision {checkpoint.revision} was to follow version {checkpoint.version}"
        ) from cause

    async def history(self, correlation_id: str, *, folded: bool = False) -> list[bytes]:
        # The checkpoint first: a part that is sealed meanwhile is then read twice instead of not at all.
        checkpoint = await self._load(correlation_id)
        if checkpoint is None:
            return []
        parts: dict[int, bytes] = {}
        subject = self._subjects.history(correlation_id, "*")
        reading = self._reader.read(self._names.history, subject, "last_per_subject")
        async with aclosing(reading):
            async for message in reading:
                parts[int(message.subject.rpartition(".")[2])] = message.payload
        return await timeline_of(checkpoint, parts, self._values, folded=folded)

    def committed_after(self, version: int) -> AsyncGenerator[Committed]:
        every = self._subjects.checkpoints
        return self._plans(
            self._reader.read(self._names.checkpoints, every, "all", headers_only=True, after=version), ANY
        )

    def follow(self, version: int = 0) -> AsyncGenerator[Committed]:
        return self._plans(self._reader.follow(self._names.checkpoints, self._subjects.checkpoints, after=version), ANY)

    async def newest(self, wanted: PlanFilter | None = None, *, before: int = 0) -> AsyncGenerator[Committed]:
        every, newest = self._subjects.checkpoints, 0
        passed: set[str] = set()
        reading = self._reader.read_back(self._names.checkpoints, every, before=before)
        async with aclosing(reading):
            async for message in reading:
                newest = newest or message.sequence
                if message.subject in passed or (line := await self._line(message)) is None:
                    continue
                passed.add(message.subject)
                committed = _committed(message, line, wanted or ANY)
                if committed is not None and not (before and await self._has_moved(message)):
                    yield committed
        if before or not newest:
            return
        moved = self._reader.read(self._names.checkpoints, every, "all", headers_only=True, after=newest)
        async with aclosing(self._plans(moved, wanted or ANY)) as plans:
            async for committed in plans:
                yield committed

    async def _plans(self, messages: AsyncGenerator[StoredMessage], wanted: PlanFilter) -> AsyncGenerator[Committed]:
        async with aclosing(messages):
            async for message in messages:
                if (committed := await self._committed(message, wanted)) is not None:
                    yield committed

    async def _has_moved(self, message: StoredMessage) -> bool:
        """Return whether a checkpoint is not the newest of its plan; a finished plan has only one."""
        if TTL in message.headers:
            return False
        newest = await self._api.last(self._names.checkpoints, message.subject)
        return newest is None or newest.sequence != message.sequence

    async def _committed(self, message: StoredMessage, wanted: PlanFilter) -> Committed | None:
        line = await self._line(message)
        return _committed(message, line, wanted) if line is not None else None

    async def _line(self, message: StoredMessage) -> str | None:
        """Return the summary line of a message read without its body; None when the plan has a newer message, or none.

        For an invalid message it is the line of the checkpoint that :meth:`load` returns, or a minimal one.
        """
        keys = await self._keys.read()
        try:
            return verified_summary(message, keys)
        except Forged:
            pass
        try:
            correlation_id = decode_token(message.subject.rpartition(".")[2])
            checkpoint = await self._load(correlation_id)
        except InvalidSubject:
            return None
        except InvalidEnvelope as error:
            logger.warning("%s", error, extra={"correlation_id": correlation_id})
            return _unknown(correlation_id, message.time).to_header()
        if checkpoint is None or checkpoint.version != message.sequence:
            return None
        return checkpoint.summary.to_header()

    async def watch(self, correlation_id: str) -> AsyncGenerator[Checkpoint]:
        watching = self._reader.newest(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
        async with aclosing(watching):
            async for message in watching:
                try:
                    checkpoint: Checkpoint | None = _decode(correlation_id, message, await self._keys.read())
                except Forged:
                    try:
                        checkpoint = await self.load(correlation_id)
                    except InvalidEnvelope as error:
                        logger.warning("%s", error, extra={"correlation_id": correlation_id})
                        continue
                if checkpoint is not None:
                    yield await in_full(checkpoint, self._values)

    async def forget(self, correlation_id: str, aliases: Sequence[str] = ()) -> None:
        await self._api.purge(self._names.checkpoints, self._subjects.checkpoint(correlation_id))
        await self._api.purge(self._names.history, self._subjects.history(correlation_id, "*"))
        for alias in aliases:
            if await self.get_alias(alias) == correlation_id:  # it may belong to another plan by now
                await self._api.purge(self._names.meta, self._subjects.alias(alias))

    async def put_machine(self, digest: str, encoded: bytes) -> None:
        await self._publisher.publish_acked(self._subjects.machine(digest), encoded, {})
        self._machines[digest] = encoded

    async def get_machine(self, digest: str) -> bytes | None:
        if (known := self._machines.get(digest)) is not None:
            return known
        message = await self._newest(self._names.meta, self._subjects.machine(digest))
        if message is None or message.is_marker:
            return None
        self._machines[digest] = message.payload
        return message.payload

    async def machines(self, after: int = 0) -> AsyncGenerator[StoredMachine]:
        every = self._subjects.machine("*")
        async with aclosing(
            self._reader.read(self._names.meta, every, "all", headers_only=True, after=after)
        ) as reading:
            async for message in reading:
                if not message.is_marker:
                    yield StoredMachine(message.subject.rpartition(".")[2], message.sequence, message.time)

    async def drop_machine(self, machine: StoredMachine) -> None:
        self._machines.pop(machine.digest, None)
        await self._drop(self._names.meta, machine.version)

    async def _drop(self, stream: str, sequence: int) -> None:
        try:
            await self._api.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
        except ApiError as error:
            if error.code not in MESSAGE_GONE:
                raise

    async def get_alias(self, correlation_id: str) -> str | None:
        message = await self._newest(self._names.meta, self._subjects.alias(correlation_id))
        return None if message is None or message.is_marker else message.payload.decode()


def _sequence(ack: PubAck) -> int:
    return ack.sequence


def _unknown(correlation_id: str, time: float) -> PlanSummary:
    """Build the summary of a plan without a valid checkpoint: not finished, and with an unknown state machine."""
    return PlanSummary(correlation_id, "running", "", "", 0, created_at=time, updated_at=time)


def _committed(message: StoredMessage, line: str, wanted: PlanFilter) -> Committed | None:
    summary = wanted.read(line)
    if summary is None:
        return None
    ttl = message.headers.get(TTL, "")
    expires_at = message.time + float(ttl) if ttl.isascii() and ttl.isdecimal() else 0.0
    return Committed(message.sequence, decode_token(message.subject.rpartition(".")[2]), summary, expires_at)


def _decode(correlation_id: str, message: StoredMessage, keys: CheckpointKeys | None) -> Checkpoint:
    summary = PlanSummary.from_header(verified_summary(message, keys, message.payload))
    return Checkpoint.decode(correlation_id, message.payload, summary, message.sequence)
