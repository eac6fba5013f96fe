"""Three nats-servers: what the bus makes of a leader that is killed, or hangs, and of servers without a majority."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from tests.cluster.nats_cluster import NatsCluster

from plancast_bus.errors import BusUnavailable, NatsServerError
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

pytestmark = pytest.mark.slow

CHECKPOINTS = "PLANCAST_CHECKPOINTS"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    async def make_streams() -> None:
        async with joined(running.url):
            pass

    with NatsCluster(tmp_path_factory.mktemp("cluster")) as running:
        asyncio.run(make_streams())
        yield running


@pytest.fixture
def servers(shared: NatsCluster) -> Iterator[NatsCluster]:
    """The cluster, which is whole again after each test."""
    yield shared
    for index in range(3):
        shared.heal(index)
    shared.start()
    while not all(shared.caught_up(stream) for stream in dataclasses.astuple(StreamNames.of("plancast"))):
        time.sleep(0.1)


@asynccontextmanager
async def joined(url: str, publish_timeout: float = 20.0) -> AsyncIterator[JetStreamBus]:
    bus = await connect(NatsSettings(url=url, publish_timeout=publish_timeout), BusSettings(replicas=3))
    try:
        await bus.ensure_streams()
        yield bus
    finally:
        await bus.close()


def checkpoint(plan: str, revision: int = 1, version: int = 0) -> Checkpoint:
    return Checkpoint(
        correlation_id=plan,
        revision=revision,
        epoch=str(revision),
        state=b"state",
        summary=PlanSummary(plan, "running", "any.goal", "waiting", revision),
        version=version,
    )


async def test_all_that_is_kept_has_three_replicas(servers: NatsCluster) -> None:
    async with joined(servers.url) as bus:
        assert {stream["replicas"] for stream in (await bus.health())["streams"].values()} == {3}
        await bus.registry.put("app", "a", {"name": "a"}, ttl=60)
        async with asyncio.timeout(30):
            while await bus.registry.list("app") != {"a": {"name": "a"}}:  # a replica that is read may lag
                await asyncio.sleep(0.1)


async def test_streams_of_one_server_are_given_replicas_when_the_settings_say_so(servers: NatsCluster) -> None:
    nats = NatsSettings(url=servers.url)
    for replicas in (1, 3):
        bus = await connect(nats, BusSettings(prefix="grown", replicas=replicas))
        await bus.ensure_streams()
        assert {stream["replicas"] for stream in (await bus.health())["streams"].values()} == {replicas}
        await bus.close()


async def test_a_killed_leader_is_not_noticed_by_those_who_publish(servers: NatsCluster) -> None:
    leader = servers.leader_of(CHECKPOINTS)
    async with joined(servers.servers[(leader + 1) % 3].url) as bus:
        version = await bus.checkpoints.commit(checkpoint("killed"))
        servers.kill(leader)
        await bus.checkpoints.commit(checkpoint("killed", 2, version))
        event = EventEnvelope(source="t", type="any.goal", topic=EventTopic.ACTION_REQUESTS, correlation_id="killed")
        await bus.publish(event)
        found = await bus.checkpoints.load("killed")
        assert found is not None
        assert found.revision == 2
        assert servers.leader_of(CHECKPOINTS) != leader
        servers.start(leader)
        async with asyncio.timeout(30):
            while not servers.caught_up(CHECKPOINTS):
                await asyncio.sleep(0.1)


@pytest.mark.chaos
async def test_what_a_hanging_leader_does_not_answer_is_asked_again_of_the_next_one(servers: NatsCluster) -> None:
    leader = servers.leader_of(CHECKPOINTS)
    async with joined(servers.servers[(leader + 1) % 3].url) as bus:
        version = await bus.checkpoints.commit(checkpoint("hanging"))
        servers.cut(leader)
        version = await bus.checkpoints.commit(checkpoint("hanging", 2, version))
        servers.heal(leader)
        version = await bus.checkpoints.commit(checkpoint("hanging", 3, version))
        found = await bus.checkpoints.load("hanging")
        assert found is not None
        assert (found.revision, found.version) == (3, version)


async def test_a_client_of_a_server_that_hangs_goes_on_with_another(
    servers: NatsCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(servers.url) as bus:
        ports = [server.options.port for server in servers.servers]
        left = bus._connection.client.connected_url
        assert left is not None
        assert left.port is not None
        servers.cut(ports.index(left.port))
        for number in range(3):
            await bus.registry.put("test", f"hanging-{number}", {"number": number}, ttl=60)
        found = bus._connection.client.connected_url
        assert found is not None
        assert found.port != left.port
    (moved,) = (record for record in caplog.records if "moving to another one" in record.message)
    assert getattr(moved, "server") == f"127.0.0.1:{left.port}"  # noqa: B009 - a field of this record


@pytest.mark.chaos
async def test_a_server_that_is_left_alone_says_so_and_shows_no_plan_as_it_may_no_longer_be(
    servers: NatsCluster,
) -> None:
    alone = (servers.leader_of(CHECKPOINTS) + 1) % 3
    async with joined(servers.servers[alone].url, publish_timeout=1.0) as bus:
        await bus.checkpoints.commit(checkpoint("alone"))
        for index in {0, 1, 2} - {alone}:
            servers.kill(index)
        with pytest.raises(BusUnavailable):
            await bus.checkpoints.load("alone")
        with pytest.raises(BusUnavailable):
            await bus.checkpoints.commit(checkpoint("alone", 2, 1))
        with pytest.raises(BusUnavailable):  # and not UnsupportedServer, which nobody waits out
            await connect(NatsSettings(url=servers.servers[alone].url, publish_timeout=1.0), BusSettings(replicas=3))


async def test_what_a_cluster_has_not_agreed_on_yet_is_asked_again(servers: NatsCluster) -> None:
    answers = [
        b'{"error":{"code":409,"err_code":10158,"description":"in process"},"stream":"S","seq":0}',
        b'{"stream":"S","seq":7}',
    ]
    client = await nats.connect(servers.url.split(","))

    async def answer(message: Msg) -> None:
        await message.respond(answers.pop(0))

    await client.subscribe("as.a.stream", cb=answer)
    await client.flush()
    async with joined(servers.url) as bus:
        ack = await bus._publisher.publish_acked("as.a.stream", b"", {"Nats-Msg-Id": "once"})
    assert ack.sequence == 7
    await client.close()


async def test_a_stream_that_nobody_has_made_has_no_leader(
    servers: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.nats_cluster.ELECTION_PATIENCE", 0.3)
    with pytest.raises(NatsServerError, match="NOWHERE"):
        servers.leader_of("NOWHERE")
    bus = await connect(NatsSettings(url=servers.url, publish_timeout=1.0), BusSettings(prefix="unmade"))
    event = EventEnvelope(source="t", type="any.goal", topic=EventTopic.ACTION_REQUESTS, correlation_id="unmade")
    with pytest.raises(BusUnavailable, match="nothing has created the streams"):
        await bus.publish(event)
    await bus.close()


@pytest.mark.chaos
def test_what_a_cluster_stores_is_found_by_the_next_one(tmp_path: Path) -> None:
    async def commit(url: str) -> None:
        async with joined(url) as bus:
            await bus.checkpoints.commit(checkpoint("kept"))

    async def load(url: str) -> Checkpoint | None:
        async with joined(url) as bus:
            return await bus.checkpoints.load("kept")

    with NatsCluster(tmp_path) as first:
        asyncio.run(commit(first.url))
        first.kill()
    with NatsCluster(tmp_path) as second:
        found = asyncio.run(load(second.url))
    assert found is not None
    assert found.revision == 1
