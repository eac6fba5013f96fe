"""Progress of running tasks: what a handler reports while it works, and how it is sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plancast.json_values.normalize import plain
from plancast.models.port import ReasonRequest
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.progress import MAX_NOTE_BYTES

if TYPE_CHECKING:
    from plancast_bus.ports.progress import ProgressNotes

REST_SECONDS = 0.1
"""Least seconds between two reports of a task's progress; of those between, the last one is sent."""
MAX_TEXT = MAX_NOTE_BYTES // 8
"""Characters of a reply in one note: as many as fit in any script, besides the names."""
MAX_MESSAGE = 1_000
"""Longest message of a report, in characters."""


class TaskNote(BaseModel):
    """One report as it is sent. Logins of workers write it, so it is read as data of a stranger."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    kind: Literal["progress", "chunk", "tokens"]
    task: Annotated[str, Field(max_length=2_000)]
    """Id of the request."""
    event_type: Annotated[str, Field(max_length=200)]
    """Type of the request; of a decision, the name of its planner."""
    attempt: Annotated[int, Field(ge=1)]
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    chunk: Any = None
    number: Annotated[int, Field(ge=0)] = 0
    """Place of a chunk in the output of the attempt, from 0."""


def read_note(payload: bytes) -> TaskNote | None:
    """Decode what :class:`TaskReporter` has sent; None for anything else."""
    try:
        return TaskNote.model_validate(unpack(payload))
    except (InvalidEnvelope, ValidationError):
        return None


class DecisionReporter:
    """Sends the replies of models, piece by piece; a :class:`~plancast.models.text_stream.TextSink`."""

    def __init__(self, notes: ProgressNotes) -> None:
        self._notes = notes

    async def __call__(self, request: ReasonRequest, attempt: int, number: int, text: str) -> None:
        """Send a piece, in several notes where it is too large for one."""
        if not request.plan_id:
            return
        about = {"task": request.idempotency_key, "event_type": request.planner[:200], "attempt": attempt}
        for start in range(0, len(text), MAX_TEXT):
            note = {"kind": "tokens", "chunk": text[start : start + MAX_TEXT], "number": number} | about
            await self._notes.put(request.plan_id, pack(note))


class TaskReporter:
    """Sends the reports of one attempt at a task to those who watch its plan."""

    def __init__(self, notes: ProgressNotes, request: EventEnvelope, attempt: int) -> None:
        self._notes = notes
        self._plan_id = request.plan_id or ""
        self._about = {"task": request.id, "event_type": request.type, "attempt": attempt}
        self._waiting: dict[str, Any] | None = None
        self._sent_at = float("-inf")
        self._chunks = 0

    async def progress(self, fraction: float | None, message: str) -> None:
        """Send a report, or keep it while the one before is too young.

        Raises:
            ValueError: the fraction is not in 0 to 1, or the message is too long.
        """
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"progress is a fraction in 0 to 1, not {fraction!r}")
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"the message has {len(message)} characters, at most {MAX_MESSAGE}")
        self._waiting = {"kind": "progress", "fraction": fraction, "message": message}
        if time.monotonic() - self._sent_at >= REST_SECONDS:
            await self.flush()

    async def chunk(self, chunk: Any) -> None:
        """Send a piece of output.

        Raises:
            TypeError: it has no JSON form.
            ValueError: it is too large.
        """
        note = {"kind": "chunk", "chunk": plain(chunk), "number": self._chunks}
        size = len(pack(note | self._about))
        if size > MAX_NOTE_BYTES:
            raise ValueError(f"the chunk takes {size} bytes, at most {MAX_NOTE_BYTES}; stream it in smaller pieces")
        self._chunks += 1
        await self.flush()
        await self._send(note)

    async def flush(self) -> None:
        """Send the report that waits."""
        if self._waiting is not None:
            note, self._waiting = self._waiting, None
            self._sent_at = time.monotonic()
            await self._send(note)

    async def _send(self, note: dict[str, Any]) -> None:
        if self._plan_id:
            await self._notes.put(self._plan_id, pack(note | self._about))
