"""TaskExecutor: calls the handler of one kind of task, and makes the answer of what comes of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
import traceback
from collections import deque
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
from plancast_actors.workers.responses import Answer, check_data, expected_answer, failure_of, make_answer
from plancast_bus.events.envelope import EventEnvelope

logger = logging.getLogger(__name__)

ContextFactory = Callable[[EventEnvelope], PlatformContext]
"""Makes the context of a handler that is about to handle a request."""


class Places:
    """So many tasks may be done at once; further ones wait, first come, first served.

    A semaphore whose taking, where there is nothing to wait for, is a plain call.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place at once; False when none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place, and take it."""
        if self.take():
            return
        handed_over = asyncio.get_running_loop().create_future()
        self._waiting.append(handed_over)
        try:
            await handed_over
        except asyncio.CancelledError:
            if not handed_over.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Leave a place to the next that waits."""
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():
                next_one.set_result(None)
                return
        self._free += 1


class WorkerRoom:
    """How many tasks a worker does at once, over all kinds of them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.places = Places(worker.concurrency)
        self.suspects = asyncio.Lock()
        """Held by the one task that is being done during which processes have ended before."""
        self.threads = ThreadPoolExecutor(worker.concurrency, thread_name_prefix=worker.name)
        self._held = 0
        self._left = asyncio.Event()

    async def free(self) -> int:
        """How many more tasks may be fetched; waits until there is room for one."""
        while self._held >= self.worker.concurrency:
            self._left.clear()
            await self._left.wait()
        return self.worker.concurrency - self._held

    def enter(self) -> None:
        """A task was fetched."""
        self._held += 1

    def leave(self) -> None:
        """A task is settled."""
        self._held -= 1
        self._left.set()


@dataclass(slots=True)
class TaskCounts:
    """What became of tasks, in numbers of them since the start."""

    answered: int = 0
    """Done, also those that nobody wanted an answer of."""
    failed: int = 0
    """Answered with a failure."""
    retried: int = 0
    """Given back, to be tried again."""
    put_aside: int = 0
    """Made dead letters."""


class TaskExecutor:
    """Does tasks of one kind, one call for each."""

    def __init__(
        self,
        room: WorkerRoom,
        definition: TaskDefinition,
        context_factory: ContextFactory,
        counts: TaskCounts,
        max_lost: int = 10,
    ) -> None:
        self.room = room
        self.definition = definition
        self.counts = counts
        self.samples: Samples | None = None
        self._context_factory = context_factory
        self._max_lost = max_lost
        self._is_async = _is_async(definition.handler)
        self.trusted = min(TRUSTED, max_lost)
        """Deliveries before attempts are recorded by :class:`~plancast_actors.workers.delivery_record.TaskRecord`."""

    async def run(self, request: EventEnvelope, attempt: int) -> Answer | None:
        """Call the handler, and make the answer of what it returns or raises.

        Raises:
            RetryableError: the task is to be tried again, unless it was tried often enough.
        """
        failure: BaseException
        measured = self.samples is not None and not self.counts.answered & UNSAMPLED
        begun = time.perf_counter() if measured else None
        try:
            answer = await contained(partial(self._answered, request, attempt))
            self.counts.answered += 1
            if begun is not None and self.samples is not None:
                self.samples.stage("task", time.perf_counter() - begun)
            return answer
        except RetryableError:
            raise
        except Exception as error:
            failure = error
        return self.failure(request, failure)

    async def _answered(self, request: EventEnvelope, attempt: int) -> Answer | None:
        definition = self.definition
        if definition.schema is not None:
            check_data(definition, request.data)
        task = TaskContext(request, attempt)
        context = self._context_factory(request)
        if self._is_async:
            returned = await definition.handler(task, context)
        else:
            returned = await self._call_in_thread(task, context)
        event_type, data = task.answer or (expected_answer(request, definition), returned)
        return None if event_type is None else make_answer(request, definition, event_type, _sendable(data))

    def is_given_up(self, lost: int) -> bool:
        """Whether processes have ended too often while they did a task."""
        return lost > self._max_lost

    def failure(self, request: EventEnvelope, failure: BaseException) -> Answer | None:
        """Log a failure, and make the answer that tells of it; None when nobody waits for one."""
        self.counts.failed += 1
        if (work := WORK.get()) is not None:
            work.fail(type(failure).__name__)
        known = isinstance(failure, (TerminalError, RetryableError))
        # As text, and not as exc_info, which would carry the handler's words to every log as they are.
        told = "" if known else "\n" + redact("".join(traceback.format_exception(failure)).rstrip())
        logger.warning("task failed: %s%s", type(failure).__name__, told, extra=self.about(request))
        return failure_of(request, self.definition, failure)

    async def _call_in_thread(self, task: TaskContext, context: PlatformContext) -> Any:
        call = partial(contextvars.copy_context().run, _call_plain, self.definition.handler, task, context)
        returned = await asyncio.get_running_loop().run_in_executor(self.room.threads, call)
        return await returned if inspect.isawaitable(returned) else returned

    def about(self, request: EventEnvelope) -> dict[str, Any]:
        """What a log line says of a task: ids, no data."""
        return {
            "event_id": request.id,
            "plan_id": request.plan_id,
            "task": request.type,
            "worker": self.room.worker.name,
        }


def given_up(lost: int) -> str:
    """Why a task is not tried again."""
    return f"given up: processes ended while they were doing this task (losses: {lost})"


def _sendable(data: Any) -> Any:
    try:
        return {} if data is None else plain(data)
    except (TypeError, ValueError) as error:
        raise TerminalError(f"what the handler returned cannot be sent: {error}") from error


def _call_plain(handler: TaskHandler, task: TaskContext, context: PlatformContext) -> Any:
    try:
        return handler(task, context)
    except StopIteration as error:  # no future can carry it
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # nor should one carry this: a GeneratorExit would end who waits for it
        raise aborted_by(error) from error


def _is_async(handler: TaskHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
