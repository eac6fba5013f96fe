"""Converts events between Soorma's format and plancast's. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plancast.plan.event_fields import error_text
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events.codec import decode, load
from plancast_bus.events.envelope import EventEnvelope, EventTopic, check_name
from plancast_bus.subjects import check_event_type, decode_token, encode_token

FROM_SOORMA: Final = "soorma:"
"""Prefix of the ids of events from the bridge; a plan's goal id shows that its response belongs to Soorma."""
TASK: Final = "plancast-task:"
"""Prefix of the correlation ids of tasks for Soorma's workers."""
MARK: Final = "Plancast-Bridge"
"""Header of events from a bridge, with the prefix of its deployment."""
_TOPICS = frozenset(str(topic) for topic in EventTopic)
_LONGEST_ID = 100
"""Maximum number of characters that always fit into a subject token when encoded."""
_TENANTS = ("platform_tenant_id", "platformTenantId")


def read_event(payload: bytes, topic: str) -> EventEnvelope:
    """Decode a Soorma event; its id is marked, its tenants are joined (see :func:`join_tenant`).

    Metadata is dropped: plancast stores its own data there.

    Raises:
        InvalidEnvelope, InvalidSubject: it is not a valid event for plancast.
    """
    if topic not in _TOPICS:
        raise InvalidEnvelope(f"unknown topic {topic[:80]!r}")
    fields = load(payload, None)
    if not isinstance(fields, dict):
        raise InvalidEnvelope(f"expected an event object, got {type(fields).__name__}")
    event_id = fields.get("id") or hashlib.sha256(payload).hexdigest()[:32]
    defaults = {"topic": topic, "id": event_id, "source": "soorma", "correlation_id": event_id}
    event = decode(payload, None, defaults=defaults)
    if event.topic != topic:
        raise InvalidEnvelope(f"its topic is {str(event.topic)!r}, but it was published on {topic!r}")
    check_event_type(event.type)
    encode_token(event.correlation_id)
    platform = next((fields[name] for name in _TENANTS if isinstance(fields.get(name), str)), None)
    try:
        tenant = check_name(join_tenant(platform, event.tenant_id) or "") or None
    except ValueError as error:
        raise InvalidEnvelope(f"platform_tenant_id: {error}") from error
    changes: dict[str, Any] = {"id": mark_id(event.id), "tenant_id": tenant}
    return event.model_copy(update=changes | {"metadata": {}})


def write_event(event: EventEnvelope, prefix: str, **changes: Any) -> bytes:
    """Encode an event for Soorma: JSON with Soorma's own ids and tenants, and a marked source."""
    wire = event.to_wire() | changes
    wire.pop("metadata", None)
    wire["source"] = f"{marked_source(prefix)}{event.source}"
    for name in ("goal_id", "parent_event_id", "trace_id"):
        if name in wire:
            wire[name] = unmark_id(wire[name])
    platform, tenant = split_tenant(wire.pop("tenant_id", None))
    wire |= {"platform_tenant_id": platform, "tenant_id": tenant}
    return json.dumps({name: value for name, value in wire.items() if value is not None}, ensure_ascii=False).encode()


def is_own(event: EventEnvelope, headers: Mapping[str, str], prefix: str) -> bool:
    """True for an event from a bridge of this deployment, which must not loop."""
    return headers.get(MARK) == prefix or event.source.startswith(marked_source(prefix))


def marked_source(prefix: str) -> str:
    """Source prefix of events from a deployment's bridge."""
    return f"plancast:{prefix}:"


def mark_id(event_id: str) -> str:
    """Convert a Soorma id deterministically into one that fits into a header."""
    try:
        return FROM_SOORMA + encode_token(event_id)
    except InvalidSubject:  # longer than a header should be
        return f"{FROM_SOORMA}sha256:{hashlib.sha256(event_id.encode('utf-8', 'replace')).hexdigest()}"


def task_correlation(request_id: str) -> str:
    """Correlation id of a task on Soorma's bus."""
    if len(request_id) <= _LONGEST_ID:
        return TASK + request_id
    return f"{TASK}sha256:{hashlib.sha256(request_id.encode('utf-8', 'replace')).hexdigest()}"


def unmark_id(event_id: str) -> str:
    """Restore a Soorma id; plancast's own ids are unchanged."""
    if not event_id.startswith(FROM_SOORMA):
        return event_id
    return decode_token(event_id.removeprefix(FROM_SOORMA))


def join_tenant(platform: str | None, tenant: str | None) -> str | None:
    """Join Soorma's two tenants into one: ``acme``, or ``platform/acme`` with a platform tenant.

    The result is unique; a slash in a name becomes ``%2F``.
    """
    own = _without_slash(tenant or "")
    return f"{_without_slash(platform)}/{own}" if platform else own or None


def split_tenant(tenant: str | None) -> tuple[str | None, str | None]:
    """Split the result of :func:`join_tenant` into platform tenant and tenant."""
    platform, slash, own = (tenant or "").rpartition("/")
    return (_with_slash(platform) if slash else None), (_with_slash(own) or None)


def may_answer(requester: str | None, responder: str | None) -> bool:
    """True if the responder's tenants match the requester's; omitted ones match anything."""
    pairs = zip(split_tenant(requester), split_tenant(responder), strict=True)
    return all(given in (None, wanted) for wanted, given in pairs)


def _without_slash(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _with_slash(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome in a response of a Soorma worker."""

    result: Any
    error: str | None = None
    """Error of a failed task, else None."""


def outcome_of(data: Any) -> Outcome:
    """Read the outcome of a response: of a task, of a tool, or the bare result."""
    if not isinstance(data, Mapping):
        return Outcome(data)
    failed = data.get("success") is False or data.get("status") in ("failed", "error", "cancelled")
    wrapped = "result" in data and (data.keys() >= {"task_id", "status"} or data.keys() >= {"request_id", "success"})
    if failed and (wrapped or "error" in data):
        return Outcome(data.get("result"), error_text(data.get("error") or "the worker reports a failure"))
    return Outcome(data["result"] if wrapped else dict(data))


def lifecycle_of(response: EventEnvelope) -> tuple[str, dict[str, Any]]:
    """Type and data of the lifecycle event for Soorma's tracker at a plan's end."""
    fields = response.data if isinstance(response.data, Mapping) else {}
    plan_id = fields.get("plan_id") or response.plan_id
    if fields.get("status") == "completed":
        return "plan.completed", {"plan_id": plan_id, "result": fields.get("result")}
    return "plan.failed", {"plan_id": plan_id, "error": fields.get("error") or fields.get("status") or "failed"}
