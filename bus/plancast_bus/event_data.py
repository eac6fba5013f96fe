"""The data of events of any size: stored apart before an event is sent, read when it is received."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

from plancast_bus import fault_injection
from plancast_bus.errors import InvalidEnvelope, InvalidSubject, UnreadableValue
from plancast_bus.events.codec import REFERENCE_TYPES
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.events.references import Writer, fold_data, read_reference
from plancast_bus.events.value_parts import Reference, packed_reference
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.ports.bus import Bus, DeadLetter, Delivery
from plancast_bus.ports.values import HeldValues, ValueStore, unfold
from plancast_bus.settings import BusSettings

MAX_BYTES = 1 << 30
"""Largest data that is read; ``plans.max_plan_bytes`` at its default."""


async def stored_apart(
    values: ValueStore, event: EventEnvelope, content_type: str, settings: BusSettings
) -> tuple[bytes, str]:
    """Store the data of an event that is too large for a message; return payload and content type of the event.

    Raises as :meth:`ValueStore.put` and :func:`fold_data`.
    """
    outgoing = fold_data(event.to_wire(), content_type, settings.max_event_bytes, settings.data_limits, values.writer)
    if fault_injection.armed:
        await fault_injection.reach(CrashPoint.VALUES_PUT_BEFORE, event.correlation_id)
    await values.put(event.tenant_id or "", event.correlation_id, outgoing.contents)
    if fault_injection.armed:
        await fault_injection.reach(CrashPoint.VALUES_PUT_AFTER, event.correlation_id)
    return outgoing.payload, outgoing.content_type


async def in_full(
    bus: Bus,
    payload: bytes,
    content_type: str | None,
    *,
    tenant: str | None = None,
    read_at: float = 0.0,
    held: list[HeldValues] | None = None,
) -> tuple[bytes, str | None]:
    """Return payload and content type of an event with its data in full; of one without a reference as they are.

    Args:
        bus: The connection.
        payload: The event as it was received.
        content_type: Its content type.
        tenant: Tenant of the plan that the event is for, whatever the event says; None: the event begins a plan, or is
            not for a plan.
        read_at: Seconds since the epoch by the clock of the host, UTC.
        held: Receives the values that it refers to if the runtime has stored them.

    Raises:
        InvalidEnvelope: a value that it refers to is missing or damaged, or it is not an event.
        BusUnavailable: the values cannot be read now.
    """
    if content_type is None or content_type not in REFERENCE_TYPES:
        return payload, content_type
    event = read_reference(payload, content_type)
    owner = str(event.fields.get("tenant_id") or "") if tenant is None else tenant
    plan, packed = str(event.fields.get("correlation_id")), packed_reference(event.reference)
    stored_at: dict[bytes, float] = {}
    try:
        (data,), _ = await unfold(
            bus.values, owner, plan, (packed,), max_bytes=MAX_BYTES, writer=event.writer, stored_at=stored_at
        )
    except (InvalidSubject, UnreadableValue) as error:
        raise InvalidEnvelope(f"the data of the event cannot be read: {error}") from error
    if held is not None and event.writer == "runtime" and stored_at:
        ahead = await bus.values.now() - read_at  # and the time since it was read: they count as that much older
        held.append(HeldValues(owner, {digest: at - ahead for digest, at in stored_at.items()}))
    return event.with_data(data)


async def read_value(bus: Bus, tenant: str, plan: str, digest: bytes) -> Any:
    """Return the data that an event of a tenant's plan refers to, by the digest of the reference.

    Raises:
        UnreadableValue: the tenant has none with this digest, or a part of it is missing or damaged.
        BusUnavailable: the values cannot be read now.
    """
    packed = packed_reference(Reference(digest, 1, True))  # its first frame holds the whole root
    for writer in get_args(Writer):
        with suppress(UnreadableValue):
            (data,), _ = await unfold(bus.values, tenant, plan, (packed,), max_bytes=MAX_BYTES, writer=writer)
            return data
    raise UnreadableValue(f"plan {plan} has no event with the data {digest.hex()}, or its data is gone")


async def delivered_in_full(bus: Bus, delivery: Delivery, *, tenant: str | None = None) -> Delivery:
    """Return a delivery with the data of its event in full; arguments and errors as of :func:`in_full`."""
    if delivery.content_type not in REFERENCE_TYPES:
        return delivery
    payload, content_type = await in_full(bus, delivery.payload, delivery.content_type, tenant=tenant)
    return replace(delivery, payload=payload, content_type=content_type)


async def letter_in_full(bus: Bus, number: int) -> DeadLetter:
    """Return a dead letter, with the data of its event in full where it can be read.

    Raises:
        DeadLetterNotFound: there is none of this number.
    """
    letter = await bus.dead_letters.get(number)
    try:
        payload, content_type = await in_full(bus, letter.payload, letter.content_type)
    except InvalidEnvelope:  # perhaps the reason why it is one
        return letter
    return replace(letter, payload=payload, content_type=content_type)
