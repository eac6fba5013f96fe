"""Finds the values that stored plans and events refer to, and those that are missing, damaged or unused."""

from __future__ import annotations

import logging
from contextlib import aclosing, closing
from typing import NamedTuple

from plancast_actors.maintenance.use_table import UseTable
from plancast_bus.errors import InvalidEnvelope, InvalidSubject, UnreadableValue
from plancast_bus.event_data import MAX_BYTES
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.references import read_reference
from plancast_bus.events.value_parts import Reference, packed_reference
from plancast_bus.ports.bus import Bus, DeadLetter, Delivery
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Publish, Respond
from plancast_bus.ports.values import frames_of, references_of

logger = logging.getLogger(__name__)


async def find_use(bus: Bus, found: UseTable) -> None:
    """Read what refers to values: plans and events whose correlation ids are noted in the store, and dead letters.

    What refers to the data of an event moves from an outbox to a stream, from there to a dead letter, and back to the
    stream when it is replayed. So dead letters are read before and after the streams, and these after the checkpoints.

    Raises:
        BusUnavailable: the scan was interrupted.
    """
    async with aclosing(bus.values.plans()) as plans:
        async for each in plans:
            found.add_plan(each)
    if next(found.plans(), None) is None:
        return
    await _add_dead_letters(bus, found)
    for plan in found.plans():
        await _add_plan(bus, found, plan)
    for plan in found.plans():
        for event in await bus.events_with_references(plan):
            await _add_event(bus, found, event)
    await _add_dead_letters(bus, found)


async def _add_plan(bus: Bus, found: UseTable, plan: str) -> None:
    """Add what a plan and its outbox refer to, if it is stored."""
    tenant = None
    try:
        kept = await bus.checkpoints.kept(plan)
        if not kept:
            return
        found.note_stored(plan)
        tenant = kept[-1].summary.tenant_id
        references = await _references(bus, plan, tenant, kept)
    except InvalidEnvelope as error:
        found.note_stored(plan)
        found.note_fault(plan, str(error))
        if tenant is None:
            found.unreadable = error
        else:
            found.add_unknown(tenant)
        return
    found.add_used(plan, tenant, references.values())
    for effect in [each for checkpoint in kept for each in checkpoint.outbox]:
        if isinstance(effect, (Publish, Respond)):
            await _add_event(bus, found, effect, rests=False)


async def _add_dead_letters(bus: Bus, found: UseTable) -> None:
    async with aclosing(bus.dead_letters.with_references()) as letters:
        async for each in letters:
            await _add_event(bus, found, each)


async def _add_event(
    bus: Bus, found: UseTable, stored: Publish | Respond | Delivery | DeadLetter, *, rests: bool = True
) -> None:
    """Add what an event refers to. What is forged or lost is passed over.

    ``rests``: it is stored under its correlation id, or may be replayed under it.
    """
    if stored.content_type is None or stored.content_type not in REFERENCE_TYPES:
        return
    try:
        event = read_reference(stored.payload, stored.content_type)
        plan, tenant = str(event.fields.get("correlation_id")), str(event.fields.get("tenant_id") or "")
        packed = [packed_reference(event.reference)]
        references = await references_of(bus.values, tenant, plan, packed, max_bytes=MAX_BYTES, writer=event.writer)
    except (InvalidEnvelope, InvalidSubject) as error:
        logger.info("an event refers to a value that cannot be read: %s", error)
        return
    found.add_sent(tenant, references)
    if rests:
        found.note_events(plan)


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
    """Why a plan cannot be read, by correlation id; names the value. Of the first plans, if they are many."""
    faulty: int
    """The number of all such plans."""
    values: int
    unused: int
    """Values that no plan refers to; the collector removes them."""
    unused_bytes: int


async def examine_values(bus: Bus, check_bytes: int) -> ValueReport:
    """Find values that are missing, and damaged ones among those of ``check_bytes``, and count unused ones.

    Raises:
        BusUnavailable: the scan was interrupted.
    """
    with closing(UseTable()) as found:
        await find_use(bus, found)
        async with aclosing(bus.values.values()) as values:
            async for each in values:
                found.add_listed(each)
        for plan, tenant, reference, messages in found.used():
            check_bytes -= reference.size
            if (check_bytes < 0 and messages >= frames_of(reference)) or found.is_faulty(plan):
                continue
            try:
                await bus.values.get(tenant, [reference])
            except UnreadableValue as error:
                if await _refers(bus, tenant, plan, reference.digest):  # else it was replaced, and collected meanwhile
                    found.note_fault(plan, f"plan {plan}: {error}")
        return ValueReport(found.faults, found.faulty, found.values, *found.unused)


async def _refers(bus: Bus, tenant: str, plan: str, digest: bytes) -> bool:
    kept = await bus.checkpoints.kept(plan)
    return bool(kept) and digest in await _references(bus, plan, tenant, kept)
