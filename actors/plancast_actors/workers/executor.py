"""TaskExecutor: calls the handler of a task type and makes the response of its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from plancast.app_code import aborted_by, contained
from plancast.context import PlatformContext
from plancast.errors import RetryableError, TerminalError
from plancast.json_values.normalize import plain
from plancast.telemetry.redaction import redact
from plancast.telemetry.trace_scope import WORK
from plancast.worker import TaskContext, TaskDefinition, TaskHandler, Worker
from plancast_actors.telemetry.samples import UNSAMPLED, Samples
from plancast_actors.workers.delivery_record import TRUSTED
from plancast_actors.workers.responses import Response, check_data, make_failure, make_response, response_event_of
from plancast_bus.events.envelope import EventEnvelope

logger = logging.getLogger(__name__)

ContextFactory = Callable[[EventEnvelope], PlatformContext]
"""Makes a handler's context for a request."""


class WorkerCapacity:
    """Limits the concurrent tasks of a worker, over all task types."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.slots = asyncio.Semaphore(worker.concurrency)
        self.suspects = asyncio.Lock()
        """Held by the one running task among those during which processes have died before."""
        self.threads = ThreadPoolExecutor(worker.concurrency, thread_name_prefix=worker.name)
        self._fetched = 0
        self._left = asyncio.Event()

    async def free(self) -> int:
        """Number of tasks that may be fetched; waits until it is at least one."""
        while self._fetched >= self.worker.concurrency:
            self._left.clear()
            await self._left.wait()
        return self.worker.concurrency - self._fetched

    def enter(self) -> None:
        """Count a fetched task."""
        self._fetched += 1

    def leave(self) -> None:
        """Count a task that is settled."""
        self._fetched -= 1
        self._left.set()


@dataclass(slots=True)
class TaskCounts:
    """Outcomes of tasks since the start."""

    answered: int = 0
    """Succeeded, also those without a requested response."""
    failed: int = 0
    """Failed."""
    retried: int = 0
    """Returned to the stream for a retry."""
    put_aside: int = 0
    """Dead-lettered."""


class TaskExecutor:
    """Executes tasks of one type."""

    def __init__(
        self,
        capacity: WorkerCapacity,
        definition: TaskDefinition,
        context_factory: ContextFactory,
        counts: TaskCounts,
        max_lost: int = 10,
    ) -> None:
        self.capacity = capacity
        self.definition = definition
        self.counts = counts
        self.samples: Samples | None = None
        self._context_factory = context_factory
        self._max_lost = max_lost
        self._is_async = _is_async(definition.handler)
        self.trusted = min(TRUSTED, max_lost)
        """Deliveries before attempts are recorded; see :mod:`plancast_actors.workers.delivery_record`."""

    async def run(self, request: EventEnvelope, attempt: int) -> Response | None:
        """Call the handler, and make the response from its return value or exception.

        Raises:
            RetryableError: the handler asks for a retry.
        """
        measured = self.samples is not None and not self.counts.answered & UNSAMPLED
        begun = time.perf_counter() if measured else None
        try:
            response = await contained(partial(self._answered, request, attempt))
            self.counts.answered += 1
            if begun is not None and self.samples is not None:
                self.samples.stage("task", time.perf_counter() - begun)
            return response
        except RetryableError:
            raise
        except Exception as error:
            return self.failure(request, error)

    async def _answered(self, request: EventEnvelope, attempt: int) -> Response | None:
        definition = self.definition
        if definition.schema is not None:
            check_data(definition, request.data)
        task = TaskContext(request, attempt)
        context = self._context_factory(request)
        if self._is_async:
            returned = await definition.handler(task, context)
        else:
            returned = await self._call_in_thread(task, context)
        event_type, data = task.answer or (response_event_of(request, definition), returned)
        return None if event_type is None else make_response(request, definition, event_type, _sendable(data))

    def is_given_up(self, lost: int) -> bool:
        """True if too many processes have died during a task."""
        return lost > self._max_lost

    def failure(self, request: EventEnvelope, failure: BaseException) -> Response | None:
        """Log a failure and make its response; None when no response is expected."""
        self.counts.failed += 1
        if (work := WORK.get()) is not None:
            work.fail(type(failure).__name__)
        known = isinstance(failure, (TerminalError, RetryableError))
        # Not by exc_info, which would log the handler's text without redaction.
        details = "" if known else "\n" + redact("".join(traceback.format_exception(failure)).rstrip())
        logger.warning("task failed: %s%s", type(failure).__name__, details, extra=self.about(request))
        return make_failure(request, self.definition, failure)

    async def _call_in_thread(self, task: TaskContext, context: PlatformContext) -> Any:
        call = partial(contextvars.copy_context().run, _call_plain, self.definition.handler, task, context)
        returned = await asyncio.get_running_loop().run_in_executor(self.capacity.threads, call)
        return await returned if inspect.isawaitable(returned) else returned

    def about(self, request: EventEnvelope) -> dict[str, Any]:
        """Log fields of a task: ids, no data."""
        return {
            "event_id": request.id,
            "plan_id": request.plan_id,
            "task": request.type,
            "worker": self.capacity.worker.name,
        }


def given_up(lost: int) -> str:
    """Explain why a task is not retried."""
    return f"given up: processes died during this task (losses: {lost})"


def _sendable(data: Any) -> Any:
    try:
        return {} if data is None else plain(data)
    except (TypeError, ValueError) as error:
        raise TerminalError(f"the handler's result cannot be sent: {error}") from error


def _call_plain(handler: TaskHandler, task: TaskContext, context: PlatformContext) -> Any:
    try:
        return handler(task, context)
    except StopIteration as error:  # a future cannot hold it
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # a GeneratorExit in a future would end the awaiting coroutine
        raise aborted_by(error) from error


def _is_async(handler: TaskHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
