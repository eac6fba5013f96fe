"""Batches staged in memory: where that is, what of it is left, and that nothing is lost or doubled with it."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plancast_bus.errors import BusError, NatsServerError
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.acks import PubAck
from plancast_bus.jetstream.messaging import group_commit
from plancast_bus.nats_server import batch_ramdisk
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.settings import BusSettings, NatsSettings

REQUESTS = "PLANCAST_REQUESTS"
pytestmark = pytest.mark.skipif(
    not batch_ramdisk.is_memory(batch_ramdisk.MEMORY), reason="there is no file system in memory"
)


@pytest.fixture(autouse=True)
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends concurrent messages as a batch."""
    monkeypatch.setattr(group_commit, "ROUNDS_FROM_ALWAYS", 0)
    monkeypatch.setattr(group_commit, "MIN_BATCH_ALWAYS", 2)


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[JetStreamBus]:
    settings = NatsSettings(url=server.url, publish_timeout=2.0)
    bus = await connect(settings, BusSettings(group_commit="always"))
    await bus.ensure_streams()
    await asyncio.to_thread(server.stage_in_memory)
    yield bus
    await bus.close()


@pytest.fixture
def server(tmp_path: Path) -> NatsServer:
    return NatsServer(tmp_path / "nats", ServerOptions(sync_interval="always"))


def links(server: NatsServer) -> dict[str, Path]:
    """The targets of the streams' linked batch folders."""
    found = server.data_dir.glob("jetstream/*/streams/*/batches")
    return {path.parent.name: path.readlink() for path in found if path.is_symlink()}


def place_of(server: NatsServer) -> Path:
    return server._batch_ramdisk._place


async def publish(bus: JetStreamBus, names: list[str]) -> set[str]:
    """Publish as one batch or more; returns those that are acknowledged."""
    sent = (
        bus._publisher.publish_acked(
            f"plancast.action-requests.{name}.echo.requested", name.encode(), {"Nats-Msg-Id": name}
        )
        for name in names
    )
    acks = await asyncio.gather(*sent, return_exceptions=True)
    assert all(isinstance(ack, PubAck | BusError) for ack in acks)
    return {name for name, ack in zip(names, acks, strict=True) if isinstance(ack, PubAck)}


async def begin_batch(bus: JetStreamBus) -> None:
    """Send the first message of a batch that is never committed."""
    headers = {"Nats-Batch-Id": "open", "Nats-Batch-Sequence": "1"}
    await bus._connection.client.request("plancast.action-requests.p.echo.requested", b"", headers=headers)


async def stored(bus: JetStreamBus) -> list[str]:
    after, found = 0, []
    while (message := await bus._api.next_from_leader(REQUESTS, "plancast.>", after)) is not None:
        after = message.sequence
        found.append(message.payload.decode())
    return found


async def test_batches_are_staged_in_memory_and_leave_nothing_there(server: NatsServer) -> None:
    names = [f"p{number}" for number in range(100)]
    async with server:
        place = place_of(server)
        async with connected(server) as bus:
            assert all(target.is_relative_to(place) for target in links(server).values())
            assert REQUESTS in links(server)
            await begin_batch(bus)
            assert len(list(links(server)[REQUESTS].iterdir())) == 1
            assert await publish(bus, names) == set(names)
            assert len(list(links(server)[REQUESTS].iterdir())) == 1  # the one that is open
            assert await stored(bus) == names
    assert not place.exists()
    assert not links(server)


async def test_who_is_refused_the_folder_leaves_the_batches_of_its_server_alone(server: NatsServer) -> None:
    other = NatsServer(server.data_dir, server.options)
    async with server, connected(server):
        before = links(server)
        with pytest.raises(NatsServerError):
            other.start()
        other.stop()
        assert links(server) == before
        assert all(target.is_dir() for target in before.values())


@pytest.mark.parametrize("sync_interval", [None, "10s"])
async def test_a_server_that_does_not_sync_every_write_is_left_alone(tmp_path: Path, sync_interval: str | None) -> None:
    async with NatsServer(tmp_path / "nats", ServerOptions(sync_interval=sync_interval)) as server:
        async with connected(server):
            assert not links(server)
        assert not place_of(server).exists()


@pytest.mark.parametrize("end", [NatsServer.stop, NatsServer.kill])
async def test_after_a_restart_batches_are_staged_in_memory_again(
    server: NatsServer, end: Callable[[NatsServer], None]
) -> None:
    async with server:
        async with connected(server) as bus:
            before = links(server)
            assert await publish(bus, ["a", "b"]) == {"a", "b"}
            await begin_batch(bus)
        end(server)
        server.start()
        assert links(server) == before
        assert not list(before[REQUESTS].iterdir())
        async with connected(server) as bus:
            assert await publish(bus, ["c", "d"]) == {"c", "d"}
            assert await stored(bus) == ["a", "b", "c", "d"]


@pytest.mark.slow
@pytest.mark.parametrize("is_memory_lost", [False, True], ids=["memory-stays", "memory-is-lost"])
async def test_nothing_is_lost_or_doubled_when_servers_die_within_batches(
    server: NatsServer, is_memory_lost: bool
) -> None:
    chance = random.Random(20)
    names = [f"p{number}" for number in range(2000)]
    acknowledged: set[str] = set()
    async with server:
        for _death in range(5):
            async with connected(server) as bus:
                sending = asyncio.ensure_future(publish(bus, [name for name in names if name not in acknowledged]))
                await asyncio.sleep(chance.uniform(0.02, 0.15))
                await asyncio.to_thread(server.kill)
                acknowledged |= await sending
            if is_memory_lost:
                shutil.rmtree(place_of(server))
            await asyncio.to_thread(server.start)
        async with connected(server) as bus:
            held = await stored(bus)
            assert len(set(held)) == len(held)
            assert acknowledged <= set(held)
            left = [name for name in names if name not in acknowledged]
            assert await publish(bus, left) == set(left)
            assert sorted(await stored(bus)) == sorted(names)


async def test_where_memory_takes_nothing_messages_are_stored_one_by_one(server: NatsServer) -> None:
    async with server, connected(server) as bus:
        target = links(server)[REQUESTS]
        target.rmdir()
        target.write_text("in the way")
        assert await publish(bus, ["a", "b", "c"]) == {"a", "b", "c"}
        assert sorted(await stored(bus)) == ["a", "b", "c"]


async def test_a_place_that_was_swept_is_made_again_when_batches_are_placed(server: NatsServer) -> None:
    async with server, connected(server) as bus:
        shutil.rmtree(place_of(server))
        assert await publish(bus, ["a", "b"]) == {"a", "b"}  # one by one
        await asyncio.to_thread(server.stage_in_memory)
        await begin_batch(bus)
        assert len(list(links(server)[REQUESTS].iterdir())) == 1


@pytest.mark.parametrize("obstacle", ["others-may-look", "a-link", "a-file"])
async def test_a_place_that_is_not_ours_alone_is_not_used(server: NatsServer, tmp_path: Path, obstacle: str) -> None:
    place = place_of(server)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if obstacle == "a-link":
        place.symlink_to(elsewhere)
    elif obstacle == "a-file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    try:
        async with server:
            async with connected(server) as bus:
                assert not links(server)
                assert await publish(bus, ["a", "b"]) == {"a", "b"}
            assert not list(elsewhere.iterdir())
        assert place.is_symlink() or place.exists()
    finally:
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()


async def test_without_room_in_memory_batches_are_staged_on_disk(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ramdisk, "ROOM", 1 << 60)
    async with server, connected(server) as bus:
        assert not links(server)
        assert await publish(bus, ["a", "b"]) == {"a", "b"}


async def test_batches_under_way_are_not_disturbed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_ramdisk, "_ATTEMPTS", 2)
    async with server:
        bus = await connect(NatsSettings(url=server.url), BusSettings(group_commit="always"))
        await bus.ensure_streams()
        await begin_batch(bus)
        assert not server._batch_ramdisk.place()
        assert REQUESTS not in links(server)
        assert "PLANCAST_RESULTS" in links(server)
        await bus.close()
