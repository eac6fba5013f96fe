"""Checkpoints: the durable form of a plan after a turn, and the port to where they rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.effects import Effect, from_fields, to_fields

FORMAT = 1
"""Version of the stored form; raised when a reader of the old form would misread the new one."""


def _one_line(value: Any) -> str:
    """A JSON value as one line of ASCII."""
    line = to_json(value)
    if not line.isascii():
        line = to_json(value, ensure_ascii=True)
    return line.decode().replace("\x7f", "\\u007f")


# Not frozen, which would make it cost eight times as much: every turn makes one.
@dataclass(slots=True, unsafe_hash=True)
class PlanSummary:
    """What listings show of a plan; it can be read without the checkpoint's body. Not to be changed."""

    plan_id: str
    status: str
    goal_event: str
    current_state: str
    revision: int
    tenant_id: str = ""
    user_id: str = ""
    session_id: str = ""
    parent_plan_id: str = ""
    planner: str = ""
    created_at: float = 0.0
    """Seconds since the epoch, UTC."""
    updated_at: float = 0.0
    machine: str | None = None
    """Content hash of the state machine, empty where there is none. None: written before summaries said it."""

    def to_header(self) -> str:
        """The summary as one line of ASCII."""
        return _one_line(
            [
                self.plan_id, self.status, self.goal_event, self.current_state, self.revision, self.tenant_id,
                self.user_id, self.session_id, self.parent_plan_id, self.planner, self.created_at, self.updated_at,
                self.machine,
            ]
        )  # fmt: skip

    @classmethod
    def from_header(cls, line: str) -> PlanSummary:
        """The summary that :meth:`to_header` made a line of.

        Raises:
            InvalidEnvelope: it is no such line.
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope(f"{line[:80]!r} is no summary of a plan: {error}") from error
        if type(fields) is not list or tuple(map(type, fields)) not in _SHAPES or not isfinite(fields[10] + fields[11]):
            raise InvalidEnvelope(f"{line[:80]!r} is no summary of a plan")
        return cls(*fields)


_SHAPES = frozenset(
    (*[str] * 4, int, *[str] * 5, created_at, updated_at, *machine)
    for created_at, updated_at in product((float, int), repeat=2)
    for machine in ((str,), (type(None),), ())
)
"""Types of the fields of a summary; the last one was not always written."""


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """Which plans a look through all of them is for; None takes any."""

    status: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    goal_event: str | None = None
    text: str | None = None
    """A part of an id, a goal, a state or a planner's name, in upper or lower case."""

    def read(self, line: str) -> PlanSummary | None:
        """The summary that :meth:`PlanSummary.to_header` made a line of; None when it is of another plan.

        Raises:
            InvalidEnvelope: it is no such line.
        """
        exactly = (self.status, self.session_id, self.tenant_id, self.goal_event)
        wanted = [each for each in exactly if each is not None]
        if not all(_one_line(each) in line for each in wanted):
            return None  # most plans are passed over without being read
        summary = PlanSummary.from_header(line)
        found = summary.status, summary.session_id, summary.tenant_id, summary.goal_event
        if not all(want in (None, has) for want, has in zip(exactly, found, strict=True)):
            return None
        return summary if self.text is None or _says(summary, self.text.casefold()) else None


def _says(plan: PlanSummary, text: str) -> bool:
    said = (
        plan.plan_id, plan.goal_event, plan.current_state, plan.planner, plan.session_id, plan.user_id,
        plan.parent_plan_id,
    )  # fmt: skip
    return any(text in each.casefold() for each in said)


class Committed(NamedTuple):
    """A plan as a look through all of them finds it."""

    version: int
    """The store's, of its newest checkpoint; it grows with every commit of any plan."""
    correlation_id: str
    summary: PlanSummary
    expires_at: float = 0.0
    """When the store forgets the plan, seconds since the epoch, UTC; 0 while it is kept."""


class StoredMachine(NamedTuple):
    """A state machine as a look through all of them finds it."""

    digest: str
    """Its content hash."""
    version: int
    """The store's, of its newest put; it grows with every put of any machine."""
    put_at: float
    """When that was, seconds since the epoch, UTC, by the store's clock."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen either
class Checkpoint:
    """A plan after a turn: its state, the effects of that turn, and what it must remember. Not to be changed.

    ``version`` is the store's, to be handed back with the next commit; 0 means "not stored yet".
    """

    correlation_id: str
    """The correlation id that the plan's events carry; the key of the checkpoint."""
    revision: int
    """Number of turns committed, contiguous from 1."""
    epoch: str
    """Which attempt at the turn wrote it; tells one's own commit, whose acknowledgement was lost, from any other."""
    state: bytes
    """The plan's state, msgpack."""
    summary: PlanSummary
    outbox: tuple[Effect, ...] = ()
    processed: bytes = b""
    """Digests of the ids of processed events, 8 bytes each, oldest first."""
    timeline: tuple[bytes, ...] = ()
    """The newest entries of the timeline, msgpack each; older ones are sealed parts of the history."""
    sealed: int = 0
    """Number of sealed parts of the timeline."""
    expires_after: float = 0.0
    """Seconds until a finished plan is forgotten; 0 keeps it."""
    version: int = field(default=0, compare=False)

    def encode(self) -> bytes:
        """The checkpoint's body as bytes; the summary travels beside it."""
        return pack(
            [
                FORMAT,
                self.revision,
                self.epoch,
                self.state,
                [to_fields(effect) for effect in self.outbox],
                self.processed,
                self.timeline,
                self.sealed,
                self.expires_after,
            ]
        )

    @classmethod
    def decode(cls, correlation_id: str, payload: bytes, summary: PlanSummary, version: int) -> Checkpoint:
        """The checkpoint in a stored body.

        Raises:
            InvalidEnvelope: the body is no checkpoint of a format that this version reads.
        """
        fields = unpack(payload)
        if not isinstance(fields, list) or fields[:1] != [FORMAT]:
            found = fields[0] if isinstance(fields, list) and fields else None
            raise InvalidEnvelope(
                f"the checkpoint of plan {correlation_id} has format {found!r:.40}; this version reads {FORMAT}"
            )
        try:
            _format, revision, epoch, state, outbox, processed, timeline, sealed, expires_after = fields
            effects, entries = tuple(from_fields(effect) for effect in outbox), tuple(timeline)
        except (ValueError, TypeError) as error:
            raise InvalidEnvelope(f"the checkpoint of plan {correlation_id} is damaged: {error}") from error
        return cls(
            correlation_id=correlation_id,
            revision=revision,
            epoch=epoch,
            state=state,
            summary=summary,
            outbox=effects,
            processed=processed,
            timeline=entries,
            sealed=sealed,
            expires_after=expires_after,
            version=version,
        )


class CheckpointStore(Protocol):
    """Where checkpoints rest. The compare-and-set in :meth:`commit` is the only fence between writers."""

    async def load(self, correlation_id: str) -> Checkpoint | None:
        """The newest checkpoint of the plan, or None.

        A stored checkpoint that this deployment has not written is refused: it is put aside among the dead letters,
        and the one before it takes its place, with the version of the refused one, so that the next commit replaces
        it. Two checkpoints of each plan are kept for that.

        Raises:
            UnreadableCheckpoint: none that is stored can be used; nothing was put aside or removed.
        """
        ...

    async def commit(self, checkpoint: Checkpoint) -> int:
        """Store a checkpoint over version ``checkpoint.version`` (0: none) and return the new version.

        It returns only when the write is acknowledged as durable. After a lost acknowledgement it
        reads back and compares before it concludes anything.

        Raises:
            CommitConflict: another version is stored; the writer's state is stale.
            BusUnavailable: the store cannot be reached; whether the write took place is unknown.
            PayloadTooLarge: the checkpoint is over the server's limit.
            PublishRefused: the store is full.
        """
        ...

    def begin_commit(self, checkpoint: Checkpoint) -> asyncio.Future[int]:
        """Begin to store a checkpoint as :meth:`commit` does, and return the future of the new version.

        Where it fails, at once or later, whether the checkpoint is stored is not known: load it again.
        """
        ...

    async def history(self, correlation_id: str) -> list[bytes]:
        """All timeline entries of the plan, oldest first, msgpack each; empty when unknown."""
        ...

    def summaries(
        self,
        *,
        status: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[PlanSummary]:
        """The plans that are stored, newest commit last, filtered."""
        ...

    def committed_after(self, version: int) -> AsyncGenerator[Committed]:
        """The plans whose newest commit came after the one with this version, in the order of commits.

        A plan may come twice: at the commit before, as it was then, and at its newest.

        Made to be read a piece at a time: leave it at any plan, and go on behind its version another time.
        Read to its end, it has shown every plan that was stored and not committed meanwhile.

        Raises:
            BusUnavailable: the reading was interrupted; not all of them were shown.
        """
        ...

    def follow(self, version: int = 0) -> AsyncGenerator[Committed]:
        """What :meth:`committed_after` shows, then each further commit, until the caller stops.

        Commits of one plan that follow each other quickly may be shown as the last of them. It goes on after the
        connection was lost.

        Raises:
            BusUnavailable: the connection was closed.
        """
        ...

    def newest(self, wanted: PlanFilter | None = None, *, before: int = 0) -> AsyncGenerator[Committed]:
        """The plans that are stored, filtered, newest commit first; with ``before`` those committed before it.

        Made to be left early: it costs what is read of it, however many plans there are. A plan that is committed
        while all of them are read is not missed: it comes where it was, or as it is then at the end, or both. With
        ``before`` it may be missed, since it is no longer among those.
        """
        ...

    def watch(self, correlation_id: str) -> AsyncIterator[Checkpoint]:
        """The newest checkpoint of the plan, then each further one, until the caller stops."""
        ...

    async def forget(self, correlation_id: str, aliases: Sequence[str] = ()) -> None:
        """Remove the plan's checkpoint, its history, and what was noted of these further correlation ids."""
        ...

    async def put_machine(self, digest: str, encoded: bytes) -> None:
        """Keep a state machine under its content hash; repeating it only says that it is needed still."""
        ...

    async def get_machine(self, digest: str) -> bytes | None:
        """The state machine with this content hash, or None."""
        ...

    def machines(self, after: int = 0) -> AsyncGenerator[StoredMachine]:
        """The state machines whose newest put came after the one with this version, in the order of puts."""
        ...

    async def drop_machine(self, kept: StoredMachine) -> None:
        """Remove a state machine, unless it was put again since."""
        ...

    async def get_alias(self, correlation_id: str) -> str | None:
        """The plan's own correlation id that a further one was noted for, or None."""
        ...
