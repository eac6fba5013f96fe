"""The port of the store of values: contents that plans and events refer to, stored once each, by digest.

A content is stored before the checkpoint or the event that refers to it, again if it is stored already; except that a
checkpoint may refer to what was stored for the plan's event a short time before. What no stored plan or event refers to
is removed by a collector, which reads all that use the store, and removes only contents that were not stored again
since. So a host may die at any point, and so may the collector.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from plancast_bus.errors import UnreadableValue
from plancast_bus.events.codec import pack
from plancast_bus.events.references import Writer
from plancast_bus.events.unfolding import Unfolding
from plancast_bus.events.value_parts import Reference, digest_of
from plancast_bus.ports.checkpoints import Checkpoint

_T = TypeVar("_T")
FRAME_BYTES = 512 * 1024
"""Largest part of a content in one message. Part of the stored format."""


class StoredValue(NamedTuple):
    """A message of a content, as returned by listings."""

    tenant: str
    digest: bytes
    version: int
    """The store's version of the message; it grows with every message stored."""
    size: int
    """Bytes in this message; contents over :data:`FRAME_BYTES` have several."""
    stored_at: float
    """By the store's clock, seconds since the epoch, UTC."""


class HeldValues(NamedTuple):
    """Contents that were stored for a tenant before, so that a checkpoint may refer to them as long as they are new."""

    tenant: str
    stored_at: Mapping[bytes, float]
    """Time by digest, seconds since the epoch by the clock of the host, UTC; the values are that old at most."""


class PlanWithValues(NamedTuple):
    """A plan that has stored contents."""

    correlation_id: str
    version: int
    stored_at: float


class ValueStore(Protocol):
    """Store of contents. Those of one tenant are out of reach of the others."""

    @property
    def writer(self) -> Writer:
        """The writer that this connection stores contents as."""
        ...

    async def put(self, tenant: str, plan: str | None, contents: Mapping[bytes, bytes]) -> None:
        """Store contents by digest, and note that the plan or events with this correlation id use some; repeatable.

        Returns once they are durable. ``None`` as the plan: it is noted already.

        Raises:
            PublishRefused: the store is full.
            BusUnavailable: not all are known to be stored; put all again.
        """
        ...

    async def get(
        self,
        tenant: str,
        references: Iterable[Reference],
        writer: Writer = "runtime",
        stored_at: dict[bytes, float] | None = None,
    ) -> dict[bytes, bytes]:
        """Return contents by digest, as the runtime or a login has stored them.

        ``stored_at`` receives the time of each content, by the store's clock, where the connection reads the store
        itself: that of its oldest message.

        Raises:
            UnreadableValue: one is missing or damaged.
            BusUnavailable: the store cannot be reached.
        """
        ...

    async def now(self) -> float:
        """Return the time of the store's clock, seconds since the epoch, UTC."""
        ...

    def values(self) -> AsyncGenerator[StoredValue]:
        """List the messages of all contents, oldest first."""
        ...

    def plans(self) -> AsyncGenerator[PlanWithValues]:
        """List the plans that have stored contents."""
        ...

    async def drop(self, stored: Sequence[StoredValue | PlanWithValues]) -> None:
        """Remove messages and notes of plans, except those that were stored again since."""
        ...


def frames_of(reference: Reference) -> int:
    """Return the number of messages of a content."""
    return -(-reference.size // FRAME_BYTES)


def checked(reference: Reference, content: bytes | None) -> bytes:
    """Return the content that was found for a reference.

    Raises:
        UnreadableValue: none was found, or another one.
    """
    if content is None or digest_of(content) != reference.digest:
        state = "missing" if content is None else f"damaged: {len(content):,} bytes of {reference.size:,} were found"
        raise UnreadableValue(f"the value {reference.digest.hex()} is {state}")
    return content


async def unfold(
    store: ValueStore,
    tenant: str,
    plan: str,
    packed: Sequence[bytes],
    *,
    max_bytes: int | None = None,
    writer: Writer = "runtime",
    stored_at: dict[bytes, float] | None = None,
) -> tuple[list[Any], dict[bytes, Reference]]:
    """Return folded values of the plan with this correlation id in full, and their references by digest.

    ``stored_at`` receives what :meth:`ValueStore.get` gives it. Raises as that; InvalidEnvelope: they have more than
    ``max_bytes``.
    """

    def read(unfolding: Unfolding) -> list[Any]:
        return [unfolding.read(each) for each in packed]

    return await unfold_by(read, store, tenant, plan, max_bytes=max_bytes, writer=writer, stored_at=stored_at)


async def unfold_by(
    read: Callable[[Unfolding], _T],
    store: ValueStore,
    tenant: str,
    plan: str,
    *,
    max_bytes: int | None = None,
    writer: Writer = "runtime",
    stored_at: dict[bytes, float] | None = None,
) -> tuple[_T, dict[bytes, Reference]]:
    """Return what a function reads from the folded values of a plan, and the references that it met; as :func:`unfold`.

    The function is called again with the contents that it has missed.
    """
    contents: dict[bytes, bytes] = {}
    while True:
        unfolding = Unfolding(contents, max_bytes)
        value = read(unfolding)
        if not unfolding.missing:
            return value, unfolding.references
        contents |= await _got(store, tenant, plan, unfolding.missing.values(), writer, stored_at)


async def references_of(
    store: ValueStore,
    tenant: str,
    plan: str,
    packed: Sequence[bytes],
    *,
    max_bytes: int | None = None,
    writer: Writer = "runtime",
) -> dict[bytes, Reference]:
    """Return all references in folded values of the plan with this correlation id, by digest.

    Only contents that hold references are read. Raises as :func:`unfold`.
    """
    contents: dict[bytes, bytes] = {}
    while True:
        unfolding = Unfolding(contents, max_bytes)
        for each in packed:
            unfolding.read(each)
        nodes = [each for each in unfolding.missing.values() if each.has_references]
        if not nodes:
            return unfolding.references
        contents |= await _got(store, tenant, plan, nodes, writer)


async def _got(
    store: ValueStore,
    tenant: str,
    plan: str,
    references: Iterable[Reference],
    writer: Writer,
    stored_at: dict[bytes, float] | None = None,
) -> dict[bytes, bytes]:
    try:
        return await store.get(tenant, references, writer, stored_at)
    except UnreadableValue as error:
        raise UnreadableValue(f"plan {plan}: {error}; see plancast doctor") from error


async def in_full(checkpoint: Checkpoint, store: ValueStore) -> Checkpoint:
    """Return a checkpoint with its values in full; raises as :meth:`ValueStore.get`."""
    if not checkpoint.is_folded:
        return checkpoint
    plan, tenant = checkpoint.correlation_id, checkpoint.summary.tenant_id
    (state, *rest), _ = await unfold(store, tenant, plan, checkpoint.folded_parts)
    before, count = b"".join(rest[len(checkpoint.timeline) :]), len(checkpoint.timeline)
    timeline = tuple(map(pack, rest[:count]))
    return replace(
        checkpoint, state=pack(state), timeline=timeline, processed=before + checkpoint.processed,
        processed_before=b"", is_folded=False,
    )  # fmt: skip


async def timeline_of(
    checkpoint: Checkpoint, sealed: Mapping[int, bytes], store: ValueStore, *, folded: bool
) -> list[bytes]:
    """Return the whole timeline of a plan; ``sealed`` are its sealed parts by first revision.

    Raises as :meth:`ValueStore.get`.
    """
    entries = checkpoint.whole_timeline(sealed)
    if folded or not checkpoint.is_folded:
        return entries
    values, _ = await unfold(store, checkpoint.summary.tenant_id, checkpoint.correlation_id, entries)
    return [*map(pack, values)]
