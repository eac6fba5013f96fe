"""Changes of plans: the committed turns that a watch yields, and what running tasks report between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from plancast.plan.status import PlanStatus
from plancast.tasks.progress import read_note
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.progress import ProgressNote


class Cursor(NamedTuple):
    """A place in the changes of a plan."""

    revision: int = 0
    """The last turn before it."""
    note: int = 0
    """Sequence of the last report of a task before it."""

    def __str__(self) -> str:
        return f"{self.revision}.{self.note}" if self.note else str(self.revision)

    @classmethod
    def read(cls, text: str | int) -> Self:
        """Read the cursor of a change, or the number of a turn.

        Raises:
            ValueError: it is neither.
        """
        numbers = str(text).split(".")
        if len(numbers) > 2 or not all(each.isascii() and each.isdigit() and len(each) <= 16 for each in numbers):
            raise ValueError(f"{str(text)[:80]!r} is not the cursor of a plan's change: it is like '12' or '12.345'")
        return cls(*map(int, numbers))


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A committed turn of a plan; yielded by :meth:`PlanHandle.watch`."""

    kind: ClassVar[str] = "turn"
    plan_id: str
    revision: int
    """Number of the turn, from 1."""
    status: PlanStatus
    current_state: str
    time: float
    """When it was committed, seconds since the epoch, UTC."""
    event_type: str | None = None
    """Type of the event that the turn handled."""
    path: tuple[str, ...] = ()
    """States entered in the turn."""
    note: int = 0
    """Sequence of the last report of a task up to the change; 0 when there was none."""

    @property
    def cursor(self) -> str:
        """The place of the change: a watch ``after`` it goes on with the next one."""
        return str(Cursor(self.revision, self.note))


@dataclass(frozen=True, slots=True)
class TaskReport(PlanChange):
    """A report of a running task, after the turn ``revision``; not part of the plan's history.

    ``event_type`` is the type of the task's request, ``time`` when the report arrived.
    """

    task_id: str = ""
    """Id of the request."""
    attempt: int = 1
    """Attempt at the task, from 1: each one begins anew."""


@dataclass(frozen=True, slots=True)
class TaskProgress(TaskReport):
    """A task's ``await task.progress(fraction, message)``."""

    kind: ClassVar[str] = "progress"
    fraction: float | None = None
    """Share that is done, from 0 to 1; None when unknown."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TaskChunk(TaskReport):
    """A piece of a task's output: its ``await task.stream(chunk)``."""

    kind: ClassVar[str] = "chunk"
    chunk: Any = None
    number: int = 0
    """Place of the chunk in the output of the attempt, from 0."""


@dataclass(frozen=True, slots=True)
class DecisionText(TaskReport):
    """A piece of a model's reply while it is written, of a planner with ``stream=True``.

    ``event_type`` is the name of the planner, ``task_id`` the reply's key; further attempts at a reply begin anew.
    """

    kind: ClassVar[str] = "tokens"
    text: str = ""
    number: int = 0
    """Place of the piece in the reply, from 0."""


def change_of(checkpoint: Checkpoint, entry: Mapping[str, Any]) -> PlanChange:
    """A turn of a plan, from its entry in the timeline; of the newest one the checkpoint knows more than an entry."""
    plan, event = checkpoint.summary, entry.get("event") or {}
    revision = int(entry.get("revision", checkpoint.revision))
    newest = revision == checkpoint.revision
    return PlanChange(
        plan_id=plan.plan_id,
        revision=revision,
        status=PlanStatus(plan.status if newest else entry["status"]),
        current_state=plan.current_state if newest else str(entry["state"]),
        time=plan.updated_at if newest else float(entry["time"]),
        event_type=event.get("type"),
        path=tuple(entry.get("path") or ()),
    )


def report_of(turn: PlanChange, sent: ProgressNote) -> TaskReport | None:
    """The report in a note that was sent since a turn; None when it cannot be read."""
    note = read_note(sent.payload)
    if note is None:
        return None
    plan = turn.plan_id, turn.revision, turn.status, turn.current_state, sent.time, note.event_type, (), sent.sequence
    task = note.task, note.attempt
    if note.kind == "tokens":
        return DecisionText(*plan, *task, str(note.chunk), note.number)
    if note.kind == "chunk":
        return TaskChunk(*plan, *task, note.chunk, note.number)
    return TaskProgress(*plan, *task, note.fraction, note.message)
