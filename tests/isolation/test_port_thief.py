"""Another user of the machine that takes the port of an embedded nats-server gets no login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plancast import BusUnavailable, Client
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client import peer_owner
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.settings import BusSettings, NatsSettings

NOBODY = 65534
PATIENCE = 90.0
TOKEN = "t0ken" * 12
ENOUGH = 6

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user here; run these tests as root"),
    pytest.mark.skipif(not peer_owner.is_known(), reason="the owners of connections are read from /proc"),
]

# A line for each connection: what it was sent until the client went away. It greets as a nats-server does that has
# others in its cluster, or with what no client can read.
THIEF = f"""
import json, os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
family, host, port, greeting = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, *sys.argv[1:]
thief = socket.socket(family)
thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
thief.bind((host, int(port)))
thief.listen()
print("listening", flush=True)
while True:
    connection, _ = thief.accept()
    connection.settimeout(10)
    sent = b""
    try:
        connection.sendall(b"INFO " + greeting.encode() + b"\\r\\n")
        while chunk := connection.recv(65536):
            sent += chunk
    except OSError:
        pass
    connection.close()
    print(json.dumps(sent.decode()), flush=True)
"""
GREETINGS = (
    json.dumps({"version": "2.12.0", "auth_required": True, "headers": True, "max_payload": 1 << 20,
                "connect_urls": ["127.0.0.1:9", "127.0.0.1:13"]}),
    "[]",
)  # fmt: skip


@contextlib.contextmanager
def thief(port: str, greeting: str, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", THIEF, host, port, greeting], cwd="/", stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


async def records(process: subprocess.Popen[str], count: int = ENOUGH) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return [json.loads(await asyncio.to_thread(process.stdout.readline)) for _ in range(count)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", ServerOptions(token=TOKEN)) as started:
        yield started


def port_of(server: NatsServer) -> str:
    return server.url.rpartition(":")[2]


async def until_back(bus: JetStreamBus) -> None:
    async with asyncio.timeout(PATIENCE):
        while not bus._connection.alive:
            await asyncio.sleep(0.05)
    await bus.ensure_streams()


@pytest.mark.attack(
    who="other user", what="listen on the port of a killed embedded NATS", expected="no login; clients come back"
)
@pytest.mark.parametrize("greeting", GREETINGS, ids=["as a cluster", "nonsense"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::"], ids=["IPv4", "dual-stack"])
async def test_a_thief_of_the_port_gets_no_login(
    server: NatsServer, greeting: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await connect(NatsSettings(url=server.login_url, server_uid=os.geteuid()), BusSettings())
    try:
        await bus.ensure_streams()
        server.kill()
        with thief(port_of(server), greeting, host) as stealing:
            with caplog.at_level(logging.WARNING):
                assert await records(stealing) == [""] * ENOUGH
            said = [each.getMessage() for each in caplog.records if "another user" in each.getMessage()]
            assert len(said) == 1, said
            assert f"uid {NOBODY}" in said[0]
            assert TOKEN not in caplog.text
            stealing.kill()
            stealing.wait()
            await asyncio.to_thread(server.start)
        await until_back(bus)
        assert len(bus._connection.client._server_pool) == 1, "no server that the thief has named"
    finally:
        await bus.close()


async def test_the_thief_records_what_it_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with thief(str(port), GREETINGS[0]) as stealing, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(TOKEN.encode())
        client.shutdown(socket.SHUT_WR)
        assert await records(stealing, 1) == [TOKEN]


@pytest.mark.attack(who="other user", what="be there before a client connects", expected="it is refused at once")
async def test_a_client_of_run_json_refuses_a_thief(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.delenv("PLANCAST_NATS__URL", raising=False)
    (tmp_path / "run.json").write_text(json.dumps({"nats_url": server.login_url, "nats_embedded": True}))
    async with Client.connect(data_dir=tmp_path):
        pass
    server.kill()
    with thief(port_of(server), GREETINGS[0]) as stealing:
        with pytest.raises(BusUnavailable, match="a process of another user") as refused:
            await Client.connect(data_dir=tmp_path)
        assert TOKEN not in str(refused.value)
        assert await records(stealing, 1) == [""]


def test_what_waits_in_the_accept_queue_has_no_owner_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ends = client.getsockname(), client.getpeername()
        assert peer_owner.find_peer_owner(*ends) is None
        with server.accept()[0]:
            assert peer_owner.find_peer_owner(*ends) == os.geteuid()
