"""SoormaTasks: runs plancast's tasks on Soorma's workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from plancast.errors import RetryableError, TerminalError
from plancast.integrations.soorma.events import (
    MARK,
    is_own,
    may_answer,
    outcome_of,
    read_event,
    task_correlation,
    write_event,
)
from plancast.worker import TaskContext, Worker
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject
from plancast_bus.events.envelope import EventEnvelope, EventTopic

if TYPE_CHECKING:
    from plancast_bus.jetstream.core_nats import CoreNats

logger = logging.getLogger(__name__)


class SoormaTasks:
    """A worker that publishes each task on Soorma's bus and returns the response.

    A task is in flight until its response, and kept alive. Without a response, or when this process ends, it is
    requested again with the same id and correlation id: a worker may see it twice.

    Args:
        theirs: Core NATS with Soorma's events.
        tasks: Event types of the tasks.
        prefix: Prefix of the deployment, which marks published events.
        root: Prefix of Soorma's subjects, before the topic.
        seconds: Maximum wait for a response before the task is requested again.
        attempts: Number of requests before the task fails.
    """

    def __init__(
        self,
        theirs: CoreNats,
        tasks: Iterable[str],
        *,
        prefix: str,
        root: str = "soorma.events",
        seconds: float = 300.0,
        attempts: int = 3,
    ) -> None:
        self._theirs = theirs
        self._prefix = prefix
        self._root = root
        self._seconds = seconds
        self._waiting: dict[str, tuple[EventEnvelope, asyncio.Future[EventEnvelope]]] = {}
        """Requests and the futures of their responses, by correlation id."""
        self.worker = Worker("soorma", concurrency=1000, max_attempts=attempts)
        """The worker for a task runner."""
        for task in tasks:
            self.worker.on_task(task, description="Done by a worker on Soorma's bus")(self._ask)

    async def start(self) -> None:
        """Subscribe to responses; every bridge receives all of them and picks those to its own requests."""
        await self._theirs.subscribe(f"{self._root}.{EventTopic.ACTION_RESULTS}", self._hear)

    async def _ask(self, task: TaskContext, context: Any) -> Any:
        request = task.event
        correlation_id = task_correlation(request.id)
        payload = write_event(request, self._prefix, correlation_id=correlation_id)
        answer: asyncio.Future[EventEnvelope] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = request, answer
        try:
            await self._theirs.publish(f"{self._root}.{request.topic}", payload, {MARK: self._prefix})
            await self._theirs.flush()
            if not request.response_event:
                return None
            async with asyncio.timeout(self._seconds):
                response = await answer
        except BusUnavailable as error:
            raise RetryableError(str(error), retry_after=1.0) from error
        except TimeoutError:
            raise RetryableError(
                f"no Soorma worker has responded to {request.type} in {self._seconds:g} s", retry_after=0.0
            ) from None
        finally:
            del self._waiting[correlation_id]
        outcome = outcome_of(response.data)
        if outcome.error is not None and response.type == request.response_event:
            raise TerminalError(outcome.error)
        if response.type != request.response_event:
            await task.respond_with(response.type, outcome.result if outcome.error is None else response.data)
        return outcome.result

    async def _hear(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        if headers.get(MARK) == self._prefix or not self._waiting:
            return
        try:
            event = read_event(payload, str(EventTopic.ACTION_RESULTS))
        except (InvalidEnvelope, InvalidSubject):
            return  # reported by the bridge
        waiting = self._waiting.get(event.correlation_id)
        if waiting is None or is_own(event, headers, self._prefix):
            return
        request, answer = waiting
        if not answer.done() and may_answer(request.tenant_id, event.tenant_id):
            answer.set_result(event)
