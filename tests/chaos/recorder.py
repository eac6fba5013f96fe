"""The record of a run: all messages that pass a nats-server, and all that it stores at the end."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import FetchTimeoutError
from simulation.history import Entry, Fact

from plancast_bus.jetstream.stores.checkpoint_mac import SUMMARY
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.values import ValueStore, in_full
from plancast_bus.subjects import Subjects, decode_token

VERSIONS = 100_000
"""Versions of each checkpoint that the store retains during a run."""
MARGIN = 1.0
"""Seconds around a lost connection in which messages may be missing from the record."""


def is_due(subject: str) -> bool:
    """Whether a message must be processed in a run, unlike placeholders and expiry timers of finished plans."""
    return ".keepers." not in subject and not (".timers." in subject and subject.endswith(".expiry"))


@dataclass(frozen=True)
class Seen:
    """A message as it was recorded."""

    time: float
    subject: str
    payload: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Stored:
    """A message that a stream holds."""

    time: float
    """When the server has stored it."""
    sequence: int
    subject: str
    payload: bytes
    headers: dict[str, str]


@dataclass
class Record:
    """The record of a run. Times are seconds since the epoch."""

    facts: list[Entry] = field(default_factory=list)
    """Actions of clients, their results, and faults."""
    seen: list[Seen] = field(default_factory=list)
    """In the order in which the server got it."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """When the recorder had no connection."""
    versions: list[tuple[Stored, Checkpoint]] = field(default_factory=list)
    """Every checkpoint that was ever committed."""
    left: dict[str, list[Stored]] = field(default_factory=dict)
    """Messages left in each other stream, by kind."""
    notes: list[list[Any]] = field(default_factory=list)
    """Calls and replies of workers: time, correlation id, request, attempt, reply (empty for a call)."""
    rested_at: float = math.inf
    """When all plans had ended and nothing was left to process; what comes later answers plans that have ended."""

    errors: list[str] = field(default_factory=list)
    """Unexpected errors of clients."""

    def note(self, node: str, fact: Fact) -> None:
        """Add an entry with the current time."""
        self.facts.append(Entry(time.time(), node, fact))


class Recorder:
    """Records all messages over its own direct connection to the server."""

    def __init__(self, url: str, subjects: Subjects, record: Record) -> None:
        self._url = url
        self._names = StreamNames.of(subjects.prefix)
        self._subjects = subjects
        self._lost_at = 0.0
        self.record = record
        self.commits = 0
        """Recorded checkpoints, including refused ones."""
        self._connection = Connection()

    async def start(self) -> None:
        """Begin to record, and make the store retain every version of a checkpoint."""

        async def lost() -> None:
            self._lost_at = time.time()

        async def back() -> None:
            self.record.gaps.append((self._lost_at - MARGIN, time.time() + MARGIN))

        async def error(_: Exception) -> None:
            return None

        self._connection = await nats.connect(
            self._url,
            disconnected_cb=lost,
            reconnected_cb=back,
            error_cb=error,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.02,
        )
        name = f"STREAM.INFO.{self._names.checkpoints}"
        config = json.loads((await self._connection.request(f"$JS.API.{name}", b"")).data)["config"]
        asked = json.dumps({**config, "max_msgs_per_subject": VERSIONS}).encode()
        answer = await self._connection.request(f"$JS.API.STREAM.UPDATE.{self._names.checkpoints}", asked)
        assert "error" not in json.loads(answer.data), answer.data
        # One subscription for all, so that what comes by stays in its order.
        await self._connection.subscribe(">", cb=self._note, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._connection.flush()

    async def _note(self, message: Msg) -> None:
        subject = message.subject
        if message.reply.startswith("$JS.ACK") or subject.startswith("_INBOX"):
            return
        if subject.startswith("$JS.API.") and not subject.startswith(("$JS.API.STREAM.PURGE", "$JS.API.STREAM.MSG.D")):
            return
        if not subject.startswith((self._subjects.prefix, "$JS.API.")):
            return
        if subject.startswith(f"{self._subjects.store}.checkpoints."):
            self.commits += 1
        self.record.seen.append(Seen(time.time(), subject, message.data, dict(message.headers or {})))

    async def conclude(self, notes: Path, values: ValueStore) -> Record:
        """Read all that is stored at the end, the values of checkpoints too; the recorder cannot be used afterwards."""
        record, names = self.record, self._names
        for stored in await self._read(names.checkpoints):
            if SUMMARY in stored.headers:
                plan = decode_token(stored.subject.rpartition(".")[2])
                summary = PlanSummary.from_header(stored.headers[SUMMARY])
                checkpoint = Checkpoint.decode(plan, stored.payload, summary, stored.sequence)
                record.versions.append((stored, await in_full(checkpoint, values)))
        for kind in ("results", "timers", "requests", "responses", "dead_letters", "history", "meta"):
            record.left[kind] = await self._read(getattr(names, kind))
        record.notes = await asyncio.to_thread(_read_notes, notes)
        await self._connection.close()
        return record

    async def left(self, kind: str) -> list[str]:
        """Subjects of the unprocessed messages in a stream."""
        asked = json.dumps({"subjects_filter": ">"}).encode()
        answer = await self._connection.request(f"$JS.API.STREAM.INFO.{getattr(self._names, kind)}", asked)
        return [each for each in json.loads(answer.data)["state"].get("subjects") or () if is_due(each)]

    async def _read(self, stream: str) -> list[Stored]:
        """All messages of a stream: with direct gets where a work queue allows no second consumer."""
        info = json.loads((await self._connection.request(f"$JS.API.STREAM.INFO.{stream}", b"")).data)
        if not info["state"]["messages"]:
            return []
        if info["config"]["retention"] == "workqueue":
            return await self._read_one_by_one(stream, info["state"])
        context = self._connection.jetstream()
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
        reading = await context.pull_subscribe("", stream=stream, config=config)
        found: list[Stored] = []
        while True:
            try:
                batch = await reading.fetch(500, timeout=2.0)
            except (FetchTimeoutError, TimeoutError):
                break
            for message in batch:
                about = message.metadata
                headers = dict(message.headers or {})
                found.append(
                    Stored(about.timestamp.timestamp(), about.sequence.stream, message.subject, message.data, headers)
                )
            if batch and batch[-1].metadata.num_pending == 0:
                break
        return found

    async def _read_one_by_one(self, stream: str, state: dict[str, Any]) -> list[Stored]:
        found: list[Stored] = []
        sequence = int(state["first_seq"])
        while True:
            asked = json.dumps({"seq": sequence, "next_by_subj": ">"}).encode()
            message = await self._connection.request(f"$JS.API.DIRECT.GET.{stream}", asked)
            headers = dict(message.headers or {})
            if "Nats-Sequence" not in headers:
                return found
            sequence = int(headers["Nats-Sequence"])
            found.append(Stored(0.0, sequence, headers["Nats-Subject"], message.data, headers))
            sequence += 1


def _read_notes(folder: Path) -> list[list[Any]]:
    lines = [line for path in sorted(folder.glob("worker-*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("]")]
