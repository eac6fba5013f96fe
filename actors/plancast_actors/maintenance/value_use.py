"""ValueUse: which values stored plans refer to, and which of these are missing, damaged or unused."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from plancast_bus.errors import InvalidEnvelope, UnreadableValue
from plancast_bus.events.folding import Reference
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import PlanWithValues, StoredValue, frames_of, references_of


class Use(NamedTuple):
    """A value that is in use."""

    plan: str
    """Correlation id of a plan that refers to it."""
    reference: Reference


@dataclass
class ValueUse:
    """The values that stored plans refer to."""

    used: dict[tuple[str, bytes], Use] = field(default_factory=dict)
    """By tenant and digest."""
    gone: list[PlanWithValues] = field(default_factory=list)
    """Notes of plans that are not stored."""
    faults: dict[str, InvalidEnvelope] = field(default_factory=dict)
    """Why not all values of a plan are known, by correlation id."""
    unknown: set[str] = field(default_factory=set)
    """Tenants of such plans: any of their values may be in use."""
    unreadable: InvalidEnvelope | None = None
    """Why a plan cannot be read, of which even the tenant is unknown."""

    def is_used(self, value: StoredValue) -> bool:
        """Return whether a plan refers to a value, or may."""
        return (value.tenant, value.digest) in self.used or value.tenant in self.unknown


async def find_use(bus: Bus) -> ValueUse:
    """Read what all plans that have noted their use of values refer to.

    Raises:
        BusUnavailable: the scan was interrupted.
    """
    found = ValueUse()
    async with aclosing(bus.values.plans()) as plans:
        async for noted in plans:
            plan, tenant = noted.correlation_id, None
            try:
                kept = await bus.checkpoints.kept(plan)
                if not kept:
                    found.gone.append(noted)
                    continue
                tenant = kept[-1].summary.tenant_id
                references = await _references(bus, plan, tenant, kept)
            except InvalidEnvelope as error:
                found.faults[plan] = error
                if tenant is None:
                    found.unreadable = error
                else:
                    found.unknown.add(tenant)
                continue
            found.used.update(((tenant, digest), Use(plan, each)) for digest, each in references.items())
    return found


async def _references(bus: Bus, plan: str, tenant: str, kept: list[Checkpoint]) -> dict[bytes, Reference]:
    """The references of a plan's checkpoints and of its timeline."""
    if not any(each.is_folded for each in kept):
        return {}
    packed = await bus.checkpoints.history(plan, folded=True)
    for checkpoint in kept:
        packed += checkpoint.folded_parts
    return await references_of(bus.values, tenant, plan, packed)


class ValueReport(NamedTuple):
    """The state of the store of values."""

    faults: dict[str, str]
    """Why a plan cannot be read, by correlation id; names the value."""
    values: int
    unused: int
    """Values that no plan refers to; the collector removes them."""
    unused_bytes: int


async def examine_values(bus: Bus, check_bytes: int) -> ValueReport:
    """Find values that are missing, and damaged ones among those of ``check_bytes``, and count unused ones.

    Raises:
        BusUnavailable: the scan was interrupted.
    """
    use = await find_use(bus)
    faults = {plan: str(error) for plan, error in use.faults.items()}
    frames: Counter[tuple[str, bytes]] = Counter()
    unused: Counter[tuple[str, bytes]] = Counter()
    async with aclosing(bus.values.values()) as values:
        async for each in values:
            frames[each.tenant, each.digest] += 1
            if not use.is_used(each) and use.unreadable is None:
                unused[each.tenant, each.digest] += each.size
    for (tenant, digest), (plan, reference) in use.used.items():
        check_bytes -= reference.size
        if plan not in faults and (check_bytes >= 0 or frames[tenant, digest] < frames_of(reference)):
            try:
                await bus.values.get(tenant, [reference])
            except UnreadableValue as error:
                if await _refers(bus, tenant, plan, digest):  # else it was replaced, and collected meanwhile
                    faults[plan] = f"plan {plan}: {error}"
    return ValueReport(faults, len(frames), len(unused), unused.total())


async def _refers(bus: Bus, tenant: str, plan: str, digest: bytes) -> bool:
    kept = await bus.checkpoints.kept(plan)
    return bool(kept) and digest in await _references(bus, plan, tenant, kept)
