"""The stream of a run: the plan's changes as events, from any of them on, until the plan ends or asks a person."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    Interrupt,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
)
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from plancast.client.changes import DecisionText, PlanChange, TaskReport, report_of
from plancast.client.plan_watch import Change, PlanWatch
from plancast.client.results import response_of
from plancast.console.agui_server.position import Part, Position
from plancast.console.agui_server.projection import Entry, Projection
from plancast.console.agui_server.runs import Run, Runs, interrupt_id, read_input
from plancast.console.routes.event_streams import HeldStream, until_closing
from plancast.console.service.backend import Backend
from plancast.console.service.errors import Refused
from plancast.console.service.questions import question_of
from plancast.errors import PlancastError
from plancast.plan.status import PlanStatus
from plancast.plan_store.store import plan_fields
from plancast_bus.errors import BusError, InvalidEnvelope
from plancast_bus.events.codec import load, unpack
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Publish

logger = logging.getLogger(__name__)
Sent = tuple[str, BaseEvent]
"""An event with its id."""


async def respond(backend: Backend, request: Request) -> Response:
    """The response to a request for a run: its events, or nothing where the client has seen its end.

    Raises:
        Refused, RequestValidationError, PlancastError: the request cannot be taken.
        BusUnavailable: the plan may have begun nevertheless.
    """
    user, last = request.state.user, request.headers.get("last-event-id")
    try:
        after = None if last is None else Position.read(last)
    except ValueError as error:
        raise Refused(422, f"header.Last-Event-ID: {error}") from None
    asked = read_input(await request.body())
    slot = backend.streams.held_by(user)
    runs = Runs(backend)
    run = await runs.begin(asked, user, after)
    if after is not None and after.part == "end":
        return Response(status_code=204)
    return HeldStream(_encoded(RunStream(backend, run, may_decide=runs.may_decide(user)).events(after)), slot)


async def _encoded(events: AsyncGenerator[Sent]) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(events):
        try:
            async for name, event in events:
                yield ServerSentEvent(event.model_dump_json(by_alias=True), id=name)
        except (BusError, PlancastError) as error:  # the client goes on where the stream ends
            logger.info("a run's stream ends: %s", error)


class RunStream:
    """The events of a run.

    Args:
        backend: The deployment.
        run: The run.
        may_decide: The user may answer what the plan has people decide.
    """

    def __init__(self, backend: Backend, run: Run, *, may_decide: bool) -> None:
        self._backend = backend
        self._run = run
        self._may_decide = may_decide
        self._at = Position(*run.start, run.start.note)
        self._projection = Projection(run.plan_id, run.goal)
        self._answer_id = run.answer_id
        """Id of the answer that the plan has not taken yet; before that it still asks."""

    async def events(self, after: Position | None) -> AsyncGenerator[Sent]:
        """Yield the events of the run, with their ids.

        Args:
            after: Go on after the event with this id; None: with the first one.
        """
        run = self._run
        checkpoint: Checkpoint | None = None
        if after is None:
            after = self._at._replace(part="b")
        if after.revision or after.note:
            checkpoint = await self._backend.checkpoint(run.plan_id)
            for each in await self._restored(after, checkpoint):
                yield each
        if after.part == "b":
            self._at = after._replace(part="")
            begun = RunStartedEvent(
                thread_id=run.thread_id,
                run_id=run.run_id,
                parent_run_id=run.parent_run_id,
                protocol_version=PROTOCOL_VERSION,
            )
            for each in self._numbered("b", [begun, *self._projection.snapshot()], after.sent):
                yield each
        if checkpoint is not None and checkpoint.revision == self._at.revision:
            ends = await self._end(checkpoint, after.sent if after.part == "e" else 0)
            for each in ends:
                yield each
            if ends:
                return
        if after.part == "e":
            again = [*self._projection.closing(), *self._projection.reopening()]
            for each in self._numbered("e", again, after.sent):
                yield each
        async with aclosing(self._changes()) as changes:
            async for change in changes:
                for each in await self._projected(change):
                    yield each

    async def _changes(self) -> AsyncGenerator[Change]:
        backend, plan_id = self._backend, self._run.plan_id
        begun = self._at.revision > 0 or await backend.bus.checkpoints.load(plan_id, folded=True) is not None
        watch = PlanWatch(backend.bus, plan_id, plan_id, self._at.cursor, begun=begun, is_over=backend.closing.is_set)
        async with aclosing(watch.changes()) as changes:
            async for each in until_closing(backend, changes):
                yield each
                if self._at.part == "end":
                    return

    async def _projected(self, change: Change) -> list[Sent]:
        """The events of a change, with those of the run's end where it is the last one."""
        found, checkpoint = change.change, change.checkpoint
        if isinstance(found, TaskReport):
            events = self._projection.report(found)
            return self._numbered("n", events, then=self._at._replace(note=found.note))
        assert checkpoint is not None
        sent = self._turn(change.entry, found.note, await self._arguments(checkpoint, found.revision))
        return sent + await self._end(checkpoint) if checkpoint.revision == found.revision else sent

    def _turn(self, entry: Entry, note: int, arguments: dict[str, Any], sent: int = 0) -> list[Sent]:
        if (entry.get("event") or {}).get("id") == self._answer_id:
            self._answer_id = None
        events = self._projection.turn(entry, arguments)
        return self._numbered("t", events, sent, Position(int(entry["revision"]), note, note))

    async def _arguments(self, checkpoint: Checkpoint, revision: int) -> dict[str, Any]:
        """Data of the requests that a turn has sent; the store keeps those of the last two turns."""
        if checkpoint.revision > revision + 1:
            return {}
        if checkpoint.revision == revision:
            return _sent(checkpoint)
        kept = await self._backend.bus.checkpoints.kept(checkpoint.correlation_id)
        return next((_sent(each) for each in kept if each.revision == revision), {})

    def _numbered(self, part: Part, events: list[BaseEvent], sent: int = 0, then: Position | None = None) -> list[Sent]:
        """The events that were not sent, with their ids: that of the last one is of the whole change."""
        then = then or self._at
        if not events:
            return []
        ids = [then._replace(base=self._at.base, part=part, sent=count) for count in range(1, len(events))]
        self._at = then
        return [(str(each), event) for each, event in zip([*ids, then], events, strict=True)][sent:]

    # The end of the run.

    async def _end(self, checkpoint: Checkpoint, sent: int = 0) -> list[Sent]:
        """The events that end the run, if the plan has ended or asks a person; else none."""
        last = await self._last(checkpoint)
        if last is None:
            return []
        finished = PlanStatus(checkpoint.summary.status).finished
        events = [*self._projection.closing(), *(self._projection.unanswered() if finished else ()), last]
        for each in events:
            each.timestamp = round(1000 * checkpoint.summary.updated_at)
        return self._numbered("e", events, sent, self._at._replace(part="end"))

    async def _last(self, checkpoint: Checkpoint) -> BaseEvent | None:
        ended = response_of(checkpoint)
        if ended is None:
            interrupt = await self._interrupt(checkpoint)
            return None if interrupt is None else self._finished(RunFinishedInterruptOutcome(interrupts=[interrupt]))
        if ended["status"] == PlanStatus.COMPLETED:
            return self._finished(RunFinishedSuccessOutcome(), ended["result"])
        if ended["status"] == PlanStatus.CANCELLED:
            return self._finished(RunFinishedCancelledOutcome())
        return RunErrorEvent(message=str(ended["error"] or "the plan has failed"), code="plan_failed")

    def _finished(self, outcome: RunFinishedOutcome, result: Any = None) -> BaseEvent:
        return RunFinishedEvent(thread_id=self._run.thread_id, run_id=self._run.run_id, outcome=outcome, result=result)

    async def _interrupt(self, checkpoint: Checkpoint) -> Interrupt | None:
        """The question to a person; None where the plan asks nothing, or has got the answer of this run."""
        state = await plan_fields(self._backend.bus.checkpoints, checkpoint)
        question = question_of(state, await self._backend.registry.human_events())
        if question is None:
            return None
        approval = question.approval
        if self._answer_id is not None and approval.request_id == self._run.request_id:
            return None
        due = None if approval.due is None else datetime.fromtimestamp(approval.due, UTC).isoformat()
        may_answer = self._may_decide or not question.for_people
        return Interrupt(
            id=interrupt_id(self._run.plan_id, self._at.cursor, approval.request_id),
            reason="approval" if question.decides else "input",
            message=question.text,
            tool_call_id=approval.request_id if approval.request_id in self._projection.calls else None,
            response_schema=question.answer_schema,
            expires_at=due,
            metadata={"plancast": {"event": approval.expected_event, "may_answer": may_answer}},
        )

    # What the client knows.

    async def _restored(self, after: Position, checkpoint: Checkpoint) -> list[Sent]:
        """Project what the client has seen; returns the rest of the change of which it has seen only a part."""
        entries = [unpack(each) for each in await self._backend.bus.checkpoints.history(checkpoint.correlation_id)]
        partial = after.part in ("t", "n")
        for entry in entries:
            if entry["revision"] < after.revision + (after.part != "t"):
                self._turn(entry, 0, {})
        notes = await self._notes(after)
        for note in notes:
            if not partial or after.part == "t" or note.note < after.note:
                self._projection.report(note)
        self._at = after._replace(part="", sent=0)
        if after.part == "t":
            for entry in entries:
                if entry["revision"] == after.revision:
                    return self._turn(entry, after.note, await self._arguments(checkpoint, after.revision), after.sent)
        elif after.part == "n":
            for note in notes:
                if note.note == after.note:
                    return self._numbered("n", self._projection.report(note), after.sent)
        return []

    async def _notes(self, after: Position) -> list[TaskReport]:
        """The reports that the client has seen and that may still be open, as far as they are kept."""
        if after.note <= self._run.start.note:
            return []
        try:
            kept = await self._backend.bus.progress.kept(self._run.plan_id, after=self._run.start.note)
        except BusError:
            return []
        turn = PlanChange(self._run.plan_id, after.revision, PlanStatus.RUNNING, "", 0.0)
        found = [report_of(turn, note) for note in kept if note.sequence <= after.note]
        # The reply of a model ends with the next turn.
        return [
            each
            for each in found
            if each is not None and not (isinstance(each, DecisionText) and each.note <= after.base)
        ]


def _sent(checkpoint: Checkpoint) -> dict[str, Any]:
    """Data of the events that the turn of a checkpoint has sent, by their ids."""
    found: dict[str, Any] = {}
    for effect in checkpoint.outbox:
        if isinstance(effect, Publish):
            with suppress(InvalidEnvelope):
                event = load(effect.payload, effect.content_type)
                found[str(event.get("id"))] = event.get("data")
    return found
