"""A connection that the server ends: it comes back where it can, and else ends who depends on it, aloud."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.attack.running import PATIENCE, PROTOCOL_ERROR, Proxy, Running

from plancast import BusUnavailable, Client, Settings
from plancast_actors.liveness import watchdog
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.core_nats import connect_core
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import NatsSettings

PLANCAST = Path(sys.executable).with_name("plancast")
APPS = Path(__file__).parent.parent / "apps"
RECONNECTS = (
    "'Stale Connection'",
    "'Authorization Violation'",
    "'User Authentication Expired'",
    "'User Authentication Revoked'",
    "'Account Authentication Expired'",
    "'Authentication Timeout'",
    "'maximum connections exceeded'",
    "'maximum account active connections exceeded'",
    "'Connection throttling is active. Please try again later.'",
    "'Server Shutdown'",
)
GOES_ON = (
    "'Permissions Violation for Publish to \"a.b\"'",
    "'Permissions Violation for Subscription to \"a.b\"'",
    "'maximum subscriptions exceeded'",
    "'Invalid Publish Subject'",
)
ENDS = (PROTOCOL_ERROR, "'Maximum Payload Violation'", "'Unknown Protocol Operation'", "'Parser Error'", "'what'")


@contextlib.asynccontextmanager
async def behind(proxy: Proxy) -> AsyncIterator[tuple[JetStreamBus, list[str]]]:
    """A connection, and what became of it."""
    settings = Settings()
    settings.bus.prefix = f"l{uuid4().hex}"
    bus = await connect(NatsSettings(url=proxy.url), settings.bus)
    became: list[str] = []
    bus.on_lost(became.append)
    bus.on_reconnect(lambda: became.append("reconnected"))
    try:
        await bus.ensure_streams()
        yield bus, became
    finally:
        await bus.close()


async def until(became: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not became:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", RECONNECTS)
async def test_after_what_may_pass_it_connects_anew(nats_server: NatsServer, error: str) -> None:
    async with Proxy.before(nats_server.url) as proxy, behind(proxy) as (bus, became):
        proxy.say_error(error)
        await until(became)
        await bus.registry.put("agent", "a", {})
        assert set(became) == {"reconnected"}
        assert proxy.accepted >= 2


@pytest.mark.parametrize("error", GOES_ON)
async def test_what_the_server_only_refuses_ends_nothing(nats_server: NatsServer, error: str) -> None:
    async with Proxy.before(nats_server.url) as proxy, behind(proxy) as (bus, became):
        proxy.say_error(error, cut=False)
        await bus.registry.put("agent", "a", {})
        assert not became
        assert proxy.accepted == 1


@pytest.mark.parametrize("error", ENDS)
async def test_after_what_we_have_sent_wrongly_it_is_closed_and_all_is_told(
    nats_server: NatsServer, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy.before(nats_server.url) as proxy, behind(proxy) as (bus, became):
        with caplog.at_level(logging.ERROR):
            proxy.say_error(error)
            await until(became)
        (reason,) = became
        assert error.strip("'").lower() in reason
        assert [each.levelname for each in caplog.records if "closed for good" in each.message] == ["ERROR"]
        late: list[str] = []
        bus.on_lost(late.append)  # also whoever comes later hears of it
        await until(late)
        with pytest.raises(BusUnavailable):
            await bus.registry.put("agent", "a", {})
        assert proxy.accepted == 1


async def test_a_connection_that_we_close_is_not_lost(nats_server: NatsServer) -> None:
    async with Proxy.before(nats_server.url) as proxy, behind(proxy) as (bus, became):
        await bus.close()
        await asyncio.sleep(0.05)
        assert not became
        theirs = await connect_core(NatsSettings(url=proxy.url))
        theirs.on_lost(became.append)
        await theirs.close()
        await asyncio.sleep(0.05)
        assert not became


async def test_credentials_that_cannot_be_read_any_more_end_it(nats_server: NatsServer) -> None:
    """The client of NATS would try no more, say nothing, and take itself for one that reconnects."""
    async with Proxy.before(nats_server.url) as proxy, behind(proxy) as (bus, became):

        def broken() -> bytes:
            raise ValueError("no seed")

        bus._connection.client._connect_command = broken  # type: ignore[method-assign]
        proxy.say_error("'Stale Connection'")
        await until(became)
        assert became[0].endswith("no seed")


@pytest.mark.attack(who="stranger", what="the connection of a client ends for good", expected="who waits is told")
async def test_who_waits_in_a_client_is_told_at_once(nats_server: NatsServer) -> None:
    async with Running(nats_server.url) as running, Proxy.before(nats_server.url) as proxy:
        settings = running.settings.model_copy(deep=True)
        settings.nats.url = proxy.url
        await running.dispatcher.drain()  # plans stay where they are
        async with Client.connect(settings=settings) as client:
            handle = await client.submit("held.goal", {"n": 1})
            other = client.plan("unknown-to-anybody")

            async def watched() -> None:
                async for _ in handle.watch():
                    pass

            waiting: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each) for each in (handle.result(), handle.result(), other.result(), watched())
            ]
            await asyncio.sleep(0.2)
            proxy.say_error(PROTOCOL_ERROR)
            async with asyncio.timeout(PATIENCE / 3):
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in outcomes] == [BusUnavailable] * 4
            assert "closed for good" in str(outcomes[0])
            async with asyncio.timeout(PATIENCE / 3):
                for later in (handle.result(), handle.status(), client.submit("held.goal", {"n": 1})):
                    with pytest.raises(BusUnavailable):
                        await later


# Processes.


def test_an_actor_ends_as_a_crash_would(capfd: pytest.CaptureFixture[str]) -> None:
    pid = os.fork()
    if not pid:
        logging.basicConfig(level=logging.CRITICAL, force=True)
        watchdog.end_process("the connection is closed for good")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "closed for good; the process ends, to be restarted" in capfd.readouterr().err


@contextlib.contextmanager
def command(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [PLANCAST, *arguments], env=others | environment, stdout=pipe, stderr=pipe, text=True, cwd=APPS
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


COMMANDS = {
    "worker": ("worker", "chain_app:app"),
    "console": ("console", "--port", "0"),
    "bridge": ("bridge", "soorma"),
}


@pytest.mark.attack(who="stranger", what="the connection of a process ends for good", expected="it ends, aloud")
@pytest.mark.parametrize("kind", COMMANDS)
async def test_a_command_that_stays_ends_with_its_connection(nats_server: NatsServer, kind: str) -> None:
    async with Proxy.before(nats_server.url) as proxy:
        name, *rest = COMMANDS[kind]
        prefix = f"c{uuid4().hex}"
        with command(name, *rest, "--nats-url", proxy.url, "--json", PLANCAST_BUS__PREFIX=prefix) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert json.loads(line)["ready"], await asyncio.to_thread(process.communicate)
            proxy.say_error(PROTOCOL_ERROR)
            async with asyncio.timeout(PATIENCE):
                _, said = await asyncio.to_thread(process.communicate)
        assert process.returncode == 3, said
        assert "closed for good: maximum control line exceeded" in said
        assert "Traceback" not in said
