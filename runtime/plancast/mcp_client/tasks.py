"""ToolTasks and ToolCall: the tasks that are tools of a server, and their handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from plancast.errors import InvalidApp, TerminalError
from plancast.json_values.normalize import plain
from plancast.mcp_client.options import ServerOptions
from plancast.mcp_client.tools import Tool

if TYPE_CHECKING:
    from plancast.mcp_client.server import ToolServer


class _Task(Protocol):
    @property
    def data(self) -> Any: ...


class ToolTasks:
    """The connection to the server of a worker's tools, while the worker runs."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._server: ToolServer | None = None

    @property
    def server(self) -> ToolServer:
        """The server; its library is imported at the first use.

        Raises:
            InvalidApp: the library is not installed.
        """
        if self._server is None:
            try:
                from plancast.mcp_client.server import ToolServer
            except ModuleNotFoundError as error:
                raise InvalidApp(
                    f"worker {self.options.name!r} needs `pip install 'plancast[mcp]'`: {error}"
                ) from error
            self._server = ToolServer(self.options)
        return self._server

    async def open(self) -> list[Tool]:
        """Connect, and list the tools; raises as :meth:`ToolServer.open` does."""
        return await self.server.open()

    async def close(self) -> None:
        """End the connection."""
        await self.server.close()


@dataclass(frozen=True)
class ToolCall:
    """The handler of a tool's task."""

    tools: ToolTasks = field(repr=False)
    tool: str

    async def __call__(self, task: _Task, context: Any) -> Any:
        """Call the tool with the task's data; raises as :meth:`ToolServer.call` does."""
        arguments = plain(task.data)
        if not isinstance(arguments, dict):
            raise TerminalError(f"the arguments of a tool are an object, not a {type(arguments).__name__}")
        return await self.tools.server.call(self.tool, arguments)
