"""Tasks and groups of tasks that a plan has started, with the legal moves between their states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Literal

from plancast.tasks.spec import JoinKind, SpawnSpec

__all__ = [
    "LEGAL_MOVES",
    "GroupCompletion",
    "GroupState",
    "MemberOutcome",
    "StepState",
    "Task",
    "TaskGroup",
    "TaskState",
    "group_of_step",
]

_MAX_NAME: Final = 180
"""Longest name of a group, with room for a suffix: names in decisions have at most 200 characters."""


class TaskState(StrEnum):
    """State of a task."""

    PENDING = "pending"
    """Registered, not sent yet."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """True if the state is final."""
        return not LEGAL_MOVES[self]


LEGAL_MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.PENDING: frozenset((TaskState.RUNNING, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.RUNNING: frozenset((TaskState.PAUSED, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.PAUSED: frozenset((TaskState.RUNNING, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.COMPLETE: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Legal next states, by state."""


class GroupState(StrEnum):
    """State of a group."""

    OPEN = "open"
    """Takes more members."""
    SEALED = "sealed"
    """Takes no more members, and is awaited."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def resolved(self) -> bool:
        """True if the group is completed or cancelled."""
        return self in (GroupState.COMPLETED, GroupState.CANCELLED)


@dataclass(slots=True)
class Task:
    """A request to an agent, or a child plan, with one answer."""

    task_id: str
    spec: SpawnSpec | None = None
    """The request or goal; None for requests that were sent by other means."""
    kind: str = "background"
    group_id: str = ""
    """Id of its group; empty for none."""
    state: TaskState = TaskState.PENDING
    result: Any = None
    """Data of its answer."""
    error: str = ""
    """Why it failed or was cancelled."""
    idempotency_key: str = ""

    def outcome(self) -> MemberOutcome:
        """Its current outcome."""
        return MemberOutcome(self.task_id, self.state, self.result, self.error or None)


@dataclass(slots=True)
class TaskGroup:
    """Tasks that are awaited together."""

    group_id: str
    join: JoinKind = "all"
    needed: int = 0
    """Successes that resolve the group; 0 for ``all``, which waits for every member."""
    fail_fast: bool = False
    """True if the first failure cancels the rest."""
    state: GroupState = GroupState.OPEN
    reason: str = ""
    """Why it was resolved."""
    members: list[str] = field(default_factory=list)
    """Task ids, in the order in which they were started."""


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """Outcome of a member of a group."""

    task_id: str
    status: TaskState
    result: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"task_id": self.task_id, "status": str(self.status), "result": self.result, "error": self.error}


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """The resolution of a group; never changes."""

    group_id: str
    status: Literal["completed", "cancelled"]
    reason: str
    """Text for people: ``3 of 3 members succeeded``, ``task-2 failed: ...``."""
    members: tuple[MemberOutcome, ...] = ()

    @property
    def succeeded(self) -> bool:
        """True if it was completed with no member failed or cancelled."""
        return self.status == "completed" and all(each.status is TaskState.COMPLETE for each in self.members)


@dataclass(slots=True)
class StepState:
    """State of a decision-tree step in one run."""

    group_id: str = ""
    task_id: str = ""
    resolved: bool = False
    """The step is finished."""
    busy: bool = field(default=False, compare=False)
    """A call is working on the step right now; not stored, since calls do not survive a restart."""


def group_of_step(run_id: str, step_id: str) -> str:
    """Default name of a step's group in a run."""
    name = f"{run_id}/{step_id}"
    return name if len(name) <= _MAX_NAME else sha256(name.encode(errors="surrogatepass")).hexdigest()
