"""The stored form of a plan: which of its fields are kept, as what, and how they are read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from plancast.plan.requests import Request
from plancast.state_machine.machine import Machine
from plancast.state_machine.states import StateConfig
from plancast.tasks.registry import TaskRegistry
from plancast_bus.events.packed_maps import as_map, pack_fields

if TYPE_CHECKING:
    from plancast.plan.context import PlanContext

_ALWAYS = frozenset(
    ("plan_id", "status", "current_state", "goal_event", "goal_data", "response_event", "results", "parent_plan_id",
     "session_id", "user_id", "tenant_id", "correlation_id", "pause_reason", "error")
)  # fmt: skip
"""Stored even when they hold their default."""
_ORIGIN = (
    "plan_id", "goal_event", "response_event", "parent_plan_id", "session_id", "user_id", "tenant_id",
    "correlation_id", "goal_id", "trace_id", "notify", "root", "depth", "planner", "planner_version",
    "created_at",
)  # fmt: skip
"""Where a plan comes from: fields that hardly ever change once it has begun, and are not packed anew at each turn."""
_UNCHANGING = (str, float, int, type(None))
_OF_OTHER_FORM = frozenset(("state_machine", "requests", "tasks", "_context"))
"""Not stored as they are."""


class Origin(NamedTuple):
    """The fields of where a plan comes from, packed."""

    values: tuple[Any, ...]
    size: int
    packed: bytes


class StoredFields:
    """The fields of a plan's class, as a table that is made once."""

    def __init__(self, plan_class: type[PlanContext]) -> None:
        kept = [each for each in dataclasses.fields(plan_class) if each.name not in _OF_OTHER_FORM]
        self._names = tuple(each.name for each in kept)
        self._defaults: list[tuple[str, Any]] = [
            (each.name, each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default)
            for each in kept
            if each.name not in _ALWAYS
        ]
        self._origin = [(name, default) for name, default in self._defaults if name in _ORIGIN]
        self._rare = [(name, default) for name, default in self._defaults if name not in _ORIGIN]

    def write(self, plan: PlanContext) -> dict[str, Any]:
        """See :meth:`plancast.plan.context.PlanContext.to_state`."""
        return self._write_origin(plan) | self._write_rest(plan)

    def pack(self, plan: PlanContext, machine: str) -> bytes:
        """See :meth:`plancast.plan.context.PlanContext.packed_state`."""
        origin, values = plan._origin, _origin_of(plan)
        if origin is None or origin.values != values:
            fields = self._write_origin(plan)
            origin = Origin(values, len(fields), pack_fields(fields))
            # What can be changed in place is packed anew each time, should a handler have put it there.
            plan._origin = origin if all(type(value) in _UNCHANGING for value in values) else None
        rest = self._write_rest(plan)
        if machine:
            rest["machine"] = machine
        return as_map(origin.size + len(rest), origin.packed, pack_fields(rest))

    def _write_origin(self, plan: PlanContext) -> dict[str, Any]:
        state: dict[str, Any] = {
            "plan_id": plan.plan_id,
            "goal_event": plan.goal_event,
            "response_event": plan.response_event,
            "parent_plan_id": plan.parent_plan_id,
            "session_id": plan.session_id,
            "user_id": plan.user_id,
            "tenant_id": plan.tenant_id,
            "correlation_id": plan.correlation_id,
        }
        _add_unusual(state, plan, self._origin)
        return state

    def _write_rest(self, plan: PlanContext) -> dict[str, Any]:
        state: dict[str, Any] = {
            "current_state": plan.current_state,
            "goal_data": plan.goal_data,
            "results": plan.results,
            "pause_reason": plan.pause_reason,
            "error": plan.error,
            "status": str(plan.status),
        }
        if _is_unusual(plan):
            _add_unusual(state, plan, self._rare)
        if plan.requests:
            state["requests"] = {key: request.to_list() for key, request in plan.requests.items()}
        if plan.tasks is not None:
            state["tasks"] = plan.tasks.to_state()
        return state

    def read(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the class; see :meth:`plancast.plan.context.PlanContext.from_dict`."""
        nested = data.get("state")
        if "state_machine" not in data and isinstance(nested, Mapping):
            data = nested
        fields = {name: data[name] for name in self._names if name in data}
        fields["requests"] = {key: _request(value) for key, value in (data.get("requests") or {}).items()}
        if data.get("tasks") is not None:
            fields["tasks"] = TaskRegistry.from_state(data["tasks"])
        fields["state_machine"] = data.get("state_machine") or {}
        return fields


def _origin_of(plan: PlanContext) -> tuple[Any, ...]:
    """The values of :data:`_ORIGIN`."""
    return (  # read one by one: to take them from `__dict__` by a list of names costs twice as much
        plan.plan_id, plan.goal_event, plan.response_event, plan.parent_plan_id, plan.session_id, plan.user_id,
        plan.tenant_id, plan.correlation_id, plan.goal_id, plan.trace_id, plan.notify, plan.root,
        plan.depth, plan.planner, plan.planner_version, plan.created_at,
    )  # fmt: skip


def _is_unusual(plan: PlanContext) -> bool:
    """Whether any of the fields that few plans have may say something; the same for them, one by one."""
    return (
        plan.result is not None
        or plan.response_topic is not None
        or plan.reply_to is not None
        or bool(
            plan.decider or plan.kept or plan.aliases or plan.unmoved or plan.control or plan.awaiting
            or plan.spent or plan.trajectory or plan.earlier
        )
    )  # fmt: skip


def _add_unusual(state: dict[str, Any], plan: PlanContext, fields: list[tuple[str, Any]]) -> None:
    """Add the fields that do not hold their default."""
    for name, default in fields:
        value = getattr(plan, name)
        if value is not default and value != default:
            state[name] = value


def read_machine(given: Any) -> tuple[dict[str, StateConfig], Machine | None]:
    """The states, and their compiled form when that is what was given."""
    if isinstance(given, Machine):
        return dict(given.states), given
    states = {
        name: state if isinstance(state, StateConfig) else StateConfig.model_validate(state)
        for name, state in given.items()
    }
    return states, None


def _request(value: Any) -> Request:
    return Request(*value) if isinstance(value, (list, tuple)) else Request(**value)
