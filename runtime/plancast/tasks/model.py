"""Tasks and groups of tasks: what a plan has started and may wait for, and the moves that each can make."""

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
"""Of a group, with room for a number behind it: groups and tasks in decisions have names of at most 200 characters."""


class TaskState(StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    """Registered, not yet sent to whoever does it."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Whether it moves no more."""
        return not LEGAL_MOVES[self]


LEGAL_MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.PENDING: frozenset((TaskState.RUNNING, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.RUNNING: frozenset((TaskState.PAUSED, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.PAUSED: frozenset((TaskState.RUNNING, TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)),
    TaskState.COMPLETE: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Where a task may go from each state."""


class GroupState(StrEnum):
    """Where a group stands."""

    OPEN = "open"
    """It takes more members."""
    SEALED = "sealed"
    """Its members are known; it is waited for."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def resolved(self) -> bool:
        """Whether waiting for it is over."""
        return self in (GroupState.COMPLETED, GroupState.CANCELLED)


@dataclass(slots=True)
class Task:
    """A request to an agent, or a child plan, that was started and is answered once."""

    task_id: str
    spec: SpawnSpec | None = None
    """What it is to do; None for requests that were sent by other means."""
    kind: str = "background"
    group_id: str = ""
    """The group that it belongs to; empty for none."""
    state: TaskState = TaskState.PENDING
    result: Any = None
    """The data of its answer."""
    error: str = ""
    """Why it failed or was cancelled."""
    idempotency_key: str = ""

    def outcome(self) -> MemberOutcome:
        """What became of it so far."""
        return MemberOutcome(self.task_id, self.state, self.result, self.error or None)


@dataclass(slots=True)
class TaskGroup:
    """Tasks that are waited for together."""

    group_id: str
    join: JoinKind = "all"
    needed: int = 0
    """Successes that end the waiting; 0 for ``all``, which waits for every member."""
    fail_fast: bool = False
    """Whether the first failure cancels the rest."""
    state: GroupState = GroupState.OPEN
    reason: str = ""
    """Why it was resolved."""
    members: list[str] = field(default_factory=list)
    """Task ids, in the order in which they were started."""


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """What became of a member of a group."""

    task_id: str
    status: TaskState
    result: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain values."""
        return {"task_id": self.task_id, "status": str(self.status), "result": self.result, "error": self.error}


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """How a group was resolved; the same for everybody who looks, however late."""

    group_id: str
    status: Literal["completed", "cancelled"]
    reason: str
    """In words: ``3 of 3 members succeeded``, ``task-2 failed: ...``."""
    members: tuple[MemberOutcome, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether it was completed with no member failed or cancelled."""
        return self.status == "completed" and all(each.status is TaskState.COMPLETE for each in self.members)


@dataclass(slots=True)
class StepState:
    """What a step of a decision tree keeps of one run."""

    group_id: str = ""
    task_id: str = ""
    resolved: bool = False
    """The step is done with for good."""
    busy: bool = field(default=False, compare=False)
    """A call for the run is at work on it this very moment; never kept, since calls do not outlive a restart."""


def group_of_step(run_id: str, step_id: str) -> str:
    """The name of a step's group in a run, where the step names none."""
    name = f"{run_id}/{step_id}"
    return name if len(name) <= _MAX_NAME else sha256(name.encode(errors="surrogatepass")).hexdigest()
