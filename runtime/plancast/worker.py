"""Worker: task handlers, by the event types that they handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from plancast.declarations import declaration
from plancast.effects.effect import Effect, idempotency_key
from plancast.errors import InvalidApp
from plancast.mcp_client.options import ServerOptions
from plancast.mcp_client.tasks import ToolCall, ToolTasks
from plancast.mcp_client.tools import Tool
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.subjects import check_event_type
from plancast_bus.subjects import undo_type as undo_type

if TYPE_CHECKING:
    from plancast.tasks.progress import TaskReporter

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
    effect: Effect | None = None
    """Effect of the task outside; None: nothing that has to be recorded."""
    look_up: TaskHandler | None = field(default=None, repr=False)
    """Handler of :meth:`Worker.reconcile`."""
    has_undo: bool = False
    """True if the worker has a handler that undoes its done effects."""
    undoes: str = ""
    """Task type whose done effects the handler undoes (:meth:`Worker.compensate`); empty for other tasks."""

    @property
    def is_recorded(self) -> bool:
        """True if the ledger has a record of each of its effects: something has to be known of an earlier attempt."""
        effect = self.effect
        return effect is not None and (
            effect.key is not None or effect.repeat == "never" or self.look_up is not None or self.has_undo
        )


@dataclass
class TaskContext:
    """One task; the first argument of its handler."""

    event: EventEnvelope
    attempt: int = 1
    """1 for the first delivery."""
    answer: tuple[str, Any] | None = None
    """Arguments of the last :meth:`respond_with`."""
    cancelled: bool = False
    """True once nobody waits for the task: its plan has ended, or gone on without it.

    The coroutine of an async handler is then cancelled; a plain function may look here, and return. Nothing is answered
    or retried. A task with a recorded effect is not interrupted: it may look here too, and its outcome is recorded.
    """
    reporter: TaskReporter | None = field(default=None, repr=False)
    """Sends what :meth:`progress` and :meth:`stream` report; None drops it."""

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
    def idempotency_key(self) -> str:
        """Key for services that take one: the same for all attempts at this task, different for different tasks.

        40 hexadecimal digits. A fork of a plan repeats its acts under other keys.
        """
        return idempotency_key(self.event)

    @property
    def correlation_id(self) -> str:
        """Correlation id of the request and of its response."""
        return self.event.correlation_id

    async def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Report how far the task is to those who watch its plan (:meth:`PlanHandle.watch`).

        Nothing is stored in the plan. Of quick reports the last one in 0.1 s is sent.

        Args:
            fraction: 0 to 1; None when unknown.
            message: At most 1,000 characters.

        Raises:
            ValueError: one of the two is out of these bounds.
        """
        if self.reporter is not None:
            await self.reporter.progress(fraction, message)

    async def stream(self, chunk: Any) -> None:
        """Send a piece of the task's output, any JSON, to those who watch its plan, as :meth:`progress` does.

        Raises:
            TypeError: it has no JSON form.
            ValueError: it takes more than 64 KiB.
        """
        if self.reporter is not None:
            await self.reporter.chunk(chunk)

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
        """Tasks by type, with those that undo other tasks."""
        self.tools: ToolTasks | None = None
        """The server whose tools are tasks; see :meth:`from_mcp`."""

    @classmethod
    def from_mcp(
        cls,
        name: str,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        tools: Iterable[str] | Mapping[str, Effect | None] | None = None,
        repeat: Literal["safe", "never"] = "never",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 300.0,
        concurrency: int = 100,
        max_attempts: int = 5,
    ) -> Self:
        """Make a worker whose tasks are the tools of an MCP server: ``<name>.<tool>.requested``.

        The server is connected, and its tools are found, when the worker starts; a ``command`` is started then,
        watched, started again when it ends, and ended with the worker. Needs ``pip install 'plancast[mcp]'``.

        A task's data are the tool's arguments, its answer (``<name>.<tool>.completed``) is the tool's structured
        content, else ``{"text": ...}``. An error that the tool reports fails the task. A call whose answer is lost is
        not repeated, unless ``repeat`` or the tool's effect say so: what a server says of its tools are hints.

        Args:
            name: Name of the worker, unique in the app, and prefix of the task types.
            command: Program and arguments of a server on standard input and output.
            url: Address of a server that speaks streamable HTTP.
            tools: Names of the wanted tools, or their effects by name; None: all. Named tools are tasks of the app
                before the server is asked, which logins of their own need.
            repeat: ``never``: each call is an effect that is not repeated blindly; ``safe``: any call may be repeated.
                For tools whose effects ``tools`` does not give.
            env: Environment variables for the command, which inherits PATH, HOME and the like only.
            cwd: Folder of the command.
            headers: Headers for the server at a URL, such as ``Authorization``.
            timeout: Longest call, in seconds.
            concurrency: Most calls in flight in one process.
            max_attempts: Most attempts at a call that may be repeated.

        Raises:
            InvalidApp: an argument is invalid.
            InvalidSubject: the name cannot be part of an event type.
        """
        worker = cls(check_event_type(name), concurrency=concurrency, max_attempts=max_attempts)
        effect = Effect(repeat="never") if repeat == "never" else None
        if repeat not in ("safe", "never"):
            raise InvalidApp(f"worker {name!r}: repeat is {repeat!r:.60}, allowed: 'safe', 'never'")
        named = None if tools is None else dict(tools) if isinstance(tools, Mapping) else dict.fromkeys(tools, effect)
        options = ServerOptions(name, command, url, named, effect, dict(env or {}), cwd, dict(headers or {}), timeout)
        worker.tools = ToolTasks(options)
        for tool in named or ():
            worker._add_tool(worker.tools, Tool(tool))
        return worker

    async def open(self) -> None:
        """Connect the server of the worker's tools, and add the tasks that are found there.

        Raises:
            ToolServerUnavailable: the server does not start, or cannot be reached.
            InvalidApp: it lacks a named tool, or two tools make one task type, or `mcp` is not installed.
        """
        if self.tools is None:
            return
        found = await self.tools.open()
        try:
            bases = [tool.base(self.name) for tool in found]
            if twice := sorted({each for each in bases if bases.count(each) > 1}):
                raise InvalidApp(f"worker {self.name!r}: two tools make the task type {twice[0]}.requested")
            for tool in found:
                self._add_tool(self.tools, tool)
        except BaseException:
            await self.tools.close()
            raise

    async def close(self) -> None:
        """End the connection that :meth:`open` has made."""
        if self.tools is not None:
            await self.tools.close()

    def _add_tool(self, tools: ToolTasks, tool: Tool) -> None:
        """Add a tool's task, or complete the one that was declared with its name; its look-up and undo stay."""
        base = tool.base(self.name)
        task = check_event_type(f"{base}.requested")
        known = self.tasks.get(task) or TaskDefinition(
            task,
            ToolCall(tools, tool.name),
            f"{base}.completed",
            worker=self.name,
            effect=tools.options.effect_of(tool.name),
        )
        self.tasks[task] = replace(
            known, description=tool.description, schema=tool.schema, response_schema=tool.result_schema
        )

    @property
    def offered(self) -> dict[str, TaskDefinition]:
        """Tasks by type that planners and people may request: all but those that undo others."""
        return {task: definition for task, definition in self.tasks.items() if not definition.undoes}

    def __repr__(self) -> str:
        return f"Worker({self.name!r}, tasks={sorted(self.tasks)})"

    @declaration
    def on_task(
        self,
        event_type: str,
        response_event: str | None = None,
        *,
        description: str = "",
        schema: Any = None,
        response_schema: Any = None,
        effect: Effect | None = None,
    ) -> Callable[[_H], _H]:
        """Register ``handler(task, context)``, plain or async, for a task type.

        The return value is sent on the request's ``response_event``. An exception is sent on ``<base>.failed`` as
        ``{"success": false, "error": ...}``; after :class:`RetryableError` the task is retried first. A plain
        function runs in a thread.

        With an ``effect``, the outcome of what the task does outside is recorded; see :class:`Effect`. A
        :class:`RetryableError` is then an attempt whose end is not known, a :class:`TerminalError` a known failure.
        """
        check_event_type(event_type)
        if response_event is not None:
            check_event_type(response_event)
        if event_type in self.tasks:
            raise InvalidApp(f"worker {self.name!r} takes the task {event_type!r} twice")

        if effect is not None and not isinstance(effect, Effect):
            raise InvalidApp(f"worker {self.name!r}: effect of {event_type!r} is {effect!r:.80}, allowed: an Effect")

        def register(handler: _H) -> _H:
            self.tasks[event_type] = TaskDefinition(
                event_type, handler, response_event, description, schema, response_schema, self.name, effect
            )
            return handler

        return register

    @declaration
    def reconcile(self, event_type: str) -> Callable[[_H], _H]:
        """Register the look-up of a task's effect: ``handler(task, context)`` returns an :class:`Outcome`.

        It is called before a task is begun again after an attempt whose end is not known.

        Raises:
            InvalidApp: the worker has no such task with an ``effect``, or it has a look-up already.
        """
        definition = self._with_effect(event_type, "reconcile")
        if definition.look_up is not None:
            raise InvalidApp(f"worker {self.name!r} reconciles the task {event_type!r} twice")

        def register(handler: _H) -> _H:
            self.tasks[event_type] = replace(self.tasks[event_type], look_up=handler)
            return handler

        return register

    @declaration
    def compensate(self, event_type: str) -> Callable[[_H], _H]:
        """Register the undo of a task's done effect: ``handler(task, result, context)``.

        ``task`` has the data of the task that was done, and an ``idempotency_key`` of the undo; ``result`` is what its
        handler returned. An undo is repeated until its end is known: after :class:`RetryableError` and after a crash.

        Raises:
            InvalidApp: the worker has no such task with an ``effect``, or it has an undo already.
        """
        definition = self._with_effect(event_type, "compensate")
        undo = check_event_type(undo_type(event_type))
        if definition.has_undo or undo in self.tasks:
            raise InvalidApp(f"worker {self.name!r} compensates the task {event_type!r} twice")

        def register(handler: _H) -> _H:
            self.tasks[event_type] = replace(self.tasks[event_type], has_undo=True)
            self.tasks[undo] = TaskDefinition(undo, handler, f"{undo}.completed", worker=self.name, undoes=event_type)
            return handler

        return register

    def _with_effect(self, event_type: str, decorator: str) -> TaskDefinition:
        definition = self.tasks.get(event_type)
        if definition is None or definition.effect is None:
            raise InvalidApp(
                f"worker {self.name!r}: {decorator}({event_type!r}) needs the task first, as "
                f"on_task({event_type!r}, effect=Effect(...))"
            )
        return definition
