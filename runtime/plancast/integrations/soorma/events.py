"""Events of Soorma as ours, and ours as Soorma's. Pure."""

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
"""The ids of goals and events that came over the bridge begin so; a plan's goal id tells where its answer goes."""
TASK: Final = "plancast-task:"
"""The correlation ids of tasks that Soorma's workers are asked to do begin so."""
MARK: Final = "Plancast-Bridge"
"""Header of what a bridge sends: the prefix of its deployment."""
_TOPICS = frozenset(str(topic) for topic in EventTopic)
_LONGEST_ID = 100
"""Characters; encoded they fit into a token of a subject, whatever they are."""
_TENANTS = ("platform_tenant_id", "platformTenantId")


def read_event(payload: bytes, topic: str) -> EventEnvelope:
    """A Soorma event as ours: the same but for its id, which is marked, and its tenant (see :func:`join_tenant`).

    What plancast itself says in an event's metadata cannot be said from there.

    Args:
        payload: JSON, in snake_case or camelCase.
        topic: As the subject says it.

    Raises:
        InvalidEnvelope, InvalidSubject: it cannot be an event of ours; says why.
    """
    if topic not in _TOPICS:
        raise InvalidEnvelope(f"there is no topic {topic[:80]!r}")
    fields = load(payload, None)
    if not isinstance(fields, dict):
        raise InvalidEnvelope(f"an event is an object, not {type(fields).__name__}")
    said_id = fields.get("id") or hashlib.sha256(payload).hexdigest()[:32]
    defaults = {"topic": topic, "id": said_id, "source": "soorma", "correlation_id": said_id}
    event = decode(payload, None, defaults=defaults)
    if event.topic != topic:
        raise InvalidEnvelope(f"its topic is {str(event.topic)!r}, and it came on {topic!r}")
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
    """An event of ours as Soorma's: JSON, ids and tenants as they were there, and marked as coming from here."""
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
    """Whether a bridge of this deployment has sent it: it would go round for ever."""
    return headers.get(MARK) == prefix or event.source.startswith(marked_source(prefix))


def marked_source(prefix: str) -> str:
    """How the source begins of what a deployment's bridge sends."""
    return f"plancast:{prefix}:"


def mark_id(event_id: str) -> str:
    """An id from there as ours: the same for the same, and fit for a header."""
    try:
        return FROM_SOORMA + encode_token(event_id)
    except InvalidSubject:  # longer than a header should be
        return f"{FROM_SOORMA}sha256:{hashlib.sha256(event_id.encode('utf-8', 'replace')).hexdigest()}"


def task_correlation(request_id: str) -> str:
    """The correlation id under which a task is asked for there."""
    if len(request_id) <= _LONGEST_ID:
        return TASK + request_id
    return f"{TASK}sha256:{hashlib.sha256(request_id.encode('utf-8', 'replace')).hexdigest()}"


def unmark_id(event_id: str) -> str:
    """The id as it was there; one that is ours as it is."""
    if not event_id.startswith(FROM_SOORMA):
        return event_id
    return decode_token(event_id.removeprefix(FROM_SOORMA))


def join_tenant(platform: str | None, tenant: str | None) -> str | None:
    """Both tenants that Soorma knows as our one: ``acme``, or ``platform/acme`` where there is a platform tenant.

    No two pairs give the same; a slash in a name is written ``%2F``.
    """
    own = _without_slash(tenant or "")
    return f"{_without_slash(platform)}/{own}" if platform else own or None


def split_tenant(tenant: str | None) -> tuple[str | None, str | None]:
    """The platform tenant and the tenant that :func:`join_tenant` has joined."""
    platform, slash, own = (tenant or "").rpartition("/")
    return (_with_slash(platform) if slash else None), (_with_slash(own) or None)


def may_answer(asked: str | None, said: str | None) -> bool:
    """Whether what answers may be the tenant that has asked: what it leaves out is not held against it."""
    pairs = zip(split_tenant(asked), split_tenant(said), strict=True)
    return all(saying in (None, asking) for asking, saying in pairs)


def _without_slash(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _with_slash(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer of a Soorma worker says."""

    result: Any
    error: str | None = None
    """Why the task has failed; None when it has not."""


def outcome_of(data: Any) -> Outcome:
    """The outcome in an answer, whichever shape it has: a task's, a tool's, or the bare result."""
    if not isinstance(data, Mapping):
        return Outcome(data)
    failed = data.get("success") is False or data.get("status") in ("failed", "error", "cancelled")
    wrapped = "result" in data and (data.keys() >= {"task_id", "status"} or data.keys() >= {"request_id", "success"})
    if failed and (wrapped or "error" in data):
        return Outcome(data.get("result"), error_text(data.get("error") or "the worker says that it has failed"))
    return Outcome(data["result"] if wrapped else dict(data))


def lifecycle_of(response: EventEnvelope) -> tuple[str, dict[str, Any]]:
    """Type and data of the system event that tells Soorma's tracker of a plan's end."""
    said = response.data if isinstance(response.data, Mapping) else {}
    plan_id = said.get("plan_id") or response.plan_id
    if said.get("status") == "completed":
        return "plan.completed", {"plan_id": plan_id, "result": said.get("result")}
    return "plan.failed", {"plan_id": plan_id, "error": said.get("error") or said.get("status") or "failed"}
