"""An embedded nats-server that has failed to write."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from plancast_bus.errors import BusUnavailable
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.nats_server import supervision
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 120.0
FAILURE = b"[7] 2026/01/01 00:00:00.000000 [ERR] JetStream failed to store a msg on stream '$G > S': no space left\n"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.05)


@asynccontextmanager
async def supervised(server: NatsServer) -> AsyncIterator[None]:
    task = asyncio.create_task(supervision.supervise(server))
    await asyncio.sleep(0)  # it has seen how long the log is
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def log(server: NatsServer, line: bytes) -> None:
    with server.log_path.open("ab") as lines:
        lines.write(line)


async def until_restarted(server: NatsServer, pid: int | None) -> None:
    async with asyncio.timeout(PATIENCE):
        while server.pid in (pid, None) or not server.running:
            await asyncio.sleep(0.02)


async def test_a_server_that_has_failed_to_write_is_started_again(fresh_nats: NatsServer) -> None:
    async with supervised(fresh_nats):
        for _ in range(2):
            pid = fresh_nats.pid
            log(fresh_nats, FAILURE)
            await until_restarted(fresh_nats, pid)


async def test_failures_of_an_earlier_run_and_other_lines_restart_nothing(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, has_failed = 0, supervision._has_failed

    def counted(path: Path, position: int) -> tuple[bool, int]:
        nonlocal looks
        looks += 1
        return has_failed(path, position)

    monkeypatch.setattr(supervision, "_has_failed", counted)
    pid = fresh_nats.pid
    log(fresh_nats, FAILURE)
    async with supervised(fresh_nats):
        log(fresh_nats, b"[7] 2026/01/01 00:00:00.000000 [ERR] something else\n")
        async with asyncio.timeout(PATIENCE):
            while looks < 3:
                await asyncio.sleep(0.02)
    assert fresh_nats.pid == pid


async def test_without_room_it_is_left_alone(fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, asked = fresh_nats.pid, asyncio.Event()
    usage = supervision.shutil.disk_usage(fresh_nats.data_dir)

    def full(path: Path) -> object:
        asked.set()
        return usage._replace(free=0)

    async with supervised(fresh_nats):
        with monkeypatch.context() as patched:
            patched.setattr(supervision.shutil, "disk_usage", full)
            log(fresh_nats, FAILURE)
            async with asyncio.timeout(PATIENCE):
                await asked.wait()
            assert fresh_nats.pid == pid
        await until_restarted(fresh_nats, pid)


async def test_a_restart_that_has_begun_is_completed_when_the_supervision_ends(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stop = asyncio.Event(), NatsServer.stop
    loop = asyncio.get_running_loop()

    def noted_stop(server: NatsServer) -> None:
        loop.call_soon_threadsafe(begun.set)
        stop(server)

    pid = fresh_nats.pid
    with monkeypatch.context() as patched:
        patched.setattr(NatsServer, "stop", noted_stop)
        async with supervised(fresh_nats):
            log(fresh_nats, FAILURE)
            async with asyncio.timeout(PATIENCE):
                await begun.wait()
    assert fresh_nats.running
    assert fresh_nats.pid != pid


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("disks can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def event(number: int) -> EventEnvelope:
    data, topic = {"text": os.urandom(50_000).hex()}, EventTopic.ACTION_RESULTS
    return EventEnvelope(id=str(number), source="t", type="a.b", topic=topic, correlation_id="c", data=data)


@pytest.mark.slow
async def test_publishers_go_on_by_themselves_when_a_full_disk_has_room_again(small_disk: Path) -> None:
    async with NatsServer(small_disk / "nats") as server, supervised(server):
        bus = await connect(NatsSettings(url=server.url, publish_timeout=1.0), BusSettings())
        await bus.ensure_streams()
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as filling, suppress(OSError):
            while True:
                filling.write(bytes(4096))
        with pytest.raises(BusUnavailable):
            await asyncio.gather(*(bus.publish(event(number)) for number in range(10)))
        filler.unlink()
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(BusUnavailable):
                    await bus.publish(event(1000))
                    break
        await bus.close()
