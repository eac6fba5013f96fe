"""The stored form of a plan: plain values or msgpack, without the state machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from plancast.plan.branches import Branches
from plancast.plan.effects.entries import EffectEntry
from plancast.plan.record import PlanRecord
from plancast.plan.requests import Request
from plancast.tasks.registry import TaskRegistry
from plancast_bus.events.codec import pack

_ALWAYS = frozenset(
    ("plan_id", "status", "current_state", "goal_event", "goal_data", "response_event", "results", "parent_plan_id",
     "session_id", "user_id", "tenant_id", "correlation_id", "pause_reason", "error")
)  # fmt: skip
"""Stored even when they hold their default."""
_USUAL = (
    "goal_id", "trace_id", "notify", "root", "depth", "planner", "planner_version", "created_at", "deadline",
)  # fmt: skip
"""Fields that most plans set."""
_OF_OTHER_FORM = frozenset(("state_machine", "requests", "effects", "tasks", "branches", "_context"))
"""Stored in another form, or not at all."""
_FIRST = "first_requests"
"""Name in the stored form: the first request for the same task, by the id of an open one."""
_STORED = [each for each in dataclasses.fields(PlanRecord) if each.name not in _OF_OTHER_FORM]
_DEFAULTS: list[tuple[str, Any]] = [
    (each.name, each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default)
    for each in _STORED
    if each.name not in _ALWAYS
]
_USUAL_DEFAULTS = [(name, default) for name, default in _DEFAULTS if name in _USUAL]
_OTHER_DEFAULTS = [(name, default) for name, default in _DEFAULTS if name not in _USUAL]


def to_state(plan: PlanRecord) -> dict[str, Any]:
    """The fields as plain values, without the state machine and without fields that hold their default."""
    state: dict[str, Any] = {
        "plan_id": plan.plan_id,
        "goal_event": plan.goal_event,
        "response_event": plan.response_event,
        "parent_plan_id": plan.parent_plan_id,
        "session_id": plan.session_id,
        "user_id": plan.user_id,
        "tenant_id": plan.tenant_id,
        "correlation_id": plan.correlation_id,
        "current_state": plan.current_state,
        "goal_data": plan.goal_data,
        "results": plan.results,
        "pause_reason": plan.pause_reason,
        "error": plan.error,
        "status": str(plan.status),
    }
    _add_changed(state, plan, _USUAL_DEFAULTS)
    if _is_unusual(plan):
        _add_changed(state, plan, _OTHER_DEFAULTS)
    if plan.requests:
        state["requests"] = _requests(plan)
        if repeated := {key: each.first for key, each in plan.requests.items() if each.first and each.branch is None}:
            state[_FIRST] = repeated
    if plan.branches is not None:
        state["branches"] = plan.branches.to_state()
    if plan.effects:
        state["effects"] = _effects(plan)
    if plan.tasks is not None:
        state["tasks"] = plan.tasks.to_state()
    return state


def stored_state(plan: PlanRecord, machine: str) -> dict[str, Any]:
    """The result of :func:`to_state` with the hash of the state machine (empty: there is none)."""
    state = to_state(plan)
    if machine:
        state["machine"] = machine
    return state


def pack_state(plan: PlanRecord, machine: str) -> bytes:
    """The result of :func:`stored_state` in msgpack."""
    return pack(stored_state(plan, machine))


def fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``PlanContext`` from stored values, or from the arguments of ``store_plan_context``."""
    nested = data.get("state")
    if "state_machine" not in data and isinstance(nested, Mapping):
        data = nested
    fields = {each.name: data[each.name] for each in _STORED if each.name in data}
    fields["requests"] = {key: Request.read(value) for key, value in (data.get("requests") or {}).items()}
    for key, first in (data.get(_FIRST) or {}).items():
        if key in fields["requests"]:
            fields["requests"][key].first = first
    if data.get("branches") is not None:
        fields["branches"] = Branches.read(data["branches"])
    if data.get("effects"):
        fields["effects"] = {key: EffectEntry.read(value) for key, value in data["effects"].items()}
    if data.get("tasks") is not None:
        fields["tasks"] = TaskRegistry.from_state(data["tasks"])
    fields["state_machine"] = data.get("state_machine") or {}
    return fields


def _requests(plan: PlanRecord) -> dict[str, Any]:
    """The open requests as plain values, always in the same object, as the effects are."""
    states, stored = {key: request.to_list() for key, request in plan.requests.items()}, plan._stored_requests
    stored.clear()
    stored.update(states)
    return stored


def _effects(plan: PlanRecord) -> dict[str, Any]:
    """The effects as plain values, always in the same object: only entries that have changed are folded again."""
    states, stored = {key: effect.to_state() for key, effect in plan.effects.items()}, plan._stored_effects
    if [*stored] != [*states][: len(stored)]:
        stored.clear()
    stored.update(states)
    return stored


def _is_unusual(plan: PlanRecord) -> bool:
    """True if any of the fields that few plans use is set."""
    return (
        plan.result is not None
        or plan.response_topic is not None
        or plan.reply_to is not None
        or bool(
            plan.decider or plan.kept or plan.aliases or plan.unmoved or plan.control or plan.awaiting
            or plan.spent or plan.trajectory or plan.earlier or plan.unwanted or plan.dependencies or plan.allowance
            or plan.lent or plan.limits or plan.call_rate or plan.attributes or plan.children or plan.rollback
            or plan.unanswered or plan.unlisted or plan.revisits
        )
    )  # fmt: skip


def _add_changed(state: dict[str, Any], plan: PlanRecord, fields: list[tuple[str, Any]]) -> None:
    """Add the fields that do not hold their default."""
    for name, default in fields:
        value = getattr(plan, name)
        if value is not default and value != default:
            state[name] = value
