"""Checkpoints, the durable form of a plan after a turn, and the port of their store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import deflate, inflate, pack, unpack
from plancast_bus.ports.effects import Effect, SealHistory, from_fields, to_fields

FORMAT, FOLDED, DEFLATED = 1, 2, 3
"""Versions of the stored format: without references to the store of values, with them, and with them and compressed.
A new one is used where readers of the old one would misread it. The second one is read, and written no more."""
MAX_BYTES = 64 << 20
"""Largest decompressed checkpoint or part of a timeline; what is large in them is stored apart."""


def _one_line(value: Any) -> str:
    """Encode a JSON value as one line of ASCII."""
    line = to_json(value)
    if not line.isascii():
        line = to_json(value, ensure_ascii=True)
    return line.decode().replace("\x7f", "\\u007f")


Attribute = str | int | float | bool
"""A search attribute's value."""


def attribute_text(value: Attribute) -> str:
    """An attribute as filters compare it: ``true``, ``40``, ``acme``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Not frozen, which would cost eight times as much: every turn creates one.
@dataclass(slots=True, unsafe_hash=True)
class PlanSummary:
    """The summary of a plan for listings, read without the checkpoint's body. Immutable by convention."""

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
    """Content hash of the state machine; empty when there is none, None when unknown."""
    attributes: dict[str, Attribute] | None = field(default=None, hash=False)
    """Search attributes that the plan's handlers have set; None when there are none."""
    asks_people: bool | None = None
    """True if a paused plan waits for people, and not for an operator or an event from elsewhere; None when unknown."""

    def to_header(self) -> str:
        """Encode the summary as one line of ASCII."""
        fields = [
            self.plan_id, self.status, self.goal_event, self.current_state, self.revision, self.tenant_id,
            self.user_id, self.session_id, self.parent_plan_id, self.planner, self.created_at, self.updated_at,
            self.machine,
        ]  # fmt: skip
        named = dict(self.attributes or {})
        if self.asks_people is not None:
            named[_ASKS_PEOPLE] = self.asks_people
        if named:  # else as the first versions write and read it
            fields.append(named)
        return _one_line(fields)

    @classmethod
    def from_header(cls, line: str) -> PlanSummary:
        """Decode a line of :meth:`to_header`.

        Raises:
            InvalidEnvelope: it is not such a line.
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope(f"{line[:80]!r} is not a summary of a plan: {error}") from error
        attributes, asks_people = None, None
        if type(fields) is list and len(fields) > _FIELDS and _are_attributes(fields[_FIELDS]):
            attributes = fields.pop(_FIELDS)
            asks_people = attributes.pop(_ASKS_PEOPLE, None)
        if type(fields) is not list or tuple(map(type, fields)) not in _SHAPES or not isfinite(fields[10] + fields[11]):
            raise InvalidEnvelope(f"{line[:80]!r} is not a summary of a plan")
        summary = cls(*fields)
        summary.attributes = attributes or None
        summary.asks_people = asks_people
        return summary


_FIELDS = 13
"""Fields without the attributes, which come last, where there are any."""
_ASKS_PEOPLE = "asks people"
"""Key of ``asks_people`` among the attributes, where earlier versions show it; no handler can set such a name."""
_SCALARS = frozenset((str, int, float, bool))


def _are_attributes(value: Any) -> bool:
    return type(value) is dict and all(type(each) in _SCALARS for each in value.values())


_SHAPES = frozenset(
    (*[str] * 4, int, *[str] * 5, created_at, updated_at, *machine)
    for created_at, updated_at in product((float, int), repeat=2)
    for machine in ((str,), (type(None),), ())
)
"""Accepted types of a summary's fields; the last one is optional."""


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """Criteria for listing plans; None matches any."""

    status: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    goal_event: str | None = None
    text: str | None = None
    """Substring of an id, a goal, a state, a planner's name or a search attribute; case-insensitive."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Names and texts of search attributes that the plan has."""

    def read(self, line: str) -> PlanSummary | None:
        """Decode a line of :meth:`PlanSummary.to_header`; None when the plan does not match.

        Raises:
            InvalidEnvelope: it is not such a line.
        """
        exactly = (self.status, self.session_id, self.tenant_id, self.goal_event)
        wanted = [each for each in (*exactly, *(name for name, _ in self.attributes)) if each is not None]
        if not all(_one_line(each) in line for each in wanted):
            return None  # skips most plans without decoding them
        summary = PlanSummary.from_header(line)
        found = summary.status, summary.session_id, summary.tenant_id, summary.goal_event
        if not all(want in (None, has) for want, has in zip(exactly, found, strict=True)):
            return None
        has = summary.attributes or {}
        if not all(name in has and attribute_text(has[name]) == text for name, text in self.attributes):
            return None
        return summary if self.text is None or _contains(summary, self.text.casefold()) else None


def _contains(plan: PlanSummary, text: str) -> bool:
    texts = (
        plan.plan_id, plan.goal_event, plan.current_state, plan.planner, plan.session_id, plan.user_id,
        plan.parent_plan_id, *map(attribute_text, (plan.attributes or {}).values()),
    )  # fmt: skip
    return any(text in each.casefold() for each in texts)


class Committed(NamedTuple):
    """A plan as returned by listings."""

    version: int
    """The store's version of its newest checkpoint; it grows with every commit of any plan."""
    correlation_id: str
    summary: PlanSummary
    expires_at: float = 0.0
    """When the store removes the plan, seconds since the epoch, UTC; 0 for never."""


class StoredMachine(NamedTuple):
    """A state machine as returned by listings."""

    digest: str
    """Its content hash."""
    version: int
    """The store's version of its newest put; it grows with every put of any machine."""
    put_at: float
    """Time of that put by the store's clock, seconds since the epoch, UTC."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen either
class Checkpoint:
    """A plan after a turn: its state and the effects of that turn. Immutable by convention.

    ``version`` is the store's, expected by the next commit; 0 means "not stored yet".
    """

    correlation_id: str
    """Correlation id of the plan's events; the key of the checkpoint."""
    revision: int
    """Number of turns committed, contiguous from 1."""
    epoch: str
    """Id of the attempt at the turn; distinguishes a writer's own commit with a lost acknowledgement from others."""
    state: bytes
    """The plan's state, msgpack."""
    summary: PlanSummary
    outbox: tuple[Effect, ...] = ()
    processed: bytes = b""
    """Digests of the ids of processed events, 8 bytes each, oldest first."""
    timeline: tuple[bytes, ...] = ()
    """The newest timeline entries, msgpack each; older ones are in sealed parts of the history."""
    sealed: int = 0
    """Number of sealed parts of the timeline."""
    expires_after: float = 0.0
    """Seconds until a finished plan is removed; 0 keeps it."""
    is_folded: bool = False
    """State and timeline, also its sealed parts, may refer to values; see :mod:`plancast_bus.events.folding`."""
    version: int = field(default=0, compare=False)
    processed_before: bytes = b""
    """Of a folded checkpoint: a packed reference to the digests before those in ``processed``; empty: none."""

    def encode(self) -> bytes:
        """Encode the body of the checkpoint; the summary is stored beside it."""
        fields = [
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
        if not self.is_folded:
            return pack(fields)
        return pack([DEFLATED, deflate(pack([*fields[1:], self.processed_before]))])

    @classmethod
    def decode(cls, correlation_id: str, payload: bytes, summary: PlanSummary, version: int) -> Checkpoint:
        """Decode a stored body.

        Raises:
            InvalidEnvelope: the body is not a checkpoint of a supported format.
        """
        fields = unpack(payload)
        if not isinstance(fields, list) or fields[:1] not in ([FORMAT], [FOLDED], [DEFLATED]):
            found = fields[0] if isinstance(fields, list) and fields else None
            raise InvalidEnvelope(
                f"the checkpoint of plan {correlation_id} has format {found!r:.40}; this version reads "
                f"{FORMAT} to {DEFLATED}"
            )
        try:
            version_of_format, *rest = fields
            before = b""
            if version_of_format == DEFLATED:
                (body,) = rest
                *rest, before = unpack(inflate(body, MAX_BYTES))
            revision, epoch, state, outbox, processed, timeline, sealed, expires_after = rest
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
            is_folded=version_of_format != FORMAT,
            version=version,
            processed_before=before,
        )

    @property
    def folded_parts(self) -> tuple[bytes, ...]:
        """All parts that may refer to values, the state first, then the timeline."""
        return (self.state, *self.timeline, *filter(None, (self.processed_before,)))

    def whole_timeline(self, sealed: Mapping[int, bytes]) -> list[bytes]:
        """Join the sealed parts of the timeline, by first revision, and the entries of this checkpoint.

        A part may be committed and not stored yet, so those in the outbox count; and one may be sealed while the others
        are read, so entries may overlap.
        """
        parts = dict(sealed)
        for effect in self.outbox:
            if isinstance(effect, SealHistory) and effect.plan == self.correlation_id:
                parts[effect.first_revision] = effect.payload
        entries: list[bytes] = []
        for more in (*(_entries_of(parts[first]) for first in sorted(parts)), self.timeline):
            if more and more[0] in entries:
                del entries[entries.index(more[0]) :]
            entries.extend(more)
        return entries


def sealed_part(entries: Sequence[bytes], *, compress: bool) -> bytes:
    """Pack timeline entries for :class:`~plancast_bus.ports.effects.SealHistory`."""
    return pack(deflate(pack(entries))) if compress else pack(entries)


def _entries_of(part: bytes) -> list[bytes]:
    """Undo :func:`sealed_part`."""
    entries: Any = unpack(part)
    if isinstance(entries, bytes):
        entries = unpack(inflate(entries, MAX_BYTES))
    return list(entries)


class CheckpointStore(Protocol):
    """Store of checkpoints. The compare-and-set in :meth:`commit` is the only fencing between writers."""

    async def load(self, correlation_id: str, *, folded: bool = False) -> Checkpoint | None:
        """Return the newest checkpoint of the plan, or None; its values in full, unless it is wanted ``folded``.

        A checkpoint that this deployment did not write is rejected and copied to the dead letters. The previous one is
        returned instead, with the version of the rejected one, so that the next commit replaces it. The store keeps two
        checkpoints of each plan for that.

        Raises:
            UnreadableCheckpoint: no stored checkpoint is valid; nothing was changed.
            UnreadableValue: a value that it refers to is missing or damaged.
            InvalidEnvelope: it is valid, but of a format that this version does not support.
        """
        ...

    async def kept(self, correlation_id: str) -> list[Checkpoint]:
        """Return the stored checkpoints of the plan, oldest first and folded: the newest, and the one before it.

        One that this deployment did not write is left out.

        Raises:
            UnreadableCheckpoint: it has written none of them.
        """
        ...

    async def commit(self, checkpoint: Checkpoint) -> int:
        """Replace version ``checkpoint.version`` (0: none) and return the new version.

        Returns once the write is durable. After a lost acknowledgement the store is read back and compared.

        Raises:
            CommitConflict: another version is stored; the writer's state is stale.
            BusUnavailable: the store cannot be reached; the outcome of the write is unknown.
            PayloadTooLarge: the checkpoint exceeds the server's limit.
            PublishRefused: the store is full.
        """
        ...

    def begin_commit(self, checkpoint: Checkpoint) -> asyncio.Future[int]:
        """Start :meth:`commit` and return the future of the new version.

        When it fails, at once or later, the outcome is unknown: load the checkpoint again.
        """
        ...

    async def history(self, correlation_id: str, *, folded: bool = False) -> list[bytes]:
        """Return all timeline entries of the plan, msgpack each, oldest first; empty for an unknown plan.

        Their values are in full, unless they are wanted ``folded``.
        """
        ...

    def committed_after(self, version: int) -> AsyncGenerator[Committed]:
        """List plans whose newest commit is after this version, in order of commits.

        A plan may occur twice: at its previous commit and at its newest. The listing can be stopped at any plan and
        resumed after its version. Read to the end, it contains every plan that was not committed meanwhile.

        Raises:
            BusUnavailable: the listing was interrupted and is incomplete.
        """
        ...

    def follow(self, version: int = 0) -> AsyncGenerator[Committed]:
        """List plans as :meth:`committed_after` does, then each further commit, until the caller stops.

        Only the last of several quick commits of a plan may be listed. It continues after a reconnect.

        Raises:
            BusUnavailable: the connection was closed.
        """
        ...

    def newest(self, wanted: PlanFilter | None = None, *, before: int = 0) -> AsyncGenerator[Committed]:
        """List stored plans that match, newest commit first; with ``before``, those committed before that version.

        The cost depends on what is read, not on the number of plans. A plan that is committed during the listing is
        listed at its old place, or with its new state at the end, or both; with ``before`` it may be missed.
        """
        ...

    def watch(self, correlation_id: str) -> AsyncIterator[Checkpoint]:
        """Yield the newest checkpoint of the plan, then each further one, until the caller stops."""
        ...

    async def forget(self, correlation_id: str, aliases: Sequence[str] = ()) -> None:
        """Remove the plan's checkpoint, its history and its aliases."""
        ...

    async def put_machine(self, digest: str, encoded: bytes) -> None:
        """Store a state machine under its content hash; repeating it renews its time of use."""
        ...

    async def get_machine(self, digest: str) -> bytes | None:
        """Return the state machine with this content hash, or None."""
        ...

    def machines(self, after: int = 0) -> AsyncGenerator[StoredMachine]:
        """List the state machines whose newest put is after this version, in order of puts."""
        ...

    async def drop_machine(self, machine: StoredMachine) -> None:
        """Remove a state machine, unless it was put again meanwhile."""
        ...

    async def get_alias(self, correlation_id: str) -> str | None:
        """Return the correlation id of the plan that an alias belongs to, or None."""
        ...
