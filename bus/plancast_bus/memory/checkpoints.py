"""Checkpoints in memory, stored as bytes so that loaded and committed objects share nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.errors import BusUnavailable, CommitConflict
from plancast_bus.ports.checkpoints import Checkpoint, Committed, PlanFilter, PlanSummary, StoredMachine
from plancast_bus.ports.values import in_full, timeline_of

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    correlation_id: str
    version: int
    body: bytes
    header: str
    expires_at: float

    def committed(self) -> Committed:
        expires_at = self.expires_at if self.expires_at < float("inf") else 0.0
        return Committed(self.version, self.correlation_id, PlanSummary.from_header(self.header), expires_at)

    def decode(self) -> Checkpoint:
        summary = PlanSummary.from_header(self.header)
        return Checkpoint.decode(self.correlation_id, self.body, summary, self.version)


class PlanTable:
    """The checkpoints, histories, machines and aliases of a world."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checkpoints: dict[str, StoredCheckpoint] = {}  # in the order of their commits
        self._before: dict[str, StoredCheckpoint] = {}
        """The checkpoint before the newest of each plan that is not finished."""
        self._history: dict[str, dict[int, bytes]] = {}
        self._last = 0
        self.machines: dict[str, tuple[StoredMachine, bytes]] = {}  # in the order of their puts
        self.aliases: dict[str, str] = {}
        self._noted_at: dict[str, float] = {}
        self._aliases_of: dict[str, set[str]] = {}
        self.listeners: dict[str, set[asyncio.Queue[StoredCheckpoint | None]]] = {}
        """Those that receive each commit of a plan, or of all plans under the empty id."""

    def find(self, correlation_id: str) -> StoredCheckpoint | None:
        stored = self._checkpoints.get(correlation_id)
        if stored is None or stored.expires_at > self._clock.time():
            return stored
        self.forget(correlation_id)
        return None

    def compare_and_set(self, version: int, correlation_id: str, body: bytes, header: str, ttl: float) -> int:
        """Replace a version and return the new one; 0 when another version is stored."""
        stored = self.find(correlation_id)
        if (stored.version if stored else 0) != version:
            return 0
        if stored is None:
            self._history.pop(correlation_id, None)
        self._last += 1
        expires_at = self._clock.time() + ttl if ttl > 0 else float("inf")
        new = StoredCheckpoint(correlation_id, self._last, body, header, expires_at)
        before = self._checkpoints.pop(correlation_id, None)
        self._checkpoints[correlation_id] = new
        if ttl > 0 or before is None:
            self._before.pop(correlation_id, None)
        else:
            self._before[correlation_id] = before
        for listener in (*self.listeners.get(correlation_id, ()), *self.listeners.get("", ())):
            listener.put_nowait(new)
        return new.version

    def seal(self, plan: str, first_revision: int, payload: bytes) -> None:
        self._history.setdefault(plan, {})[first_revision] = payload

    def sealed(self, plan: str) -> dict[int, bytes]:
        """Return the sealed parts of a plan's timeline by first revision."""
        return dict(self._history.get(plan, {}))

    def note_alias(self, correlation_id: str, plan: str) -> None:
        self.aliases[correlation_id] = plan
        self._noted_at[correlation_id] = self._clock.time()
        self._aliases_of.setdefault(plan, set()).add(correlation_id)

    def drop_alias(self, correlation_id: str, plan: str, before: float) -> None:
        if self.aliases.get(correlation_id) == plan and self._noted_at[correlation_id] < before:
            del self.aliases[correlation_id], self._noted_at[correlation_id]
            self._aliases_of[plan].discard(correlation_id)

    def put_machine(self, digest: str, encoded: bytes) -> None:
        self._last += 1
        self.machines.pop(digest, None)
        self.machines[digest] = StoredMachine(digest, self._last, self._clock.time()), encoded

    def kept(self, correlation_id: str) -> list[StoredCheckpoint]:
        newest = self.find(correlation_id)
        return [each for each in (self._before.get(correlation_id), newest) if newest is not None and each is not None]

    def all(self) -> list[StoredCheckpoint]:
        """List all checkpoints, newest commit last."""
        return [stored for each in list(self._checkpoints) if (stored := self.find(each)) is not None]

    def after(self, version: int) -> list[StoredCheckpoint]:
        """List the checkpoints after a version in order of commits, including previous ones."""
        stored = [each for each in (*self.all(), *self._before.values()) if each.version > version]
        return sorted(stored, key=lambda each: each.version)

    def count(self) -> int:
        return len(self.all())

    def forget(self, correlation_id: str) -> None:
        self._checkpoints.pop(correlation_id, None)
        self._before.pop(correlation_id, None)
        self._history.pop(correlation_id, None)
        for alias in self._aliases_of.pop(correlation_id, ()):
            if self.aliases.get(alias) == correlation_id:
                del self.aliases[alias], self._noted_at[alias]


class MemoryCheckpoints:
    """A connection's view of the checkpoints: a :class:`~plancast_bus.ports.checkpoints.CheckpointStore`."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._watching: set[asyncio.Queue[StoredCheckpoint | None]] = set()

    async def load(self, correlation_id: str, *, folded: bool = False) -> Checkpoint | None:
        stored = (await self._table()).find(correlation_id)
        checkpoint = stored.decode() if stored is not None else None
        return checkpoint if checkpoint is None or folded else await in_full(checkpoint, self._bus.values)

    async def kept(self, correlation_id: str) -> list[Checkpoint]:
        return [each.decode() for each in (await self._table()).kept(correlation_id)]

    async def commit(self, checkpoint: Checkpoint) -> int:
        subject = self._bus.subjects.checkpoint(checkpoint.correlation_id)
        body, header = checkpoint.encode(), checkpoint.summary.to_header()
        self._bus.world.check_size(body)
        plans = await self._table()
        await self._bus.point("commit.before", subject)
        self._bus.check_open()
        version = plans.compare_and_set(
            checkpoint.version, checkpoint.correlation_id, body, header, checkpoint.expires_after
        )
        if not version:
            return self._own_version(checkpoint, body, header)
        self._bus.world.notices.publish(subject, body, None)
        try:
            await self._bus.point("commit.after", subject)
        except BusUnavailable:
            await self._bus.point("commit.readback", subject)
            return self._own_version(checkpoint, body, header)
        return version

    def begin_commit(self, checkpoint: Checkpoint) -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_task(self.commit(checkpoint))

    async def history(self, correlation_id: str, *, folded: bool = False) -> list[bytes]:
        plans = await self._table()
        stored = plans.find(correlation_id)
        if stored is None:
            return []
        return await timeline_of(stored.decode(), plans.sealed(correlation_id), self._bus.values, folded=folded)

    async def committed_after(self, version: int) -> AsyncGenerator[Committed]:
        for stored in (await self._table()).after(version):
            yield stored.committed()

    async def follow(self, version: int = 0) -> AsyncGenerator[Committed]:
        async with aclosing(self._listen("", lambda plans: plans.after(version))) as commits:
            async for stored in commits:
                yield stored.committed()

    async def newest(self, wanted: PlanFilter | None = None, *, before: int = 0) -> AsyncGenerator[Committed]:
        wanted = wanted or PlanFilter()
        for stored in reversed((await self._table()).all()):
            summary = wanted.read(stored.header) if not before or stored.version < before else None
            if summary is not None:
                yield Committed(stored.version, stored.correlation_id, summary)

    async def watch(self, correlation_id: str) -> AsyncIterator[Checkpoint]:
        async with aclosing(
            self._listen(correlation_id, lambda plans: [found] if (found := plans.find(correlation_id)) else [])
        ) as commits:
            async for stored in commits:
                yield await in_full(stored.decode(), self._bus.values)

    async def _listen(
        self, plan: str, present: Callable[[PlanTable], list[StoredCheckpoint]]
    ) -> AsyncGenerator[StoredCheckpoint]:
        """Yield present checkpoints, then each further one of a plan, or of all plans for the empty id."""
        plans = await self._table()
        queue: asyncio.Queue[StoredCheckpoint | None] = asyncio.Queue()
        listeners = plans.listeners.setdefault(plan, set())
        listeners.add(queue)
        self._watching.add(queue)
        try:
            for stored in present(plans):
                yield stored
            while (more := await queue.get()) is not None:
                yield more
            self._bus.check_open()
        finally:
            self._watching.discard(queue)
            listeners.discard(queue)
            if not listeners and plans.listeners.get(plan) is listeners:
                del plans.listeners[plan]

    async def forget(self, correlation_id: str, aliases: Sequence[str] = ()) -> None:
        (await self._table()).forget(correlation_id)

    async def put_machine(self, digest: str, encoded: bytes) -> None:
        (await self._table()).put_machine(digest, encoded)

    async def get_machine(self, digest: str) -> bytes | None:
        _, encoded = (await self._table()).machines.get(digest, (None, None))
        return encoded

    async def machines(self, after: int = 0) -> AsyncGenerator[StoredMachine]:
        for stored, _ in list((await self._table()).machines.values()):
            if stored.version > after:
                yield stored

    async def drop_machine(self, machine: StoredMachine) -> None:
        machines = (await self._table()).machines
        if machine.digest in machines and machines[machine.digest][0] == machine:
            del machines[machine.digest]

    async def get_alias(self, correlation_id: str) -> str | None:
        return (await self._table()).aliases.get(correlation_id)

    def close(self) -> None:
        """End all watches of this connection."""
        for queue in self._watching:
            queue.put_nowait(None)

    def _own_version(self, checkpoint: Checkpoint, body: bytes, header: str) -> int:
        """Return the stored version if an earlier attempt stored this checkpoint.

        Raises:
            CommitConflict: another checkpoint is stored.
        """
        stored = self._bus.world.plans.find(checkpoint.correlation_id)
        if stored is not None and (stored.body, stored.header) == (body, header):
            return stored.version
        found = stored.version if stored is not None else 0
        raise CommitConflict(
            f"plan {checkpoint.correlation_id}: version {found} is stored, not {checkpoint.version}; "
            "another writer has committed or removed the plan"
        )

    async def _table(self) -> PlanTable:
        await self._bus.turn()
        return self._bus.world.plans
