"""Tasks: plans as the protocol shows them, and their changes as its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from plancast.a2a_client.values import CURSOR, PROGRESS, RESULT, TEXT, from_struct, part_of, struct_of
from plancast.client.changes import Cursor, PlanChange, TaskChunk, TaskProgress
from plancast.client.results import response_of
from plancast.console.service.questions import Question
from plancast.json_values.normalize import plain
from plancast.plan.status import PlanStatus
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary

STATE: Final = "plancast/state"
"""Key of the metadata of tasks and events: the plan's state."""
_BEFORE_END: Final = "r"
"""Ends the text of the place between a plan's result and its end."""
_STATES: Final = {
    PlanStatus.PENDING: TaskState.TASK_STATE_SUBMITTED,
    PlanStatus.RUNNING: TaskState.TASK_STATE_WORKING,
    PlanStatus.PAUSED: TaskState.TASK_STATE_WORKING,
    PlanStatus.COMPLETED: TaskState.TASK_STATE_COMPLETED,
    PlanStatus.FAILED: TaskState.TASK_STATE_FAILED,
    PlanStatus.CANCELLED: TaskState.TASK_STATE_CANCELED,
}
Event = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class Place(NamedTuple):
    """A place in the events of a task: as the cursor of the plan's changes, but the last one is two events."""

    cursor: Cursor = Cursor()
    has_result: bool = False
    """The artifact with the result was sent, and the end was not."""

    def __str__(self) -> str:
        return f"{self.cursor}{_BEFORE_END if self.has_result else ''}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the cursor of an event.

        Raises:
            ValueError: it is none.
        """
        return cls(Cursor.read(text.removesuffix(_BEFORE_END)), text.endswith(_BEFORE_END))

    @classmethod
    def of(cls, event: Event) -> Self:
        """The place of an event."""
        return cls.read(str(from_struct(event.metadata)[CURSOR]))


START: Final = Place()
"""Before the first event."""


@dataclass(frozen=True)
class PlanTask:
    """A plan at one of its turns, as a task."""

    checkpoint: Checkpoint
    """With its values in full."""
    question: Question | None = None
    """The question that the plan asks people now."""

    @property
    def plan(self) -> PlanSummary:
        return self.checkpoint.summary

    @property
    def status(self) -> PlanStatus:
        return PlanStatus(self.plan.status)

    @property
    def state(self) -> TaskState:
        """The protocol's state."""
        return TaskState.TASK_STATE_INPUT_REQUIRED if self.question is not None else _STATES[self.status]

    @property
    def artifacts(self) -> list[Artifact]:
        """The result of a plan that has completed."""
        if self.status is not PlanStatus.COMPLETED:
            return []
        ended = response_of(self.checkpoint) or {}
        return [Artifact(artifact_id=RESULT, name=RESULT, parts=[part_of(plain(ended.get("result")))])]

    def to_task(self, *, place: Place | None = None, with_artifacts: bool = True) -> Task:
        """The task, with its state at a place; by default as it is now."""
        now = Place(Cursor(self.plan.revision))
        at = now if place is None else place
        is_now = at.cursor.revision >= self.plan.revision
        early = TaskState.TASK_STATE_WORKING if at.cursor.revision else TaskState.TASK_STATE_SUBMITTED
        status = self.to_status() if is_now else TaskStatus(state=early)
        return Task(
            id=self.plan.plan_id,
            context_id=context_of(self.plan),
            status=status,
            artifacts=self.artifacts if is_now and with_artifacts else [],
            metadata=struct_of({CURSOR: str(at), STATE: self.plan.current_state if is_now else ""}),
        )

    def to_status(self) -> TaskStatus:
        """The status, with the question or the error."""
        parts: list[Part] = []
        if self.question is not None:
            parts = [Part(text=self.question.text, media_type=TEXT), part_of(self.question.to_dict())]
        elif self.status in (PlanStatus.FAILED, PlanStatus.CANCELLED):
            error = (response_of(self.checkpoint) or {}).get("error")
            parts = [Part(text=str(error), media_type=TEXT)] if error else []
        plan = self.plan
        message = _message(plan.plan_id, context_of(plan), str(plan.revision), parts) if parts else None
        return TaskStatus(state=self.state, timestamp=_time(plan.updated_at), message=message)

    def end(self, before: Place) -> Iterator[Event]:
        """The events of the turn that ends the plan: its result, then its end."""
        plan = self.plan
        if not before.has_result:
            for artifact in self.artifacts:
                yield TaskArtifactUpdateEvent(
                    task_id=plan.plan_id,
                    context_id=context_of(plan),
                    artifact=artifact,
                    last_chunk=True,
                    metadata=struct_of({CURSOR: str(before._replace(has_result=True))}),
                )
        yield self.turn(Place(Cursor(plan.revision, before.cursor.note)))

    def turn(self, at: Place) -> TaskStatusUpdateEvent:
        """The event of the plan's newest turn."""
        return TaskStatusUpdateEvent(
            task_id=self.plan.plan_id,
            context_id=context_of(self.plan),
            status=self.to_status(),
            metadata=struct_of({CURSOR: str(at), STATE: self.plan.current_state}),
        )


def context_of(plan: PlanSummary) -> str:
    """The context of a task: the plan's session, or else the plan."""
    return plan.session_id or plan.plan_id


def submitted_task(plan_id: str, context_id: str) -> Task:
    """The task of a plan before its first turn."""
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    return Task(id=plan_id, context_id=context_id, status=status, metadata=struct_of({CURSOR: str(START)}))


def change_event(plan_id: str, context_id: str, change: PlanChange, at: Place) -> Event | None:
    """The event of a turn before the newest one, or of a task's report; None for what is not shown."""
    metadata: dict[str, Any] = {CURSOR: str(at)}
    if isinstance(change, TaskChunk):
        artifact = Artifact(artifact_id=f"{change.task_id}:{change.attempt}", name=change.event_type or "")
        artifact.parts.append(part_of(change.chunk))
        return TaskArtifactUpdateEvent(
            task_id=plan_id,
            context_id=context_id,
            artifact=artifact,
            append=change.number > 0,
            metadata=struct_of(metadata),
        )
    if change.kind not in (PlanChange.kind, TaskProgress.kind):
        return None
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING, timestamp=_time(change.time))
    if isinstance(change, TaskProgress):
        metadata[PROGRESS] = change.fraction
        if change.message:
            parts = [Part(text=change.message, media_type=TEXT)]
            status.message.CopyFrom(_message(plan_id, context_id, change.cursor, parts))
    else:
        metadata[STATE] = change.current_state
    return TaskStatusUpdateEvent(task_id=plan_id, context_id=context_id, status=status, metadata=struct_of(metadata))


def _message(plan_id: str, context_id: str, cursor: str, parts: list[Part]) -> Message:
    name = f"{plan_id}:{cursor}"
    return Message(message_id=name, context_id=context_id, task_id=plan_id, role=Role.ROLE_AGENT, parts=parts)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
