"""Whose goals are whose, for tenants to take turns without a look into payloads."""

from __future__ import annotations

from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.subjects import encode_token


def tenant_of(event: EventEnvelope) -> str:
    """The tenant of a goal or task as a token of a subject; empty when it has none, and for other events."""
    return tenant_token(event.tenant_id) if event.topic == EventTopic.ACTION_REQUESTS else ""


def tenant_token(tenant_id: str | None) -> str:
    """A tenant as a token of a subject; empty for none, and for a name that is too long to be one."""
    try:
        return encode_token(tenant_id) if tenant_id else ""
    except InvalidSubject:
        return ""
