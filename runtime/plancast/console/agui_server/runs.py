"""Runs: a run begins a plan, or goes on with one whose question its client answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from ag_ui.core import ResumeEntry, RunAgentInput
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from plancast.client.changes import Cursor
from plancast.client.handle import PlanHandle
from plancast.console.agui_server.position import Position
from plancast.console.routes.plan_actions import done_before
from plancast.console.routes.plans import sendable, stable_id
from plancast.console.service.backend import Backend
from plancast.console.service.errors import Refused
from plancast.console.service.questions import give_answer, question_of
from plancast.errors import NotAwaited, PlanFinished
from plancast.plan.control_events import BY
from plancast_bus.ports.checkpoints import Checkpoint

MAX_NAME: Final = 400
"""Longest id of a thread or a run, in characters."""
MOST_FAULTS: Final = 20
"""Faults of a request that are listed."""


BEGIN: Final = Cursor()


class GoalOf(BaseModel):
    """``forwardedProps`` of a run that begins a plan; other fields are the client's own."""

    model_config = ConfigDict(extra="ignore", strict=True)

    goal: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    data: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a client, and the plan that it shows."""

    thread_id: str
    run_id: str
    parent_run_id: str | None
    user: str
    plan_id: str
    goal: str
    start: Cursor = BEGIN
    """The place in the plan's changes after which it begins."""
    request_id: str | None = None
    """The request that it has answered."""
    answer_id: str | None = None
    """Id of the event of that answer."""


class Runs:
    """Begins runs.

    Args:
        backend: The deployment.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tenant_id = backend.settings.console.agui_tenant
        self._approvers = backend.settings.console.agui_approvers

    def may_decide(self, user: str) -> bool:
        """True if the clients of a user may answer what plans have people decide."""
        return self._approvers is None or user in self._approvers

    async def begin(self, asked: RunAgentInput, user: str, after: Position | None) -> Run:
        """Begin a run, or find one that was begun before: one thread and run is one plan, however often it is sent.

        Args:
            asked: The client's request.
            user: The client's user.
            after: The last event that the client has seen; None: none.

        Raises:
            Refused, RequestValidationError: the request cannot be taken.
            PlancastError: as `Client.submit`, or the plan does not take the answer.
        """
        for name, value in (("threadId", asked.thread_id), ("runId", asked.run_id)):
            if not 0 < len(value) <= MAX_NAME:
                raise Refused(422, f"body.{name}: got {len(value)} characters, allowed: 1 to {MAX_NAME}")
        if asked.resume:
            return await self._resumed(asked, asked.resume, user)
        plan_id = stable_id("agui", user, self._tenant_id, asked.thread_id, asked.run_id)
        if after is not None and after.revision:  # it has begun, and may have been forgotten since
            checkpoint = await self._checkpoint(plan_id)
            goal = checkpoint.summary.goal_event
        else:
            goal = await self._submit(asked, plan_id, user)
        return Run(asked.thread_id, asked.run_id, asked.parent_run_id, user, plan_id, goal)

    async def _submit(self, asked: RunAgentInput, plan_id: str, user: str) -> str:
        try:
            props = GoalOf.model_validate(asked.forwarded_props)
        except ValidationError as error:
            raise faults_of(error, "forwardedProps") from None
        await self._backend.client.submit(
            props.goal,
            sendable(props.data),
            correlation_id=plan_id,
            session_id=asked.thread_id,
            user_id=user,
            tenant_id=self._tenant_id or None,
            metadata={BY: user},
        )
        self._backend.submitted(plan_id)
        return props.goal

    async def _checkpoint(self, plan_id: str) -> Checkpoint:
        checkpoint = await self._backend.checkpoint(plan_id)
        if self._tenant_id and checkpoint.summary.tenant_id != self._tenant_id:
            raise Refused(404, f"plan {plan_id[:200]} is unknown, or was deleted after its retention")
        return checkpoint

    async def _resumed(self, asked: RunAgentInput, entries: list[ResumeEntry], user: str) -> Run:
        """Go on with a plan. What the client returns is not trusted: it answers only what its user may."""
        entry, *others = entries
        if others:
            raise Refused(422, f"body.resume: got {len(entries)} answers, allowed: 1, since a plan asks one at a time")
        plan_id, start, request_id = read_interrupt(entry.interrupt_id)
        checkpoint = await self._checkpoint(plan_id)
        plan = checkpoint.summary
        if plan.session_id != asked.thread_id or start.revision > checkpoint.revision:
            raise Refused(404, f"body.resume.0.interruptId: thread {asked.thread_id[:200]} has no such interrupt")
        answer_id = None
        if entry.status == "resolved":
            answer_id = f"agui:{stable_id(plan_id, request_id, user, asked.thread_id, asked.run_id)}"
            handle = self._backend.client.plan(plan_id, tenant_id=self._tenant_id or None)
            try:
                await self._answer(handle, request_id, entry.payload, user, answer_id)
            except (NotAwaited, PlanFinished):
                if await done_before(self._backend, plan_id, answer_id) is None:
                    raise
        request = request_id if answer_id is not None else None
        ids = asked.thread_id, asked.run_id, asked.parent_run_id
        return Run(*ids, user, plan.plan_id, plan.goal_event, start, request, answer_id)

    async def _answer(self, handle: PlanHandle, request_id: str, payload: Any, user: str, event_id: str) -> None:
        question = question_of(await handle.state(), await self._backend.registry.human_events())
        if question is None or question.approval.request_id != (request_id or None):
            raise NotAwaited(f"plan {handle.plan_id} does not wait for this answer: it was given, or is too late")
        if question.for_people and not self.may_decide(user):
            raise Refused(
                403,
                f"{user} may not decide it here. A person can answer it in the console, or with `plancast approvals`",
            )
        if not isinstance(payload, dict):
            raise Refused(422, "body.resume.0.payload: allowed: an object")
        await give_answer(handle, question, sendable(payload), user, event_id)


def read_input(body: bytes) -> RunAgentInput:
    """Read the body of a request.

    Raises:
        Refused, RequestValidationError: it is none.
    """
    try:
        return RunAgentInput.model_validate(from_json(body))
    except ValidationError as error:
        raise faults_of(error) from None
    except ValueError as error:
        raise Refused(422, f"body: no JSON: {error}") from None


def faults_of(error: ValidationError, *where: str) -> RequestValidationError:
    """The error response for faults in a part of the body."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)[:MOST_FAULTS]
    return RequestValidationError([{**each, "loc": ("body", *where, *each["loc"])} for each in faults])


def interrupt_id(plan_id: str, at: Cursor, request_id: str | None) -> str:
    """The id of a plan's question, asked after a change."""
    return f"{plan_id}/{at}/{request_id or ''}"


def read_interrupt(text: str) -> tuple[str, Cursor, str]:
    """Read an id of :func:`interrupt_id`.

    Raises:
        Refused: it is none.
    """
    plan_id, _, rest = text.partition("/")
    at, _, request_id = rest.partition("/")
    try:
        return plan_id, Cursor.read(at), request_id
    except ValueError:
        raise Refused(422, f"body.resume.0.interruptId: {text[:80]!r} is no id of an interrupt") from None
