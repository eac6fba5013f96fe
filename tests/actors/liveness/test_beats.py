"""Beats tell a process that is busy from one that is frozen or gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast_actors.liveness import beats
from plancast_actors.liveness.beats import BeatServer, wait_for_silence
from plancast_actors.rpc.client import Connection, Endpoint

PATIENCE = 100.0
PROGRAM = """
import asyncio, json, sys, time
from plancast_actors.liveness.beats import BeatServer

async def main():
    endpoint = await BeatServer().open(lambda server: server.open("127.0.0.1"))
    print(json.dumps([endpoint.port, endpoint.secret.hex()]), flush=True)
    time.sleep(1000)  # blocks the event loop

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def a_busy_process() -> AsyncIterator[tuple[int, Connection]]:
    """A process whose event loop is blocked, and a connection to the thread that answers its beats."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port, secret = json.loads(await process.stdout.readline())
        connection = await Connection(Endpoint("", "127.0.0.1", port, bytes.fromhex(secret))).connect()
        yield process.pid, connection
        connection.abort()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_process_with_a_blocked_loop_answers_and_is_silent_when_it_is_frozen() -> None:
    async with a_busy_process() as (pid, connection), asyncio.timeout(PATIENCE):
        for _ in range(3):
            await connection.call("beat")
        os.kill(pid, signal.SIGSTOP)
        assert await wait_for_silence(connection), "it may live"
        assert not connection.lost


async def test_the_end_of_a_process_is_no_silence() -> None:
    async with a_busy_process() as (pid, connection), asyncio.timeout(PATIENCE):
        watching = asyncio.ensure_future(wait_for_silence(connection))
        await connection.call("beat")
        os.kill(pid, signal.SIGKILL)
        assert not await watching


class Suspending(Connection):
    """A connection whose caller is suspended while the answer comes."""

    calls = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        time.sleep(20 * beats.BEAT_SECONDS)  # noqa: ASYNC251 - nothing runs meanwhile
        await asyncio.sleep(0)
        self.calls += 1


async def test_a_watcher_that_was_suspended_itself_finds_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "BEAT_SECONDS", 0.01)
    connection = Suspending(Endpoint("", "127.0.0.1", 1, b""))
    watching = asyncio.ensure_future(wait_for_silence(connection))
    async with asyncio.timeout(PATIENCE):
        while connection.calls < 3:
            await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_an_address_that_cannot_be_listened_on_is_the_callers_error() -> None:
    with pytest.raises(OSError, match="assign"):
        await BeatServer().open(lambda server: server.open("192.0.2.1"))
