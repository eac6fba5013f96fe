"""RemoteAgent: sends messages to a remote agent, and follows its tasks across lost connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import httpx
from a2a.client import (
    A2ACardResolver,
    A2AClientError,
    AgentCardResolutionError,
    Client,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
)
from a2a.types import (
    AgentCard,
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, InternalError, TaskNotFoundError

from plancast.a2a_client.bounds import Unreadable, bound
from plancast.a2a_client.options import AgentOptions
from plancast.a2a_client.values import (
    CURSOR,
    CURSOR_HEADER,
    PROGRESS,
    from_struct,
    json_of,
    part_of,
    struct_of,
    value_of,
)
from plancast.errors import NotBegun, RetryableError, TerminalError

logger = logging.getLogger(__name__)
CONNECT_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 60.0
"""Seconds without a byte after which a connection is made anew."""
SEND_SECONDS: Final = 300.0
"""Longest wait for the answer to a message, for agents that answer at the end of the task."""
CANCEL_SECONDS: Final = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
"""Seconds before a task is looked at again; they double while nothing comes."""
MAX_ERROR: Final = 2_000
"""Longest text of an agent's error, in characters."""
ENDED: Final = frozenset({
    TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
})  # fmt: skip
INTERRUPTED: Final = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
_LOST: Final = (A2AClientError, InternalError)
"""Errors after which it is not known what the agent has done: a connection, a gateway, the agent itself."""


@dataclass(frozen=True)
class Report:
    """An event of a running task: progress, or a piece of its output."""

    message: str = ""
    fraction: float | None = None
    chunks: tuple[Any, ...] = ()


class RemoteAgent:
    """A connection to a remote agent, for one call of a handler.

    Args:
        options: The agent.
        client: The SDK's client.
        sender: The SDK's client for messages, whose answers are no streams: tasks are followed apart.
        card: The agent's card.
    """

    def __init__(self, options: AgentOptions, client: Client, sender: Client, card: AgentCard) -> None:
        self._options = options
        self._client = client
        self._sender = sender
        self._card = card

    @classmethod
    @asynccontextmanager
    async def connected(cls, options: AgentOptions) -> AsyncIterator[RemoteAgent]:
        """Read the agent's card; the connection is made with the first request.

        Raises:
            NotBegun: it cannot be read.
            TerminalError: it is too large, or names no interface that is spoken here, or one that must not get the
                headers.
        """
        timeout = httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS)
        headers = {**options.headers, "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [bound]}) as http:
            try:
                card = await A2ACardResolver(http, options.address).get_agent_card("/")
            except AgentCardResolutionError as error:
                if error.status_code in (400, 401, 403, 404):
                    raise TerminalError(f"{options.place} refuses its card (status {error.status_code})") from error
                if isinstance(error.__cause__, Unreadable):
                    raise TerminalError(f"{options.place} has no readable card: {error.__cause__}") from error
                raise NotBegun(f"{options.place} cannot be reached: {_text(error)}") from error
            if options.headers and not all(options.is_origin_of(each.url) for each in card.supported_interfaces):
                raise TerminalError(
                    f"{options.place} names another host, which must not get the headers: name its card"
                )
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC", "HTTP+JSON"])
            try:
                client = ClientFactory(config).create(card)
                sender = ClientFactory(replace(config, streaming=False)).create(card)
            except ValueError as error:
                raise TerminalError(f"{options.place}: {_text(error)}") from error
            yield cls(options, client, sender, card)

    async def send(self, data: Any, message_id: str, *, task_id: str = "", context_id: str = "", again: bool) -> Any:
        """Send a message, without waiting for its task; returns the task, or the message that answers it.

        Args:
            data: The message's data.
            message_id: The same for each attempt.
            task_id: The task that waits for the message; empty: it begins one.
            context_id: The message's context, by which its task is found again.
            again: It may have been sent before.

        Raises:
            NotBegun: it was not sent.
            RetryableError: it may have been.
            TerminalError: the agent refuses it.
        """
        if again and not task_id and (found := await self._found(context_id)) is not None:
            return found
        skill = self._options.skill
        if skill is None and len(self._card.skills) == 1:
            skill = self._card.skills[0].id
        is_text = isinstance(data, dict) and data.keys() == {"text"} and isinstance(data["text"], str)
        message = Message(
            message_id=message_id,
            role=Role.ROLE_USER,
            parts=[part_of(data["text"] if is_text else data)],
            task_id=task_id,
            context_id=context_id,
            metadata=struct_of({} if skill is None or task_id else {"skill": skill}),
        )
        request = SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=True))
        context = ClientCallContext(timeout=SEND_SECONDS)
        try:
            async for event in self._sender.send_message(request, context=context):
                return event.task if event.HasField("task") else event.message
        except A2AError as error:
            raise self._failure(error) from error
        raise RetryableError(f"{self._options.place} has answered nothing")

    def _failure(self, error: A2AError) -> Exception:
        """The error for a request that has no answer."""
        cause, place = error.__cause__, self._options.place
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            return NotBegun(f"{place} cannot be reached")
        if isinstance(cause, Unreadable):
            return TerminalError(f"{place}: {cause}")
        status = cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else 0
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return NotBegun(f"{place} is overloaded (status {status})")
        if isinstance(error, _LOST) and not (400 <= status < 500 and status != HTTPStatus.REQUEST_TIMEOUT):
            return RetryableError(f"the answer of {place} is lost: {_text(error)}")
        return TerminalError(f"{place} refuses the request: {_text(error)}")

    async def _found(self, context_id: str) -> Task | None:
        """The task of a message that was sent before; None if there is none, or the agent lists no tasks."""
        with suppress(A2AError, httpx.HTTPError):
            page = await self._client.list_tasks(ListTasksRequest(context_id=context_id))
            return next((each for each in page.tasks if each.context_id == context_id), None)
        return None

    async def follow(self, task_id: str, report: Callable[[Report], Awaitable[None]]) -> Task:
        """Follow a task until it ends or is interrupted, across lost connections, however long that takes.

        Args:
            task_id: The task.
            report: Called with each event of it. Where the agent's events have cursors, as those of plancast have,
                each comes once.

        Raises:
            TerminalError: the agent does not know the task, or refuses to show it.
        """
        cursor, pause = "0", FIRST_PAUSE
        while True:
            try:
                if self._card.capabilities.streaming:
                    with suppress(A2AError, httpx.HTTPError):
                        async for event in self._events(task_id, cursor):
                            cursor, pause = _cursor_of(event, cursor), FIRST_PAUSE
                            if (found := _report_of(event)) is not None:
                                await report(found)
                task: Task = await self._client.get_task(GetTaskRequest(id=task_id))
                if task.status.state in ENDED | INTERRUPTED:
                    return task
            except TaskNotFoundError as error:
                raise TerminalError(f"{self._options.place} has no task {task_id[:200]} any more") from error
            except A2AError as error:
                failure = self._failure(error)
                if isinstance(failure, TerminalError):
                    raise failure from error
                logger.info("%s is asked again: %s", self._options.place, _text(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _events(self, task_id: str, cursor: str) -> AsyncIterator[StreamResponse]:
        context = ClientCallContext(service_parameters={CURSOR_HEADER: cursor})
        async for event in self._client.subscribe(SubscribeToTaskRequest(id=task_id), context=context):
            yield event
            shown = event.task if event.HasField("task") else event.status_update
            if shown.status.state in ENDED | INTERRUPTED:
                return

    async def cancel(self, task_id: str) -> None:
        """Cancel a task; one that cannot be is logged."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._client.cancel_task(CancelTaskRequest(id=task_id))
        except (A2AError, httpx.HTTPError, TimeoutError) as error:
            logger.warning("a task of %s was not cancelled: %s", self._options.place, _text(error))


def result_of(artifacts: list[Artifact] | list[Message]) -> Any:
    """The result in artifacts or a message: the one object in it, else ``text``, and ``artifacts`` beside it."""
    parts: list[Part] = [part for each in artifacts for part in each.parts]
    if len(parts) == 1 and not (parts[0].HasField("raw") or parts[0].HasField("url")):
        value = _value_of(parts[0])
        if not isinstance(value, str):
            return value if isinstance(value, dict) else {"result": value}
    texts = [part.text for part in parts if part.HasField("text")]
    result: dict[str, Any] = {"text": "\n".join(texts)}
    if len(texts) < len(parts):
        result["artifacts"] = [json_of(each) for each in artifacts]
    return result


def text_of(message: Message) -> str:
    """The text of a message."""
    return "\n".join(part.text for part in message.parts if part.HasField("text"))[:MAX_ERROR]


def asked_of(message: Message) -> dict[str, Any]:
    """The question of a task that waits for input: its text, and its data if it has any."""
    data = next((_value_of(part) for part in message.parts if part.HasField("data")), None)
    return {"question": text_of(message) or "The remote agent waits for input.", "data": data}


def _value_of(part: Part) -> Any:
    try:
        return value_of(part)
    except ValueError:
        return part.text


def _cursor_of(event: StreamResponse, before: str) -> str:
    kind = event.WhichOneof("payload")
    found = from_struct(getattr(event, kind).metadata).get(CURSOR) if kind else None
    return found if isinstance(found, str) and found.isascii() and found.isprintable() and len(found) < 100 else before


def _report_of(event: StreamResponse) -> Report | None:
    if event.HasField("artifact_update"):
        update = event.artifact_update
        is_result = update.last_chunk and not update.append
        return None if is_result else Report(chunks=tuple(map(_value_of, update.artifact.parts)))
    if not event.HasField("status_update"):
        return None
    update = event.status_update
    fraction = from_struct(update.metadata).get(PROGRESS)
    valid = isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 <= fraction <= 1
    message = text_of(update.status.message)
    return Report(message, fraction if valid else None) if message or valid else None


def _text(error: Exception) -> str:
    return str(error)[:MAX_ERROR] or type(error).__name__
