"""ToolServer: a connection to an MCP server that is kept, and made anew when it is lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from mcp import Client
from mcp_types import CallToolResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from plancast.errors import InvalidApp, NotBegun, TerminalError, ToolServerUnavailable
from plancast.mcp_client.calls import SENDING, Sending, failure_of, repeatable, result_of
from plancast.mcp_client.http import http_streams
from plancast.mcp_client.options import ServerOptions
from plancast.mcp_client.program import Program
from plancast.mcp_client.tools import Tool, listed_tools
from plancast.telemetry.redaction import redact

logger = logging.getLogger(__name__)
START_SECONDS: Final = 60.0
"""Seconds for a server to start, and to list its tools."""
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 30.0
"""Seconds before a server is connected again; they double while connections are short."""
STABLE_SECONDS: Final = 30.0
"""Seconds after which a connection is no short one."""
WAIT_SECONDS: Final = 20.0
"""Seconds for which a call waits for a server that is being started again."""


class ToolServer:
    """Calls the tools of one server.

    A task of its own keeps the connection, since the SDK's connections are left by the task that has entered them.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._users = 0
        self._keeper: asyncio.Task[None]
        self._closing = False
        self._left: asyncio.Event
        """Set when the connection is lost, or to be closed."""
        self._up: asyncio.Event
        self._client: Client | None = None
        self._listed: asyncio.Future[list[Tool]]

    async def open(self) -> list[Tool]:
        """Connect, starting the program if there is one; returns the tools that the options ask for.

        Several workers of a process may share the connection: the last one that closes it ends it.

        Raises:
            ToolServerUnavailable: the server does not start, or cannot be reached.
            InvalidApp: it lacks a tool that the options name, or has too many.
        """
        if not self._users:
            loop = asyncio.get_running_loop()
            self._left, self._up, self._closing = asyncio.Event(), asyncio.Event(), False
            self._listed = loop.create_future()
            self._keeper = loop.create_task(self._keep())
        self._users += 1
        try:
            return await asyncio.shield(self._listed)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection, and the program with all that it has started. Calls in flight are lost."""
        self._users -= 1
        if self._users:
            return
        self._closing = True
        self._left.set()
        if self._client is None:  # it waits for the server, or for its next attempt
            self._keeper.cancel()
        await asyncio.wait((self._keeper,))
        self._listed.cancel()

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; returns the result of its task.

        Raises:
            NotBegun: nothing was sent, or the server has turned the call away.
            CallLost, RetryableError: it is not known what the call did: the latter where it may be repeated.
            TerminalError: the tool reports an error, or the server refuses the call.
        """
        client = await self._connected()
        sending = Sending()
        SENDING.set(sending)
        in_session = self.options.url is not None and client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        try:
            answer = await client.session.call_tool(
                tool, arguments, self.options.timeout, allow_input_required=True, allow_claimed=False
            )
        except Exception as error:
            failure = failure_of(error, sending, self.options.place, in_session=in_session)
            if in_session and (sending.unsent or sending.status in (400, 404)):
                self._left.set()  # the next call opens a new session
            raise (repeatable(failure) if self._may_repeat(tool) else failure) from error
        if isinstance(answer, InputRequiredResult):
            raise TerminalError(f"the tool {tool} asks for input, which a task cannot give")
        assert isinstance(answer, CallToolResult)
        return result_of(answer)

    def _may_repeat(self, tool: str) -> bool:
        effect = self.options.effect_of(tool)
        return effect is None or effect.repeat == "safe"

    async def _connected(self) -> Client:
        """The connection; waits for one that is being made anew.

        Raises:
            NotBegun: the server is away.
        """
        if self._users and not self._up.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._up.wait()
        if self._client is None or self._left.is_set():
            raise NotBegun(f"{self.options.place} is away")
        return self._client

    async def _keep(self) -> None:
        """Connect, and connect again after each loss, until the server is closed."""
        pause, clock = FIRST_PAUSE, asyncio.get_running_loop().time
        while not self._closing:
            self._left.clear()
            program, sending = Program(self.options.name), Sending(is_call=False)
            SENDING.set(sending)
            since = clock()
            try:
                await self._serve(program)
                problem = f"{self.options.place} has ended the connection{_quoted(program)}"
            except Exception as error:
                unavailable = self._unavailable(error, program, sending)
                if not self._listed.done():
                    self._listed.set_exception(unavailable)
                    return
                problem = str(unavailable)
            if not self._closing:
                pause = FIRST_PAUSE if clock() - since > STABLE_SECONDS else min(pause * 2, LONGEST_PAUSE)
                logger.warning("%s; it is connected again in %g s", problem, pause)
                await asyncio.sleep(pause)

    async def _serve(self, program: Program) -> None:
        """Keep one connection until it is lost, or to be closed."""
        options = self.options
        if options.command is not None:
            streams = program.streams(options.command, options.env, options.cwd, self._left)
        else:
            streams = http_streams(options.url or "", options.headers)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(START_SECONDS):
                client = await stack.enter_async_context(Client(streams, cache=None))
                tools = await listed_tools(client, options)
            if not self._listed.done():
                self._listed.set_result(tools)
            self._client = client
            self._up.set()
            try:
                await self._left.wait()
            finally:
                self._client = None
                self._up.clear()

    def _unavailable(self, error: Exception, program: Program, sending: Sending) -> Exception:
        causes = _causes(error)
        if (fault := next((each for each in causes if isinstance(each, InvalidApp)), None)) is not None:
            return fault
        if isinstance(error, TimeoutError):
            reason = f"no answer within {START_SECONDS:g} s"
        elif sending.unsent or sending.status >= 400:
            reason = sending.unsent or f"it answers with status {sending.status}"
        else:
            reason = "; ".join(str(each) or type(each).__name__ for each in causes)
        return ToolServerUnavailable(f"{self.options.place} is not available: {redact(reason)}{_quoted(program)}")


def _quoted(program: Program) -> str:
    return f"; its last output: {program.last_words}" if program.last_words else ""


def _causes(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, or the error."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for each in error.exceptions for cause in _causes(each)]
    return [error]
