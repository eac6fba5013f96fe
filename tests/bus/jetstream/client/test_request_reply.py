"""Requests and their replies."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.client import request_reply
from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.client.request_reply import Requester
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

NO_RESPONDERS = b"no subscription"
NO_PEERS = (
    b'{"type":"any","error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
)


@pytest.fixture
def in_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts as one of a cluster, and those that do not answer are left soon."""
    monkeypatch.setattr(Connection, "in_cluster", True)
    monkeypatch.setattr(request_reply, "SILENCE", 0.2)
    monkeypatch.setattr(request_reply, "LONGEST_SILENCE", 0.8)


@pytest.mark.parametrize("askers", [1, 2])
@pytest.mark.parametrize("says", [None, NO_RESPONDERS, NO_PEERS], ids=["nothing", "no responders", "no leader"])
@pytest.mark.usefixtures("in_cluster")
async def test_a_server_that_answers_nothing_is_left_after_longer_and_longer(
    tmp_path: Path, says: bytes | None, askers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=60.0), BusSettings())
        left: list[float] = []
        monkeypatch.setattr(bus._connection, "move_on", left.append)
        await bus.clock.stop()
        client, requester = bus._connection.client, bus._requester

        async def answer(message: Msg) -> None:
            await client.publish(message.reply, says or b"")

        if says is None:
            await client.subscribe("asked")
        elif says is not NO_RESPONDERS:
            await client.subscribe("asked", cb=answer)
        asking = [asyncio.ensure_future(_ask_again(bus._api)) for _ in range(askers)]
        while len(left) < 4:
            await asyncio.sleep(0.01)

        assert left[0] >= 0.2
        assert left[1] >= 0.4
        assert min(left[2:]) >= 0.8
        for each in asking:
            each.cancel()
        await bus.close()
        await asyncio.gather(*asking, return_exceptions=True)
        assert requester.in_flight == 0


@pytest.mark.usefixtures("in_cluster")
async def test_a_server_that_answers_others_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=1.5), BusSettings())
        await bus.ensure_streams()
        await bus.clock.stop()
        left: list[float] = []
        monkeypatch.setattr(bus._connection, "move_on", left.append)
        requester = bus._requester
        await bus._connection.client.subscribe("silent")
        silent = await requester.send("silent", b"")

        requester._silent_since -= 60.0
        await bus.registry.put("test", "one", {})
        _sweep_with(requester, patience=30.0)
        assert left == []

        requester._silent_since -= 60.0
        _sweep_with(requester, patience=30.0)
        assert len(left) == 1
        with pytest.raises(BusUnavailable):
            await silent
        await bus.close()


@pytest.mark.usefixtures("in_cluster")
async def test_a_blocked_event_loop_is_no_silence_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=20.0), BusSettings())
        await bus.ensure_streams()
        left: list[float] = []
        monkeypatch.setattr(bus._connection, "move_on", left.append)
        await bus.clock.stop()
        requester, loop = bus._requester, asyncio.get_running_loop()
        asked = await requester.send("$JS.API.INFO", b"")
        # As after a handler that computes for a minute: the timer is late, and the answer not read yet.
        assert requester._sweep is not None
        requester._sweep.cancel()
        requester._silent_since -= 60.0
        requester._sweep = loop.call_at(loop.time() - 60.0, requester._expire)
        _sweep_with(requester, patience=30.0)
        await asked
        assert left == []
        await bus.close()


@pytest.mark.usefixtures("in_cluster")
async def test_a_connection_that_moves_on_sends_its_requests_again(tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=60.0), BusSettings())
        client, asked = bus._connection.client, asyncio.Event()

        async def answer(message: Msg) -> None:
            if asked.is_set():
                await client.publish(message.reply, b"{}")

        bus.on_reconnect(asked.set)
        await client.subscribe("asked", cb=answer)
        assert (await bus._requester.request("asked")).data == b"{}"
        await bus.close()


@pytest.mark.usefixtures("in_cluster")
async def test_a_server_that_hangs_is_left_before_it_has_read_what_was_sent(tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "one") as one, NatsServer(tmp_path / "other") as other:
        settings = NatsSettings(url=f"{one.url},{other.url}", publish_timeout=600.0)
        bus = await connect(settings, BusSettings())
        client, requester = bus._connection.client, bus._requester

        async def answer(message: Msg) -> None:
            await client.publish(message.reply, b"{}")

        await client.subscribe("asked", cb=answer)
        await client.flush()
        at = client.connected_url
        assert at is not None
        hangs = one if one.url == at.geturl() else other
        assert hangs._process is not None
        hangs._process.send_signal(signal.SIGSTOP)
        try:
            asking = [asyncio.ensure_future(requester.request("asked", bytes(1 << 20))) for _ in range(16)]
            async with asyncio.timeout(60):
                assert {answered.data for answered in await asyncio.gather(*asking)} == {b"{}"}
        finally:
            hangs._process.send_signal(signal.SIGCONT)
        await bus.close()


async def test_a_connection_to_a_server_that_hangs_is_closed_in_time(tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=0.5), BusSettings())
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        try:
            asking = [asyncio.ensure_future(bus._requester.request("asked", bytes(1 << 20))) for _ in range(16)]
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await bus.close()
                errors = await asyncio.gather(*asking, return_exceptions=True)
        finally:
            server._process.send_signal(signal.SIGCONT)
        assert {*map(type, errors)} == {BusUnavailable}


@pytest.mark.usefixtures("in_cluster")
async def test_a_server_whose_answers_come_too_late_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=600.0), BusSettings())
        requester, client = bus._requester, bus._connection.client
        asked: list[str] = []

        async def note(message: Msg) -> None:
            asked.append(message.reply)

        await client.subscribe("slow", cb=note)
        await client.subscribe("silent")
        requester._patience = 60.0
        (await requester.send("slow", b"")).cancel()
        await requester.send("silent", b"")
        while not asked:
            await asyncio.sleep(0.01)
        requester._silent_since = 0.0
        await client.publish(asked[0], b"{}")
        while asked[0].removeprefix(requester._inbox) in requester._requests:
            await asyncio.sleep(0.01)

        assert requester._silent_since > 0.0
        await bus.close()


def _sweep_with(requester: Requester, patience: float) -> None:
    assert requester._sweep is not None
    requester._sweep.cancel()
    requester._patience = patience
    requester._expire()


async def _ask_again(api: JetStreamApi) -> None:
    while True:
        with suppress(BusUnavailable):
            await api.settle("asked", await api._requester.send("asked", b""))


class Large:
    """A value that a task has in its context."""


async def test_timers_keep_nothing_of_the_task_that_has_begun_a_request(tmp_path: Path) -> None:
    current: ContextVar[Large | None] = ContextVar("current", default=None)
    async with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=1.0), BusSettings())
        await bus.ensure_streams()
        requester = bus._requester
        await requester._client.subscribe("silent")
        while requester._sweep is not None:
            await asyncio.sleep(0.01)
        kept: list[weakref.ref[Large]] = []

        async def ask() -> asyncio.Future[object]:
            value = Large()
            kept.append(weakref.ref(value))
            current.set(value)
            return await requester.send("silent", b"")

        replies = [await asyncio.create_task(ask()) for _ in range(2)]
        await bus.registry.put("test", "one", {})  # what nats-py holds of the last task is written
        gc.collect()
        assert requester.in_flight == 2
        assert [each() for each in kept] == [None, None]
        for reply in replies:
            with pytest.raises(BusUnavailable):
                await reply
        await bus.close()
