"""AtomicMove: a move of a plan is made as a whole or not at all, also when a handler catches its error."""

from __future__ import annotations

from copy import copy
from types import TracebackType
from typing import Any

from plancast.plan.record import PlanRecord
from plancast.tasks.registry import TaskRegistry

_VALUES = ("status", "current_state", "_entered", "pause_reason", "unmoved", "error", "result", "awaiting", "rollback")
_CONTAINERS = ("results", "kept", "control", "aliases", "moves", "revisits")


class AtomicMove:
    """``with AtomicMove(plan, turn):`` restores the plan, and what its turn has staged, when the block raises.

    Containers are restored in place, since handlers may hold references to them. Their values are not copied.
    """

    __slots__ = ("_branches", "_containers", "_mark", "_plan", "_requests", "_tasks", "_turn", "_values")

    def __init__(self, plan: PlanRecord, turn: Any) -> None:
        self._plan = plan
        self._turn = turn

    def __enter__(self) -> None:
        plan = self._plan
        self._values = [getattr(plan, name) for name in _VALUES]
        self._containers = [copy(getattr(plan, name)) for name in _CONTAINERS]
        self._requests = {key: copy(request) for key, request in plan.requests.items()}
        self._branches = plan.branches.copy() if plan.branches is not None else None
        self._tasks = plan.tasks.to_state() if plan.tasks is not None else None
        self._mark = self._turn.mark() if self._turn is not None else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            return
        plan = self._plan
        for name, value in zip(_VALUES, self._values, strict=True):
            setattr(plan, name, value)
        for name, content in zip(_CONTAINERS, self._containers, strict=True):
            container = getattr(plan, name)
            container.clear()
            container.update(content) if isinstance(container, dict) else container.extend(content)
        plan.requests.clear()
        plan.requests.update(self._requests)
        plan.branches = self._branches
        plan.tasks = TaskRegistry.from_state(self._tasks) if self._tasks is not None else None
        if self._turn is not None:
            self._turn.rewind(self._mark)
