"""Values in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from plancast_bus.clock import Clock
from plancast_bus.events.references import Writer
from plancast_bus.events.value_parts import Reference
from plancast_bus.ports.values import PlanWithValues, StoredValue, checked

if TYPE_CHECKING:
    from plancast_bus.memory.bus import MemoryBus


class ValueTable:
    """The values of a world."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self.contents: dict[tuple[str, bytes], bytes] = {}
        self._values: dict[tuple[str, bytes], StoredValue] = {}
        self._plans: dict[str, PlanWithValues] = {}

    def put(self, tenant: str, digest: bytes, content: bytes) -> None:
        self.contents[tenant, digest] = content
        self._last += 1
        self._values[tenant, digest] = StoredValue(tenant, digest, self._last, len(content), self._clock.time())

    def time_of(self, tenant: str, digest: bytes) -> float:
        return self._values[tenant, digest].stored_at

    def note(self, plan: str) -> None:
        self._last += 1
        self._plans[plan] = PlanWithValues(plan, self._last, self._clock.time())

    def values(self) -> list[StoredValue]:
        return sorted(self._values.values(), key=lambda each: each.version)

    def plans(self) -> list[PlanWithValues]:
        return sorted(self._plans.values(), key=lambda each: each.version)

    def drop(self, stored: StoredValue | PlanWithValues) -> None:
        if isinstance(stored, PlanWithValues):
            if self._plans.get(stored.correlation_id) == stored:
                del self._plans[stored.correlation_id]
        elif self._values.get(stored[:2]) == stored:
            del self._values[stored[:2]], self.contents[stored[:2]]


class MemoryValues:
    """A connection's view of the values: a :class:`~plancast_bus.ports.values.ValueStore`."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.writer: Writer = "runtime"

    async def put(self, tenant: str, plan: str | None, contents: Mapping[bytes, bytes]) -> None:
        table, subjects = await self._table(), self._bus.subjects
        if plan is not None:
            subject = subjects.plan_with_values(plan)
            await self._before(subject)
            table.note(plan)
            await self._bus.point("publish.after", subject)
        for digest, content in contents.items():
            subject = subjects.value(tenant, digest.hex(), 0)
            await self._before(subject)
            table.put(tenant, digest, content)
            await self._bus.point("publish.after", subject)

    async def get(
        self,
        tenant: str,
        references: Iterable[Reference],
        writer: Writer = "runtime",
        stored_at: dict[bytes, float] | None = None,
    ) -> dict[bytes, bytes]:
        table = await self._table()
        contents = {}
        for each in references:
            key = tenant, each.digest
            contents[each.digest] = checked(each, table.contents.get(key))
            if stored_at is not None:
                stored_at[each.digest] = table.time_of(*key)
        return contents

    async def now(self) -> float:
        await self._bus.turn()
        return self._bus.world.clock.time()

    async def values(self) -> AsyncGenerator[StoredValue]:
        for each in (await self._table()).values():
            yield each

    async def plans(self) -> AsyncGenerator[PlanWithValues]:
        for each in (await self._table()).plans():
            yield each

    async def drop(self, stored: Sequence[StoredValue | PlanWithValues]) -> None:
        table = await self._table()
        for each in stored:
            table.drop(each)

    async def _before(self, subject: str) -> None:
        await self._bus.point("publish.before", subject)
        self._bus.check_open()

    async def _table(self) -> ValueTable:
        await self._bus.turn()
        return self._bus.world.values
