"""Worker: the tasks that it takes, and the handlers that do them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plancast.errors import InvalidApp
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.subjects import check_event_type

TaskHandler = Callable[..., Any]
_H = TypeVar("_H", bound=TaskHandler)


@dataclass(frozen=True)
class TaskDefinition:
    """A kind of task and who does it."""

    event_type: str
    """Type of the event that asks for the task."""
    handler: TaskHandler = field(repr=False)
    response_event: str | None = None
    """Type of the answer when the request names none."""
    description: str = ""
    schema: Any = None
    """What the request's data looks like: a JSON Schema dict or a pydantic model."""
    response_schema: Any = None
    worker: str = ""


@dataclass
class TaskContext:
    """One task, as its handler sees it."""

    event: EventEnvelope
    attempt: int = 1
    """1 for the first delivery."""
    answer: tuple[str, Any] | None = None
    """What :meth:`respond_with` was given."""

    @property
    def event_type(self) -> str:
        """Type of the request."""
        return self.event.type

    @property
    def data(self) -> Any:
        """What the request says."""
        return self.event.data

    @property
    def plan_id(self) -> str | None:
        """The plan that asked."""
        return self.event.plan_id

    @property
    def correlation_id(self) -> str:
        """The correlation id of the request, which its answer carries too."""
        return self.event.correlation_id

    async def respond_with(self, event_type: str, data: Any = None) -> None:
        """Answer with another event than the request asked for, such as ``web.search.no_results``.

        The last call counts. The answer is sent when the handler has returned.
        """
        self.answer = (check_event_type(event_type), {} if data is None else data)


class Worker:
    """Does tasks.

    Args:
        name: Unique in the app.
        concurrency: Tasks that one process of this worker does at once.
        max_attempts: How often a task is tried when its handler raises :class:`RetryableError`.
    """

    def __init__(self, name: str, *, concurrency: int = 100, max_attempts: int = 5) -> None:
        if not name:
            raise InvalidApp("a worker needs a name")
        if concurrency < 1 or max_attempts < 1:
            raise InvalidApp(f"worker {name!r}: concurrency and max_attempts are at least 1")
        self.name = name
        self.concurrency = concurrency
        self.max_attempts = max_attempts
        self.tasks: dict[str, TaskDefinition] = {}

    def __repr__(self) -> str:
        return f"Worker({self.name!r}, tasks={sorted(self.tasks)})"

    def on_task(
        self,
        event_type: str,
        response_event: str | None = None,
        *,
        description: str = "",
        schema: Any = None,
        response_schema: Any = None,
    ) -> Callable[[_H], _H]:
        """Register ``handler(task, context)``, plain or async, for a kind of task.

        What it returns is the answer, on the request's ``response_event``. What it raises is answered
        on ``<base>.failed`` as ``{"success": false, "error": ...}``; :class:`RetryableError` has the
        task tried again first. A plain function runs in a thread.
        """
        check_event_type(event_type)
        if response_event is not None:
            check_event_type(response_event)
        if event_type in self.tasks:
            raise InvalidApp(f"worker {self.name!r} takes the task {event_type!r} twice")

        def register(handler: _H) -> _H:
            self.tasks[event_type] = TaskDefinition(
                event_type, handler, response_event, description, schema, response_schema, self.name
            )
            return handler

        return register
