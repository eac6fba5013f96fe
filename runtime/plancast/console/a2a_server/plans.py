"""TaskPlans: finds, begins, answers, follows and cancels the plans of tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from a2a.types import Message, Task, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, UnsupportedOperationError

from plancast.client.changes import Cursor, PlanChange, change_of
from plancast.client.handle import PlanHandle
from plancast.client.plan_watch import PlanWatch
from plancast.console.a2a_server.messages import ANSWER_TEXT, GOAL_TEXT, check_message, data_of, skill_of
from plancast.console.a2a_server.tasks import START, Event, Place, PlanTask, change_event, context_of, submitted_task
from plancast.console.routes.event_streams import until_closing
from plancast.console.routes.plans import stable_id
from plancast.console.service.backend import Backend
from plancast.console.service.questions import APPROVED, give_answer, give_input, question_of
from plancast.errors import PlanCancelled, PlanFailed, PlanFinished, PlanNotFound
from plancast.plan.control_events import BY
from plancast.plan_store.store import find_checkpoint, plan_fields
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import in_full

CANCEL_SECONDS: Final = 5.0
"""Seconds for which the answer to a cancellation waits for the plan's end."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request: a user, for one tenant or all."""

    user: str
    tenant: str
    """Tenant of all plans that are begun and seen; empty for all tenants."""
    after: Place | None = None
    """Where a stream goes on."""


@dataclass(frozen=True)
class Sent:
    """The plan that has taken a message, and the place of the events that follow it."""

    handle: PlanHandle
    context_id: str
    place: Place = START


class TaskPlans:
    """The deployment's plans, as a task store.

    Args:
        backend: The deployment.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._bus = backend.bus
        self._approvers = backend.settings.console.a2a_approvers

    # Messages.

    async def send(self, caller: Caller, message: Message) -> Sent:
        """Begin a plan, or answer the one that the message names; a message that comes again does so once."""
        check_message(message)
        return await (self._answer(caller, message) if message.task_id else self._begin(caller, message))

    async def _begin(self, caller: Caller, message: Message) -> Sent:
        goal = skill_of(message, await self._backend.goals())
        plan_id = stable_id("a2a", caller.user, caller.tenant, message.message_id)
        context = message.context_id or plan_id
        handle = await self._backend.client.submit(
            goal,
            data_of(message, GOAL_TEXT),
            correlation_id=plan_id,
            session_id=context,
            user_id=caller.user,
            tenant_id=caller.tenant or None,
            metadata={BY: caller.user},
        )
        self._backend.submitted(handle.plan_id)
        return Sent(handle, context)

    async def _answer(self, caller: Caller, message: Message) -> Sent:
        handle = self.handle(caller, message.task_id)
        event_id = stable_id("a2a", caller.user, caller.tenant, "answer", message.task_id, message.message_id)
        checkpoint = await self._checkpoint(caller, handle)
        if checkpoint is None:
            raise UnsupportedOperationError(f"task {handle.plan_id} has not begun, and waits for no input")
        context = context_of(checkpoint.summary)
        if message.context_id not in ("", context):
            raise InvalidParamsError(f"message.contextId: allowed: {context}, the context of its task, or nothing")
        history = await self._backend.history(checkpoint)
        taken = next((each for each in reversed(history) if (each.get("event") or {}).get("id") == event_id), None)
        if taken is not None:
            return Sent(handle, context, Place(Cursor(int(taken["revision"]) - 1)))
        plan = await self._plan(checkpoint)
        if plan.status.finished:
            raise PlanFinished(f"task {handle.plan_id} is {plan.status}, and takes no further messages")
        question = plan.question
        if question is None:
            raise UnsupportedOperationError(f"task {handle.plan_id} does not wait for input")
        data = data_of(message, ANSWER_TEXT)
        if question.is_named or (question.decides and APPROVED in data):
            if caller.user not in self._approvers:
                raise UnsupportedOperationError(
                    f"task {handle.plan_id} waits for a decision, which {caller.user} may not give over A2A "
                    "(console.a2a_approvers): a person can answer in the console, or with `plancast approvals`"
                )
            await give_answer(handle, question, data, caller.user, event_id)
        else:
            await give_input(handle, question, data, caller.user, event_id)
        return Sent(handle, context, Place(Cursor(checkpoint.revision)))

    # Tasks.

    def handle(self, caller: Caller, plan_id: str) -> PlanHandle:
        """The plan of a task; nothing is read."""
        return self._backend.client.plan(plan_id, tenant_id=caller.tenant or None)

    async def find(self, caller: Caller, plan_id: str) -> PlanTask | None:
        """A plan; None before its first turn.

        Raises:
            PlanNotFound: the tenant has no such plan.
        """
        checkpoint = await self._checkpoint(caller, self.handle(caller, plan_id))
        return await self._plan(checkpoint) if checkpoint is not None else None

    async def task(self, caller: Caller, handle: PlanHandle) -> Task:
        """The task as it is now; raises as :meth:`find` does."""
        checkpoint = await self._checkpoint(caller, handle)
        if checkpoint is not None:
            return (await self._plan(checkpoint)).to_task()
        session = str((await handle.state()).get("session_id") or "")
        return submitted_task(handle.plan_id, session or handle.plan_id)

    async def cancel(self, caller: Caller, plan_id: str, reason: str) -> Task:
        """Cancel a plan; returns its task once it has ended, or after 5 seconds.

        Raises:
            TaskNotCancelableError: it has ended.
        """
        handle = self.handle(caller, plan_id)
        try:
            await handle.cancel(reason, user_id=caller.user)
        except PlanFinished as error:
            raise TaskNotCancelableError(str(error)) from error
        with suppress(TimeoutError, PlanFailed, PlanCancelled):
            await handle.result(CANCEL_SECONDS)
        return await self.task(caller, handle)

    async def _checkpoint(self, caller: Caller, handle: PlanHandle) -> Checkpoint | None:
        checkpoint = await find_checkpoint(self._bus.checkpoints, handle.plan_id)
        if checkpoint is None:
            await handle.status()  # raises unless its goal is stored
            return None
        if caller.tenant and checkpoint.summary.tenant_id != caller.tenant:
            raise PlanNotFound(f"plan {handle.plan_id[:200]} is unknown, or was deleted after its retention")
        return checkpoint

    async def _plan(self, checkpoint: Checkpoint) -> PlanTask:
        """A plan with what it asks."""
        full = await in_full(checkpoint, self._bus.values)
        state = await plan_fields(self._bus.checkpoints, full)
        return PlanTask(full, question_of(state, await self._backend.registry.human_events()))

    # Streams.

    async def follow(self, caller: Caller, sent: Sent) -> AsyncGenerator[Task | Event]:
        """The task, then its events after a place, each once and in order, to its end or to what it asks."""
        place = sent.place if caller.after is None else caller.after
        handle = sent.handle
        checkpoint = await self._checkpoint(caller, handle)
        if checkpoint is None:
            yield submitted_task(handle.plan_id, sent.context_id)
        else:
            plan = await self._plan(checkpoint)
            yield plan.to_task(place=place)
            if plan.status.finished and place.cursor.revision >= checkpoint.revision:
                return
        async with aclosing(self._events(caller, handle, sent.context_id, place, checkpoint)) as events:
            async for event in events:
                yield event

    async def events_after(self, key: str, place: Place, tenant: str) -> list[tuple[Place, Event, bool]]:
        """The events of a plan's turns after a place that there are by now, each with its place.

        The flag is true for the last one of a plan that has ended.

        Raises:
            PlanNotFound: the plan that has this key by now is that of another tenant.
        """
        checkpoint = await self._bus.checkpoints.load(key)
        if checkpoint is None:
            return []
        if tenant and checkpoint.summary.tenant_id != tenant:
            raise PlanNotFound(f"plan {key[:200]} is that of another tenant")
        plan_id, context_id = checkpoint.summary.plan_id, context_of(checkpoint.summary)
        found: list[tuple[Place, Event, bool]] = []
        last = place
        for entry in await self._backend.history(checkpoint):
            if not place.cursor.revision < entry["revision"] < checkpoint.revision:
                continue
            last = Place(Cursor(entry["revision"]), place.has_result)
            event = change_event(plan_id, context_id, change_of(checkpoint, entry), last)
            if event is not None:
                found.append((last, event, False))
        if checkpoint.revision > place.cursor.revision:
            plan = await self._plan(checkpoint)
            if plan.status.finished:
                found += [
                    (Place.of(event), event, isinstance(event, TaskStatusUpdateEvent)) for event in plan.end(last)
                ]
            else:
                now = Place(Cursor(checkpoint.revision))
                found.append((now, plan.turn(now), False))
        return found

    async def _events(
        self, caller: Caller, handle: PlanHandle, context_id: str, place: Place, begun: Checkpoint | None
    ) -> AsyncGenerator[Event]:
        key = handle.plan_id if begun is None else begun.correlation_id
        plan_id = handle.plan_id if begun is None else begun.summary.plan_id

        def check(checkpoint: Checkpoint) -> None:
            if caller.tenant and checkpoint.summary.tenant_id != caller.tenant:
                raise PlanNotFound(f"plan {plan_id[:200]} is that of another tenant")

        watch = PlanWatch(
            self._bus,
            key,
            plan_id,
            place.cursor,
            begun=begun is not None,
            check=check,
            is_over=self._backend.closing.is_set,
        )
        last = place
        async with aclosing(watch.changes()) as read, aclosing(until_closing(self._backend, read)) as changes:
            async for change, newest, _ in changes:
                at = Place(Cursor.read(change.cursor), last.has_result)
                if change.kind != PlanChange.kind or newest is None or change.revision < newest.revision:
                    event = change_event(plan_id, context_id, change, at)
                    if event is not None:
                        yield event
                else:
                    plan = await self._plan(newest)
                    if plan.status.finished:
                        for event in plan.end(last):
                            yield event
                        return
                    yield plan.turn(at)
                    if plan.question is not None:
                        return
                last = at
