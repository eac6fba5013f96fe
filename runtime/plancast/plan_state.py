"""The stored form of a plan: which of its fields are kept, as what, and how they are read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from plancast.machine import Machine
from plancast.requests import Request
from plancast.states import StateConfig
from plancast.task_registry import TaskRegistry

if TYPE_CHECKING:
    from plancast.plan import PlanContext

_ALWAYS = frozenset(
    ("plan_id", "status", "current_state", "goal_event", "goal_data", "response_event", "results", "parent_plan_id",
     "session_id", "user_id", "tenant_id", "correlation_id", "pause_reason", "error")
)  # fmt: skip
"""Stored even when they hold their default."""
_USUAL = frozenset(("goal_id", "trace_id", "notify", "planner", "planner_version", "created_at"))
"""Of the others, those that most plans have; the rest is looked at as a whole first."""
_OF_OTHER_FORM = frozenset(("state_machine", "requests", "tasks", "_context"))
"""Not stored as they are."""


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
        rare = [(name, default) for name, default in self._defaults if name not in _USUAL]
        self._usual = [(name, default) for name, default in self._defaults if name in _USUAL]
        self._rare_of = itemgetter(*(name for name, _ in rare))
        self._rare_defaults = tuple(default for _, default in rare)

    def write(self, plan: PlanContext) -> dict[str, Any]:
        """See :meth:`plancast.plan.PlanContext.to_state`."""
        fields = plan.__dict__
        state: dict[str, Any] = {
            "plan_id": plan.plan_id,
            "current_state": plan.current_state,
            "goal_event": plan.goal_event,
            "goal_data": plan.goal_data,
            "response_event": plan.response_event,
            "results": plan.results,
            "parent_plan_id": plan.parent_plan_id,
            "session_id": plan.session_id,
            "user_id": plan.user_id,
            "tenant_id": plan.tenant_id,
            "correlation_id": plan.correlation_id,
            "pause_reason": plan.pause_reason,
            "error": plan.error,
        }
        for name, default in self._usual if self._rare_of(fields) == self._rare_defaults else self._defaults:
            value = fields[name]
            if value is not default and value != default:
                state[name] = value
        state["status"] = str(plan.status)
        if plan.requests:
            state["requests"] = {key: request.to_list() for key, request in plan.requests.items()}
        if plan.tasks is not None:
            state["tasks"] = plan.tasks.to_state()
        return state

    def read(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the class; see :meth:`plancast.plan.PlanContext.from_dict`."""
        nested = data.get("state")
        if "state_machine" not in data and isinstance(nested, Mapping):
            data = nested
        fields = {name: data[name] for name in self._names if name in data}
        fields["requests"] = {key: _request(value) for key, value in (data.get("requests") or {}).items()}
        if data.get("tasks") is not None:
            fields["tasks"] = TaskRegistry.from_state(data["tasks"])
        fields["state_machine"] = data.get("state_machine") or {}
        return fields


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
