"""A TCP proxy between a deployment and its nats-server, which can stall and cut connections."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

CHUNK = 256 * 1024


class Wire:
    """A TCP proxy on a free port of this machine.

    Args:
        url: Where the nats-server is, or will be.
    """

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._pairs: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.url = ""

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=CHUNK)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._pairs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stall(self, seconds: float) -> None:
        """Delay all traffic for a while."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._open.set()

    def cut(self) -> None:
        """Close all connections; data in transit is lost."""
        for writers in self._pairs.values():
            for writer in writers:
                writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._pairs[task] = [writer]
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._port, limit=CHUNK)
            writers.append(onward)
            pumps = [asyncio.create_task(self._pump(reader, onward)), asyncio.create_task(self._pump(there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self._pairs.pop(task, None)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
