"""Calls: a call of a goal's tool begins a plan, and follows it to its end or to a question that it cannot put."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import anyio
from cachetools import FIFOCache
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from plancast.client.handle import PlanHandle
from plancast.console.mcp_server import goals
from plancast.console.mcp_server.forms import answer_form, form_of
from plancast.console.mcp_server.results import IDEMPOTENCY_KEY, asked_of, failure_of, result_of
from plancast.console.routes.plans import sendable, stable_id
from plancast.console.service.backend import Backend
from plancast.console.service.errors import Refused
from plancast.console.service.questions import Question, give_input, question_of
from plancast.errors import InvalidAnswer, NotAwaited, PlanCancelled, PlancastError, PlanFailed, PlanFinished
from plancast.plan.control_events import BY
from plancast_bus.errors import BusUnavailable

MAX_ROUNDS: Final = 5
"""Times that one question is put to a person whose answers break its schema."""
KEPT_CALLS: Final = 10_000
"""Newest calls that a notification can cancel."""
_FORM: Final = "answer"
Context = ServerRequestContext[Any, Any]
Outcome = CallToolResult | InputRequiredResult


@dataclass
class Caller:
    """One call, and what its client can do."""

    context: Context
    user: str
    asked: set[Any] = field(default_factory=set)
    """Keys of the questions that were put."""

    @property
    def is_modern(self) -> bool:
        """True if a question ends the call, which is made again with the answer."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def can_elicit(self) -> bool:
        """True if the client shows forms to a person."""
        session = self.context.session
        able = session.client_capabilities.elicitation if session.client_capabilities is not None else None
        has_forms = able is not None and (able.form is not None or able.url is None)
        return has_forms and (self.is_modern or session.can_send_request)

    @property
    def session(self) -> str | None:
        """Id of the client's session; None where requests belong to none."""
        request = self.context.request
        if request is None:
            return ""  # standard input and output are one session
        found: str | None = request.headers.get("mcp-session-id")
        return found


class PlanCalls:
    """Runs the calls of tools.

    Args:
        backend: The deployment.
        tenant_id: Tenant of all plans that are begun and seen; empty for all tenants.
    """

    def __init__(self, backend: Backend, tenant_id: str) -> None:
        self._backend = backend
        self._tenant_id = tenant_id
        self._approvers = backend.settings.console.mcp_approvers
        self._begun: FIFOCache[tuple[str, str, str], asyncio.Future[PlanHandle]] = FIFOCache(KEPT_CALLS)
        """Plans by user, session and request, also of calls that are over."""

    async def call(self, caller: Caller, params: CallToolRequestParams) -> Outcome:
        """Call a tool; what the tool or the plan refuses is a result that says so."""
        try:
            with self._backend.streams.held_by(caller.user):
                return await self._call(caller, params)
        except Refused as error:
            return failure_of(error.detail)
        except BusUnavailable as error:
            return failure_of(f"NATS does not answer ({error}); the plan may have begun nevertheless")
        except PlancastError as error:
            return failure_of(str(error))

    async def _call(self, caller: Caller, params: CallToolRequestParams) -> Outcome:
        arguments = params.arguments or {}
        offered = await self._backend.goals()
        is_known = params.name in offered or params.name in (goals.RESULT, goals.CANCEL, goals.ANSWER)
        if is_known and params.request_state is not None:
            return await self._resumed(caller, params, is_goal=params.name in offered)
        if params.name in offered:
            return await self._follow(caller, await self._begin(caller, params.name, arguments, params))
        if params.name == goals.RESULT:
            return await self._follow(caller, self._handle(arguments))
        if params.name == goals.CANCEL:
            handle = self._handle(arguments)
            await handle.cancel(str(arguments.get("reason") or "cancelled by a client"), user_id=caller.user)
            return await self._follow(caller, handle)
        if params.name == goals.ANSWER:
            return await self._answered(caller, self._handle(arguments), arguments.get("data"))
        raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:200]!r}")

    def _handle(self, arguments: dict[str, Any]) -> PlanHandle:
        plan_id = arguments.get("plan_id")
        if not isinstance(plan_id, str) or not plan_id:
            raise Refused(422, "plan_id: got no text, allowed: the id of a plan")
        return self._backend.client.plan(plan_id, tenant_id=self._tenant_id or None)

    async def _begin(
        self, caller: Caller, goal: str, data: dict[str, Any], params: CallToolRequestParams
    ) -> PlanHandle:
        """Submit a goal; calls with the same idempotency key, or request of one session, are one plan."""
        context, meta = caller.context, dict(params.meta or {})
        key, session = meta.get(IDEMPOTENCY_KEY), caller.session
        if isinstance(key, str) and key:
            plan_id = stable_id("mcp", caller.user, self._tenant_id, "key", key)
        elif session:
            plan_id = stable_id("mcp", caller.user, self._tenant_id, "request", session, repr(context.request_id))
        else:
            plan_id = uuid4().hex
        submitting = asyncio.ensure_future(
            self._backend.client.submit(
                goal,
                sendable(data),
                correlation_id=plan_id,
                user_id=caller.user,
                tenant_id=self._tenant_id or None,
                metadata={BY: caller.user},
            )
        )
        submitting.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if the call is over
        if session is not None:
            self._begun[caller.user, session, repr(context.request_id)] = submitting
        handle = await asyncio.shield(submitting)  # a cancelled call cancels a plan that is known to have begun
        self._backend.submitted(handle.plan_id)
        return handle

    async def cancel(self, caller: Caller, request_id: Any) -> None:
        """Cancel the plan of a call that the client has given up."""
        if caller.session is None:
            return
        submitting = self._begun.get((caller.user, caller.session, repr(request_id)))
        if submitting is not None:
            with suppress(PlancastError):  # it has ended, or was never begun
                await (await asyncio.shield(submitting)).cancel(
                    "the client has cancelled the call", user_id=caller.user
                )

    # Follow a plan.

    async def _follow(self, caller: Caller, handle: PlanHandle) -> Outcome:
        """Wait for a plan's end, report its progress, and put its questions."""
        loop = asyncio.get_running_loop()
        result = loop.create_task(handle.result())
        watching = loop.create_task(self._watch(caller, handle))
        closing = loop.create_task(self._backend.closing.wait())
        tasks: tuple[asyncio.Task[Any], ...] = (result, watching, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not result.done() and (asked := watching.result()) is not None:
                return asked
            await asyncio.wait((result, closing), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                return failure_of(f"the server ends; plan {handle.plan_id} goes on", handle.plan_id, "running")
            return result_of(handle.plan_id, result.result())
        except PlanFailed as error:
            return failure_of(str(error), handle.plan_id)
        except PlanCancelled as error:
            return failure_of(str(error), handle.plan_id, "cancelled")
        finally:
            for each in tasks:
                each.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, caller: Caller, handle: PlanHandle) -> Outcome | None:
        """Report each turn, and put questions; returns what ends the call before the plan ends."""
        eliciting: asyncio.Task[Outcome | None] | None = None
        current: Any = None
        changes = handle.watch()
        following: asyncio.Future[Any] = asyncio.ensure_future(anext(changes, None))
        try:
            while True:
                waits = {following} if eliciting is None else {following, eliciting}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if eliciting is not None and eliciting.done():
                    if (asked := eliciting.result()) is not None:
                        return asked
                    eliciting = None
                if not following.done():
                    continue
                change = following.result()
                if change is None or change.status.finished:
                    return None
                following = asyncio.ensure_future(anext(changes, None))
                message = f"{change.status}: {change.current_state}" if change.current_state else str(change.status)
                await caller.context.session.report_progress(float(change.revision), message=message)
                question = await self._question(handle)
                if (question.key if question is not None else None) == current:
                    continue
                current = question.key if question is not None else None
                if eliciting is not None:  # somebody has answered elsewhere
                    eliciting.cancel()
                    eliciting = None
                if question is not None:
                    if (asked := self._unaskable(caller, handle, question)) is not None:
                        return asked
                    eliciting = asyncio.ensure_future(self._elicit(caller, handle, question))
        finally:
            pending = [each for each in (following, eliciting) if each is not None]
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await changes.aclose()

    async def _question(self, handle: PlanHandle) -> Question | None:
        return question_of(await handle.state(), await self._backend.registry.human_events())

    def _may_answer(self, user: str) -> bool:
        return self._approvers is None or user in self._approvers

    def _unaskable(self, caller: Caller, handle: PlanHandle, question: Question, note: str = "") -> Outcome | None:
        """The end of a call whose client cannot be asked while it waits; None if it can.

        Args:
            caller: The call.
            handle: Its plan.
            question: What the plan asks.
            note: Faults of an earlier answer.
        """
        form = form_of(question)
        if question.for_people and not self._may_answer(caller.user):
            return asked_of(handle.plan_id, question, f"{caller.user} may not decide it here. {_elsewhere(handle)}")
        if form is None or not caller.can_elicit:
            how = _elsewhere(handle) if question.for_people else f"Answer it with the tool {goals.ANSWER}."
            return asked_of(handle.plan_id, question, how)
        if not caller.is_modern:
            return None
        params: Any = form.params
        params.message += note
        state = json.dumps({"plan": handle.plan_id, "request": question.approval.request_id})
        return InputRequiredResult(input_requests={_FORM: form}, request_state=state)

    async def _elicit(self, caller: Caller, handle: PlanHandle, question: Question) -> Outcome | None:
        """Ask a person by a form, within the call; None when the plan goes on."""
        form, note = form_of(question), ""
        assert form is not None
        for _ in range(MAX_ROUNDS):
            params: Any = form.params
            try:
                answer = await caller.context.session.elicit_form(
                    f"{params.message}{note}", params.requested_schema, caller.context.request_id
                )
                if await answer_form(handle, question, answer, caller.user):
                    return None
                break
            except (MCPError, ValidationError):  # the client cannot ask, though it says so
                break
            except InvalidAnswer as error:
                note = f"\n{'; '.join(error.faults)}"
            except (NotAwaited, PlanFinished) as error:
                if (now := await self._question(handle)) is None or now.key != question.key:
                    return None  # it is answered by now
                note = f"\n{error}"
        return asked_of(handle.plan_id, question, f"It was not answered. {_elsewhere(handle)}")

    # Answers that come with another call.

    async def _resumed(self, caller: Caller, params: CallToolRequestParams, *, is_goal: bool) -> Outcome:
        """Go on with the plan of an earlier call, with the answer to what it has asked.

        What the client returns is not trusted: it may name any plan, and answer only what its user may.
        """
        try:
            state = json.loads(params.request_state or "")
            plan_id, request_id = str(state["plan"]), state["request"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise MCPError(INVALID_PARAMS, "the request state is none of this server") from None
        handle = self._handle({"plan_id": plan_id})
        fields = await handle.state()
        is_own = fields.get("goal_event") == params.name and (fields.get("user_id") or caller.user) == caller.user
        if not (is_own if is_goal else (params.arguments or {}).get("plan_id") == plan_id):
            raise Refused(404, f"plan {plan_id[:200]} is none of {params.name} that {caller.user} has begun")
        question = await self._question(handle)
        answer = (params.input_responses or {}).get(_FORM)
        if question is not None and question.approval.request_id == request_id and isinstance(answer, ElicitResult):
            if question.for_people and not self._may_answer(caller.user):
                return asked_of(plan_id, question, f"{caller.user} may not decide it here. {_elsewhere(handle)}")
            try:
                if not await answer_form(handle, question, answer, caller.user):
                    return asked_of(plan_id, question, f"It was not answered. {_elsewhere(handle)}")
            except NotAwaited as error:
                if (now := await self._question(handle)) is not None and now.key == question.key:
                    return asked_of(plan_id, question, f"{error}. {_elsewhere(handle)}")
            except InvalidAnswer as error:
                faults = "; ".join(error.faults)
                again = self._unaskable(caller, handle, question, f"\n{faults}")
                return again or asked_of(plan_id, question, faults)
            except PlanFinished:
                pass
        return await self._follow(caller, handle)

    async def _answered(self, caller: Caller, handle: PlanHandle, data: Any) -> Outcome:
        """Give a plan the input that it waits for; a decision is refused, since a model may have made the call."""
        question = await self._question(handle)
        if question is None:
            raise Refused(409, f"plan {handle.plan_id} does not wait for input")
        if question.for_people:
            return failure_of(
                f"plan {handle.plan_id} waits for the answer of a person, which no tool can give. {_elsewhere(handle)}",
                handle.plan_id,
                "input_required",
            )
        if not isinstance(data, dict):
            raise Refused(422, "data: allowed: an object")
        await give_input(handle, question, sendable(data), caller.user)
        return await self._follow(caller, handle)


def _elsewhere(handle: PlanHandle) -> str:
    return (
        f"A person can answer it in the console, or with `plancast approvals`; {goals.RESULT} waits for the result of "
        f"plan {handle.plan_id}."
    )
