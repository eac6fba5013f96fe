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
from typing import TYPE_CHECKING, Any

from plancast.app_code import aborted_by, contained
from plancast.context import PlatformContext
from plancast.errors import RetryableError, TerminalError
from plancast.json_values.normalize import plain
from plancast.tasks.progress import TaskReporter
from plancast.telemetry.redaction import redact
from plancast.telemetry.trace_scope import WORK
from plancast.worker import TaskContext, TaskDefinition, TaskHandler, Worker
from plancast_actors.telemetry.samples import UNSAMPLED, Samples
from plancast_actors.workers.delivery_record import TRUSTED
from plancast_actors.workers.responses import Response, check_data, make_failure, make_response, response_event_of
from plancast_actors.workers.withdrawals import IN_FLIGHT, TaskWithdrawn
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.progress import ProgressNotes

if TYPE_CHECKING:
    from plancast_actors.workers.effect_attempt import EffectExecutor
    from plancast_actors.workers.effect_undo import UndoExecutor

logger = logging.getLogger(__name__)

ContextFactory = Callable[[EventEnvelope], PlatformContext]
"""Makes a handler's context for a request."""


class UnsendableResult(TerminalError):
    """Raised when a handler has returned what has no JSON form."""


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
    cancelled: int = 0
    """Without an answer: their plans no longer waited for them."""


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
        self.effects: EffectExecutor | UndoExecutor | None = None
        """Executes the tasks instead, if their effects are recorded."""
        self.samples: Samples | None = None
        self.progress: ProgressNotes | None = None
        """Receives what handlers report; None drops it."""
        self._context_factory = context_factory
        self._max_lost = max_lost
        self._is_async = _is_async(definition.handler)
        self.trusted = min(TRUSTED, max_lost)
        """Deliveries before attempts are recorded; see :mod:`plancast_actors.workers.delivery_record`."""

    async def run(self, request: EventEnvelope, attempt: int) -> Response | None:
        """Call the handler, and make the response from its return value or exception.

        Raises:
            RetryableError: the handler asks for a retry.
            TaskWithdrawn: nobody waits for the response.
        """
        measured = self.samples is not None and not self.counts.answered & UNSAMPLED
        begun = time.perf_counter() if measured else None
        try:
            event_type, data = await contained(partial(self.answer, request, attempt))
            response = None if event_type is None else make_response(request, self.definition, event_type, data)
            self.counts.answered += 1
            if begun is not None and self.samples is not None:
                self.samples.stage("task", time.perf_counter() - begun)
            return response
        except (RetryableError, TaskWithdrawn):
            raise
        except Exception as error:
            return self.failure(request, error)

    async def answer(self, request: EventEnvelope, attempt: int) -> tuple[str | None, Any]:
        """Call the handler; return type and data of the answer, and no type when none is expected.

        Raises:
            UnsendableResult: the data has no JSON form.
            TaskWithdrawn: nobody waits for the answer; not raised for tasks with recorded effects.
        """
        definition = self.definition
        if definition.schema is not None:
            check_data(definition, request.data)
        reporter = None if self.progress is None else TaskReporter(self.progress, request, attempt)
        task = TaskContext(request, attempt, reporter=reporter)
        context = self._context_factory(request)
        held, recorded = IN_FLIGHT.get(), self.effects is not None
        held.begin(task, recorded=recorded, cancels=self._is_async)
        try:
            if self._is_async:
                returned = await definition.handler(task, context)
            else:
                returned = await self._call_in_thread(definition.handler, task, context)
        finally:
            held.end(recorded=recorded)
            if reporter is not None:
                await reporter.flush()
        event_type, data = task.answer or (response_event_of(request, definition), returned)
        return event_type, data if event_type is None else sendable(data)

    async def call(self, handler: TaskHandler, request: EventEnvelope, *arguments: Any) -> Any:
        """Call another function of the app for a request, with a context as the last argument."""
        context = self._context_factory(request)
        if _is_async(handler):
            return await handler(*arguments, context)
        return await self._call_in_thread(handler, *arguments, context)

    def is_given_up(self, lost: int) -> bool:
        """True if too many processes have died during a task."""
        return lost > self._max_lost

    def failure(self, request: EventEnvelope, failure: BaseException) -> Response | None:
        """Log a failure and make its response; None when no response is expected."""
        self.log_failure(request, failure)
        return make_failure(request, self.definition, failure)

    def log_failure(self, request: EventEnvelope, failure: BaseException) -> None:
        """Count and log a failure."""
        self.counts.failed += 1
        if (work := WORK.get()) is not None:
            work.fail(type(failure).__name__)
        known = isinstance(failure, (TerminalError, RetryableError))
        # Not by exc_info, which would log the handler's text without redaction.
        details = "" if known else "\n" + redact("".join(traceback.format_exception(failure)).rstrip())
        logger.warning("task failed: %s%s", type(failure).__name__, details, extra=self.about(request))

    async def _call_in_thread(self, handler: TaskHandler, *arguments: Any) -> Any:
        call = partial(contextvars.copy_context().run, _call_plain, handler, *arguments)
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


def sendable(data: Any) -> Any:
    """The result of a handler as JSON.

    Raises:
        UnsendableResult: it has no such form.
    """
    try:
        return {} if data is None else plain(data)
    except (TypeError, ValueError) as error:
        raise UnsendableResult(f"the handler's result cannot be sent: {error}") from error


def _call_plain(handler: TaskHandler, *arguments: Any) -> Any:
    try:
        return handler(*arguments)
    except StopIteration as error:  # a future cannot hold it
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # a GeneratorExit in a future would end the awaiting coroutine
        raise aborted_by(error) from error


def _is_async(handler: TaskHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
