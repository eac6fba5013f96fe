"""Beats: calls that a thread of a process answers, so that a busy event loop is no silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from plancast_actors.rpc.client import Connection, ConnectionLost, Endpoint
from plancast_actors.rpc.server import RpcServer

BEAT_SECONDS = 0.5
"""Seconds between two beats."""
MISSED_BEATS = 6
"""Looks in a row that find no answer, one each :data:`BEAT_SECONDS`, after which a process is silent."""

Open = Callable[[RpcServer], Awaitable[Endpoint | None]]


class BeatServer:
    """Answers beats, on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._server = RpcServer({"beat": _beat}, "", cancel_on_disconnect=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = asyncio.Event()

    async def open(self, listen: Open) -> Endpoint | None:
        """Start the thread; returns where beats are answered, as ``listen`` has opened the server there."""
        opened: asyncio.Future[Endpoint | None] = asyncio.get_running_loop().create_future()
        caller = asyncio.get_running_loop()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            try:
                endpoint = await listen(self._server)
            except Exception as error:
                caller.call_soon_threadsafe(opened.set_exception, error)
                return
            caller.call_soon_threadsafe(opened.set_result, endpoint)
            if endpoint is not None:
                await self._closed.wait()
                self._server.close()

        threading.Thread(target=lambda: asyncio.run(serve()), name="beats", daemon=True).start()
        return await opened

    def close(self) -> None:
        """Answer no more; the thread ends."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closed.set)


async def _beat() -> None:
    """Answer."""


async def wait_for_silence(process: Connection) -> bool:
    """Wait until a process has ended, or is silent; True if it is silent, and may live.

    Looks are counted, and not time: this process may have been suspended itself, and then finds answers.
    """
    while True:
        beat = asyncio.ensure_future(process.call("beat"))
        try:
            for _ in range(MISSED_BEATS):
                await asyncio.wait((beat,), timeout=BEAT_SECONDS)
                if beat.done():
                    break
            else:
                return True
            beat.result()
        except ConnectionLost:
            return False
        finally:
            beat.cancel()
        await asyncio.sleep(BEAT_SECONDS)
