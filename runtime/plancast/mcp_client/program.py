"""MCP servers that are programs: started with their own process group, which never outlives this process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from plancast.telemetry.redaction import redact

logger = logging.getLogger(__name__)
_GUARD: Final = str(Path(__file__).with_name("guard.py"))
_TAIL: Final = 2_000
"""Characters of the newest output on standard error that are kept."""
_LINES: Final = 3
"""Last lines of it that error messages quote."""


class Program:
    """A server's program, with what it has written to standard error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tail = ""

    @property
    def last_words(self) -> str:
        """The last lines of its standard error, redacted."""
        lines = [" ".join(line.split()) for line in self._tail.splitlines()]
        return redact(" | ".join(list(filter(None, lines))[-_LINES:]))

    @asynccontextmanager
    async def streams(
        self, command: Sequence[str], env: Mapping[str, str], cwd: str | None, ended: asyncio.Event
    ) -> AsyncIterator[Any]:
        """Run the program; streams of messages to and from it.

        A guard in its process group waits for the end of a pipe whose other end only this process has: when this
        process ends, in whatever way, or the streams are left, what remains of the group is killed.

        Args:
            command: Program and arguments.
            env: Environment variables besides the few that are inherited.
            cwd: Its folder.
            ended: Set when the program has closed its standard output.

        Raises:
            OSError: it cannot be started.
        """
        alive, guard = os.pipe()
        words, errlog = os.pipe()
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(words, self._listen, words)
            guarded = ["-I", "-S", _GUARD, str(os.getpid()), str(alive), *command]
            parameters = StdioServerParameters(command=sys.executable, args=guarded, env=dict(env), cwd=cwd)
            with os.fdopen(errlog, "w") as log:
                async with stdio_client(parameters, log) as (read, write):
                    yield _Ending(read, ended), write
        finally:
            for pipe in (alive, guard):
                os.close(pipe)
            loop.remove_reader(words)
            self._listen(words)
            os.close(words)

    def _listen(self, words: int) -> None:
        os.set_blocking(words, False)
        with suppress(BlockingIOError):
            while part := os.read(words, 65_536):
                text = part.decode(errors="replace")
                self._tail = (self._tail + text)[-_TAIL:]
                for line in filter(str.strip, text.splitlines()):
                    logger.debug("%s: %s", self._name, redact(line[:_TAIL]))


class _Ending:
    """A stream of messages that tells when it ends."""

    def __init__(self, inner: Any, ended: asyncio.Event) -> None:
        self._inner = inner
        self._ended = ended

    async def receive(self) -> Any:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        self._inner.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        stop: bool | None = await self._inner.__aexit__(kind, error, trace)
        return stop
