"""ValueUse: which values stored plans and events refer to, and which values are missing, damaged or unused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from plancast_bus.errors import InvalidEnvelope, InvalidSubject, UnreadableValue
from plancast_bus.event_data import MAX_BYTES
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.folding import Reference, packed_reference
from plancast_bus.events.references import read_reference
from plancast_bus.ports.bus import Bus, DeadLetter, Delivery
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Publish, Respond
from plancast_bus.ports.values import PlanWithValues, StoredValue, frames_of, references_of

logger = logging.getLogger(__name__)


class Use(NamedTuple):
    """A value that is in use."""

    plan: str
    """Correlation id of a plan that refers to it."""
    reference: Reference


@dataclass
class ValueUse:
    """The values that stored plans and events refer to."""

    used: dict[tuple[str, bytes], Use] = field(default_factory=dict)
    """Those of plans, by tenant and digest."""
    sent: set[tuple[str, bytes]] = field(default_factory=set)
    """Those of events and dead letters, by tenant and digest."""
    gone: list[PlanWithValues] = field(default_factory=list)
    """Notes of correlation ids that have no stored plan, no such event and no such dead letter."""
    faults: dict[str, InvalidEnvelope] = field(default_factory=dict)
    """Why not all values of a plan are known, by correlation id."""
    unknown: set[str] = field(default_factory=set)
    """Tenants of such plans: any of their values may be in use."""
    unreadable: InvalidEnvelope | None = None
    """Why a plan cannot be read, of which even the tenant is unknown."""

    def is_used(self, value: StoredValue) -> bool:
        """Return whether a plan or an event refers to a value, or may."""
        key = value.tenant, value.digest
        return key in self.used or key in self.sent or value.tenant in self.unknown


async def find_use(bus: Bus) -> ValueUse:
    """Read what refers to values: plans and events whose correlation ids are noted in the store, and dead letters.

    What refers to the data of an event moves from an outbox to a stream, from there to a dead letter, and back to the
    stream when it is replayed. So dead letters are read before and after the streams, and these after the checkpoints.

    Raises:
        BusUnavailable: the scan was interrupted.
    """
    found = ValueUse()
    async with aclosing(bus.values.plans()) as plans:
        noted = [each async for each in plans]
    if not noted:
        return found
    resting = await _add_dead_letters(bus, found)
    unused = [each for each in noted if not await _add_plan(bus, found, each.correlation_id)]
    for each in noted:
        resting |= await _add_events(bus, found, await bus.events_with_references(each.correlation_id))
    resting |= await _add_dead_letters(bus, found)
    found.gone = [each for each in unused if each.correlation_id not in resting]
    return found


async def _add_plan(bus: Bus, found: ValueUse, plan: str) -> bool:
    """Add what a plan and its outbox refer to; returns False if no plan is stored."""
    tenant = None
    try:
        kept = await bus.checkpoints.kept(plan)
        if not kept:
            return False
        tenant = kept[-1].summary.tenant_id
        references = await _references(bus, plan, tenant, kept)
    except InvalidEnvelope as error:
        found.faults[plan] = error
        if tenant is None:
            found.unreadable = error
        else:
            found.unknown.add(tenant)
        return True
    found.used.update(((tenant, digest), Use(plan, each)) for digest, each in references.items())
    sent = [effect for checkpoint in kept for effect in checkpoint.outbox if isinstance(effect, (Publish, Respond))]
    await _add_events(bus, found, sent)
    return True


async def _add_dead_letters(bus: Bus, found: ValueUse) -> set[str]:
    """Add what dead letters refer to; returns their correlation ids, under which they may be replayed."""
    async with aclosing(bus.dead_letters.with_references()) as letters:
        return await _add_events(bus, found, [each async for each in letters])


async def _add_events(
    bus: Bus, found: ValueUse, events: Iterable[Publish | Respond | Delivery | DeadLetter]
) -> set[str]:
    """Add what events refer to; returns their correlation ids. What is forged or lost is passed over."""
    resting = set()
    for each in events:
        if each.content_type is None or each.content_type not in REFERENCE_TYPES:
            continue
        try:
            event = read_reference(each.payload, each.content_type)
            plan, tenant = str(event.fields.get("correlation_id")), str(event.fields.get("tenant_id") or "")
            packed = [packed_reference(event.reference)]
            references = await references_of(bus.values, tenant, plan, packed, max_bytes=MAX_BYTES, writer=event.writer)
        except (InvalidEnvelope, InvalidSubject) as error:
            logger.info("an event refers to a value that cannot be read: %s", error)
            continue
        found.sent.update((tenant, digest) for digest in references)
        resting.add(plan)
    return resting


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
