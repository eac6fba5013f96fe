"""PlanRequests: the protocol's methods over a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from uuid import uuid4

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.routes import ServerCallContextBuilder
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.requests import Request

from plancast.a2a_client.values import CURSOR_HEADER
from plancast.client.changes import Cursor
from plancast.console.a2a_server.card import card_of
from plancast.console.a2a_server.errors import protocol_errors
from plancast.console.a2a_server.listing import tasks_page
from plancast.console.a2a_server.messages import check_modes
from plancast.console.a2a_server.plans import Caller, Sent, TaskPlans
from plancast.console.a2a_server.push_configs import MAX_CONFIGS, Push, PushConfigs, Pushes, push_of
from plancast.console.a2a_server.tasks import START, Place, context_of
from plancast.console.routes.plans import stable_id
from plancast.console.service.backend import Backend

_URL, _GONE = "url", "gone"


class Login(User):
    """A user of the console, who has sent a token."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class RequestContexts(ServerCallContextBuilder):
    """Passes on what the console's guard has found out about a request.

    Args:
        url_of: Where the agent takes requests, as the client of a request names it.
    """

    def __init__(self, url_of: Callable[[Request], str]) -> None:
        self._url_of = url_of

    def build(self, request: Request) -> ServerCallContext:
        """The context of a request."""
        state = {"headers": dict(request.headers), _URL: self._url_of(request), _GONE: lambda: _gone(request)}
        return ServerCallContext(user=Login(request.state.user), state=state)


class PlanRequests(RequestHandler):
    """Answers requests.

    Args:
        backend: The deployment.
        plans: Its plans, as tasks.
        configs: Where clients want events sent.
    """

    def __init__(self, backend: Backend, plans: TaskPlans, configs: PushConfigs) -> None:
        self._backend = backend
        self._plans = plans
        self._configs = configs
        self._tenant = backend.settings.console.a2a_tenant

    def _caller(self, context: ServerCallContext) -> Caller:
        if self._tenant and context.tenant not in ("", self._tenant):
            raise InvalidParamsError(f"tenant: allowed: {self._tenant!r}, or nothing")
        after: str | None = context.state["headers"].get(CURSOR_HEADER)
        try:
            place = None if after is None else Place.read(after)
        except ValueError as error:
            raise InvalidParamsError(f"{CURSOR_HEADER}: {error}") from error
        return Caller(context.user.user_name, self._tenant or context.tenant, place)

    # Messages.

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Begin or answer a plan, and wait for its end or its question, unless it is not to be waited for."""
        with protocol_errors():
            caller = self._caller(context)
            sent = await self._send(caller, params)
            if not params.configuration.return_immediately:
                with self._backend.streams.held_by(caller.user):
                    await _first_of(self._end_of(Caller(caller.user, caller.tenant), sent), context.state[_GONE]())
            return await self._plans.task(caller, sent.handle)

    async def _end_of(self, caller: Caller, sent: Sent) -> None:
        async with aclosing(self._plans.follow(caller, sent)) as events:
            async for _ in events:
                pass

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Begin or answer a plan, and follow it from there."""
        with protocol_errors():
            caller = self._caller(context)
            with self._backend.streams.held_by(caller.user):
                sent = await self._send(caller, params)
                async with aclosing(self._plans.follow(caller, sent)) as events:
                    async for event in events:
                        yield event

    async def _send(self, caller: Caller, params: SendMessageRequest) -> Sent:
        options = params.configuration
        check_modes(options.accepted_output_modes)
        if options.HasField("task_push_notification_config"):
            await self._require_push()
            push_of(options.task_push_notification_config, START, "-", caller.tenant)
        sent = await self._plans.send(caller, params.message)
        if options.HasField("task_push_notification_config"):
            name = stable_id(params.message.message_id)  # a message that comes again is no second configuration
            push = push_of(options.task_push_notification_config, sent.place, name, caller.tenant)
            await self._add_push(sent.handle.plan_id, push)
        return sent

    # Tasks.

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """The task of a plan."""
        with protocol_errors():
            caller = self._caller(context)
            return await self._plans.task(caller, self._plans.handle(caller, params.id))

    @validate_request_params
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """A page of the plans, those that have moved last first."""
        with protocol_errors():
            caller = self._caller(context)
            with self._backend.looks.held_by(caller.user):
                return await tasks_page(self._backend, self._plans, caller, params)

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a plan."""
        with protocol_errors():
            return await self._plans.cancel(self._caller(context), params.id, "cancelled by an A2A client")

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Follow a plan, from now on or after the cursor in the request's headers."""
        with protocol_errors():
            caller = self._caller(context)
            with self._backend.streams.held_by(caller.user):
                plan, place = await self._plans.find(caller, params.id), START
                context_id = params.id
                if plan is not None:
                    if plan.status.finished and caller.after is None:
                        raise UnsupportedOperationError(f"task {params.id[:200]} is over: get it")
                    context_id, place = context_of(plan.plan), Place(Cursor(plan.plan.revision))
                sent = Sent(self._plans.handle(caller, params.id), context_id, place)
                async with aclosing(self._plans.follow(caller, sent)) as events:
                    async for event in events:
                        yield event

    @validate_request_params
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """The card with the skills."""
        with protocol_errors():
            return await card_of(
                self._backend,
                context.state[_URL],
                self._tenant,
                with_skills=True,
                pushes=await self._configs.is_allowed(),
            )

    # Push notifications.

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Have the events of a task sent to a URL, from now on."""
        with protocol_errors():
            caller = self._caller(context)
            plan = await self._plans.find(caller, params.task_id)
            if plan is not None and plan.status.finished:
                raise UnsupportedOperationError(f"task {params.task_id[:200]} is over")
            key = params.task_id if plan is None else plan.checkpoint.correlation_id
            place = START if plan is None else Place(Cursor(plan.plan.revision))
            await self._require_push()
            push = push_of(params, place, uuid4().hex, caller.tenant)
            await self._add_push(key, push)
            return push.to_config(params.task_id)

    async def _add_push(self, key: str, push: Push) -> None:

        def add(pushes: Pushes) -> Pushes:
            there = pushes.entry(push.id)
            if there is not None and there.to_config(key) == push.to_config(key):
                return pushes  # and goes on where it is
            changed = pushes.with_entry(push)
            if len(changed.entries) > MAX_CONFIGS:
                raise InvalidParamsError(
                    f"task {key[:200]} has {MAX_CONFIGS} push configurations, which is the maximum"
                )
            return changed

        await self._configs.change(key, add)

    async def _pushes(self, context: ServerCallContext, task_id: str) -> tuple[str, Pushes]:
        """The configurations of a task, with the key of its plan."""
        await self._require_push()
        caller = self._caller(context)
        plan = await self._plans.find(caller, task_id)
        key = task_id if plan is None else plan.checkpoint.correlation_id
        return key, (await self._configs.read(key)).seen_by(caller.tenant)

    async def _require_push(self) -> None:
        if not await self._configs.is_allowed():
            raise PushNotificationNotSupportedError(
                "the login of this server at NATS may not store push configurations"
            )

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """A push configuration."""
        with protocol_errors():
            push = (await self._pushes(context, params.task_id))[1].entry(params.id)
            if push is None:
                raise TaskNotFoundError(f"task {params.task_id[:200]} has no push configuration {params.id[:200]!r}")
            return push.to_config(params.task_id)

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """The push configurations of a task, which are few: there is one page."""
        with protocol_errors():
            entries = (await self._pushes(context, params.task_id))[1].entries
            return ListTaskPushNotificationConfigsResponse(configs=[each.to_config(params.task_id) for each in entries])

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Send no further events to a URL; one that is gone already is no error."""
        with protocol_errors():
            key, _ = await self._pushes(context, params.task_id)
            await self._configs.change(key, lambda pushes: pushes.without(params.id))


async def _gone(request: Request) -> None:
    """Wait until the client of a request, whose body was read, has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first_of(*waits: Awaitable[None]) -> None:
    """Wait for the first end, and cancel the others; raises what has ended it."""
    tasks = list(map(asyncio.ensure_future, waits))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        each.result()
