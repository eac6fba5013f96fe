"""Worker: task handlers, by the event types that they handle."""

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
    """A task type and its handler."""

    event_type: str
    """Type of the request."""
    handler: TaskHandler = field(repr=False)
    response_event: str | None = None
    """Type of the response when the request names none."""
    description: str = ""
    schema: Any = None
    """Schema of the request's data: a JSON Schema dict or a pydantic model."""
    response_schema: Any = None
    worker: str = ""


@dataclass
class TaskContext:
    """One task; the first argument of its handler."""

    event: EventEnvelope
    attempt: int = 1
    """1 for the first delivery."""
    answer: tuple[str, Any] | None = None
    """Arguments of the last :meth:`respond_with`."""

    @property
    def event_type(self) -> str:
        """Type of the request."""
        return self.event.type

    @property
    def data(self) -> Any:
        """Data of the request."""
        return self.event.data

    @property
    def plan_id(self) -> str | None:
        """Id of the requesting plan."""
        return self.event.plan_id

    @property
    def correlation_id(self) -> str:
        """Correlation id of the request and of its response."""
        return self.event.correlation_id

    async def respond_with(self, event_type: str, data: Any = None) -> None:
        """Respond with another event type than the requested one, such as ``web.search.no_results``.

        The last call counts. The response is sent when the handler has returned.
        """
        self.answer = (check_event_type(event_type), {} if data is None else data)


class Worker:
    """A set of task handlers that is deployed as one unit.

    Args:
        name: Unique in the app.
        concurrency: Most tasks in flight in one process of this worker.
        max_attempts: Most attempts at a task whose handler raises :class:`RetryableError`.
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
        """Register ``handler(task, context)``, plain or async, for a task type.

        The return value is sent on the request's ``response_event``. An exception is sent on ``<base>.failed`` as
        ``{"success": false, "error": ...}``; after :class:`RetryableError` the task is retried first. A plain
        function runs in a thread.
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
