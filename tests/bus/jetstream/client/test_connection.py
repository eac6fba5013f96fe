"""Connections to servers that listen and say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats.aio.transport import TcpTransport

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 120.0


class Mute:
    """A server that accepts connections and neither says nor reads anything more; it notes which are closed."""

    def __init__(self) -> None:
        self.accepted = self.ended = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._changed.set()
        with suppress(ConnectionError):  # aborted
            await reader.read()
        self.ended += 1
        self._changed.set()
        writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def mute() -> AsyncIterator[Mute]:
    made = Mute()
    yield made
    await made.stop()


async def test_no_connection_to_a_server_that_says_nothing_is_left_open_at_a_reconnect(
    tmp_path: Path, mute: Mute
) -> None:
    silent = await mute.start()
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, connect_timeout=1.0), BusSettings())
        client, returned = bus._connection.client, asyncio.Event()
        bus.on_reconnect(returned.set)
        client._server_pool.clear()
        client._setup_server_pool([silent])
        await client.force_reconnect()
        await mute.until(lambda: mute.accepted >= 2)
        await mute.until(lambda: mute.ended >= 1)
        client._server_pool.clear()
        client._setup_server_pool([server.url])
        async with asyncio.timeout(PATIENCE):
            await returned.wait()
        await mute.until(lambda: mute.ended == mute.accepted)
        await bus.close()


async def test_no_connection_to_a_server_that_says_nothing_is_left_open_after_a_failed_start(mute: Mute) -> None:
    settings = NatsSettings(url=await mute.start(), connect_timeout=2.5)
    with pytest.raises(BusUnavailable, match="no connection to NATS"):
        await connect(settings, BusSettings())
    assert mute.accepted >= 1
    await mute.until(lambda: mute.ended == mute.accepted)


@pytest.fixture
def refused_when_cancelled(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Makes attempts to connect wait, and fail when they are cancelled; set when the first one waits."""
    waits = asyncio.Event()

    async def attempt(*_arguments: Any, **_options: Any) -> None:
        waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE)
        raise ConnectionRefusedError

    monkeypatch.setattr(TcpTransport, "connect", attempt)
    return waits


async def test_a_reconnect_that_loses_its_cancellation_ends_when_the_connection_is_closed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url), BusSettings())
        waits: asyncio.Event = request.getfixturevalue("refused_when_cancelled")
        client = bus._connection.client
        await client.force_reconnect()
        await waits.wait()
        await bus.close()
        reconnection = client._reconnection_task
        assert reconnection is not None
        await asyncio.wait_for(asyncio.shield(reconnection), PATIENCE)
        assert client.is_closed


async def test_a_start_that_loses_its_cancellation_fails_in_time(refused_when_cancelled: asyncio.Event) -> None:
    with pytest.raises(BusUnavailable, match="no connection to NATS"):
        await asyncio.wait_for(
            connect(NatsSettings(url="nats://127.0.0.1:1", connect_timeout=0.2), BusSettings()), PATIENCE
        )
    assert refused_when_cancelled.is_set()
