"""SendTask and FollowTask: handlers of the tasks by which a plan uses a remote agent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from plancast.a2a_client.options import AgentOptions
from plancast.errors import InvalidApp, NotBegun, RetryableError, TerminalError
from plancast.json_values.normalize import plain

if TYPE_CHECKING:
    from a2a.types import Task

    from plancast.a2a_client.remote import RemoteAgent, Report

logger = logging.getLogger(__name__)
MAX_MESSAGE: Final = 1_000
LATE_SECONDS: Final = 10.0
"""Seconds for which a cancelled task waits for the agent's answer, to cancel what it has begun."""


class _Task(Protocol):
    attempt: int
    cancelled: bool

    @property
    def data(self) -> Any: ...

    @property
    def idempotency_key(self) -> str: ...

    async def progress(self, fraction: float | None = None, message: str = "") -> None: ...

    async def stream(self, chunk: Any) -> None: ...

    async def respond_with(self, event_type: str, data: Any = None) -> None: ...


@dataclass(frozen=True)
class SendTask:
    """Sends a message.

    The task's data are ``data``, and ``task`` and ``context`` of the agent's task that waits for it, if one does.
    """

    options: AgentOptions
    replied: str
    """Event with which an agent's message, in place of a task, is answered."""

    async def __call__(self, task: _Task, context: Any) -> Any:
        """Return the ids of the agent's task, which the plan remembers; raises as :meth:`RemoteAgent.send` does."""
        remote, key, data = _remote(self.options), task.idempotency_key, plain(task.data)
        try:
            async with remote.RemoteAgent.connected(self.options) as agent:
                sending = asyncio.create_task(
                    agent.send(
                        data.get("data") or {},
                        key,
                        task_id=str(data.get("task") or ""),
                        context_id=str(data.get("context") or key),
                        again=task.attempt > 1,
                    )
                )
                try:
                    answer = await asyncio.shield(sending)
                except asyncio.CancelledError:
                    await _undo(agent, sending, is_over=task.cancelled)
                    raise
        except RetryableError as error:
            error.retry_after = error.retry_after or _pause(task.attempt)
            raise
        if not hasattr(answer, "status"):
            await task.respond_with(self.replied, {"result": remote.result_of([answer])})
            return None
        return {"task": answer.id, "context": answer.context_id}


@dataclass(frozen=True)
class FollowTask:
    """Follows a task of the agent to its end: the data are ``task``, its id."""

    options: AgentOptions
    asked: str
    """Event with which a task that waits for input is answered."""

    async def __call__(self, task: _Task, context: Any) -> Any:
        """Return the task's result.

        Raises:
            TerminalError: the task has failed, was cancelled or is gone, or the agent wants a login.
        """
        remote, name = _remote(self.options), str(plain(task.data).get("task") or "")

        async def report(event: Report) -> None:
            with suppress(TypeError, ValueError):  # what is too large to be shown
                if event.message or event.fraction is not None:
                    await task.progress(event.fraction, event.message[:MAX_MESSAGE])
                for chunk in event.chunks:
                    await task.stream(chunk)

        for lost in count(1):
            try:
                async with remote.RemoteAgent.connected(self.options) as agent:
                    try:
                        found = await agent.follow(name, report)
                    except asyncio.CancelledError:
                        if task.cancelled:  # else this process ends, and another one follows
                            await agent.cancel(name)
                        raise
                return await self._answer(task, remote, found)
            except NotBegun as error:  # the task goes on meanwhile, however long the agent is away
                logger.info("%s", error)
            await asyncio.sleep(_pause(lost))
        raise AssertionError

    async def _answer(self, task: _Task, remote: Any, found: Task) -> Any:
        from a2a.types import TaskState

        state, said = found.status.state, remote.text_of(found.status.message)
        if state == TaskState.TASK_STATE_INPUT_REQUIRED:
            await task.respond_with(self.asked, remote.asked_of(found.status.message))
            return None
        if state != TaskState.TASK_STATE_COMPLETED:
            what = TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", " ")
            raise TerminalError(f"the task of {self.options.place} is {what}" + (f": {said}" if said else ""))
        has_message = not found.artifacts and bool(found.status.message.parts)
        return {"result": remote.result_of([found.status.message] if has_message else list(found.artifacts))}


async def _undo(agent: RemoteAgent, sending: asyncio.Task[Any], *, is_over: bool) -> None:
    """Cancel what a message that was sent just now has begun, if its plan is over."""
    if is_over:
        with suppress(Exception):
            answer = await asyncio.wait_for(asyncio.shield(sending), LATE_SECONDS)
            if hasattr(answer, "status"):
                await agent.cancel(answer.id)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


def _pause(attempt: int) -> float:
    return float(min(2 ** min(attempt, 6), 60))


def _remote(options: AgentOptions) -> Any:
    """The module that needs the SDK.

    Raises:
        InvalidApp: it is not installed.
    """
    try:
        from plancast.a2a_client import remote
    except ModuleNotFoundError as error:
        raise InvalidApp(f"agent {options.name!r} needs `pip install 'plancast[a2a]'`: {error}") from error
    return remote
