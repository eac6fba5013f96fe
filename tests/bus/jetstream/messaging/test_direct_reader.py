"""Reading and working through a login whose account has no JetStream, on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.isolation.nats_with_roles import RoleServer, role_server
from tests.isolation.test_nats_auth import bus_of

from plancast_actors.workers.runner import task_consumer
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus
from plancast_bus.jetstream.messaging.direct_reader import BATCH, DirectReader
from plancast_bus.jetstream.messaging.stream_reader import StreamReader

STREAM, EVERY = "PLANCAST_CHECKPOINTS", "plancast-store.checkpoints.*"


@pytest.fixture
def server(tmp_path: Path) -> RoleServer:
    with role_server(tmp_path, "--worker=worker=work.requested") as server:
        yield server


@pytest.fixture
async def owner(server: RoleServer) -> AsyncIterator[JetStreamBus]:
    async with bus_of(server, "runtime") as bus:
        await bus.ensure_streams()
        yield bus


@pytest.fixture
async def observer(server: RoleServer, owner: JetStreamBus) -> AsyncIterator[JetStreamBus]:
    async with bus_of(server, "observer") as bus:
        yield bus


def readers(owner: JetStreamBus, observer: JetStreamBus) -> tuple[StreamReader, DirectReader]:
    mine, theirs = owner.checkpoints._reader, observer.checkpoints._reader
    assert isinstance(theirs, DirectReader)
    assert not isinstance(mine, DirectReader)
    return mine, theirs


async def store(bus: JetStreamBus, *plans: int, text: bytes = b"x") -> None:
    writes = (bus._publisher.publish_acked(f"plancast-store.checkpoints.p{n}", text, {"N": str(n)}) for n in plans)
    await asyncio.gather(*writes)


@pytest.mark.parametrize("stored", [0, 1, BATCH, 3 * BATCH + 7])
async def test_both_readers_read_the_same(owner: JetStreamBus, observer: JetStreamBus, stored: int) -> None:
    await store(owner, *range(stored))
    await store(owner, *range(0, stored, 3))  # stored anew: gaps
    last = stored + len(range(0, stored, 3))
    by_consumer, direct = readers(owner, observer)
    for policy in ("all", "last_per_subject"):
        for bounds in ({}, {"after": stored // 2}, {"after": 1, "before": last}, {"before": 2}):
            if bounds.get("after", 0) + 1 >= bounds.get("before", last + 2) or (bounds and policy != "all"):
                continue  # nothing to ask for, or nothing that is asked for
            found = [
                [
                    (m.subject, m.sequence, m.payload, m.headers["N"])
                    async for m in reader.read(STREAM, EVERY, policy, **bounds)
                ]  # type: ignore[arg-type]
                for reader in (by_consumer, direct)
            ]
            assert found[0] == found[1], (policy, bounds)
    for before in (0, last // 2):
        back = [
            [(m.subject, m.sequence) async for m in reader.read_back(STREAM, EVERY, before=before)]
            for reader in (by_consumer, direct)
        ]
        assert back[0] == back[1]
    assert await direct.subjects(STREAM, EVERY) == await by_consumer.subjects(STREAM, EVERY)
    assert len(await direct.subjects(STREAM, EVERY)) == stored


async def test_large_messages_come_one_request_at_a_time(owner: JetStreamBus, observer: JetStreamBus) -> None:
    await store(owner, *range(12), text=bytes(900_000))
    _, direct = readers(owner, observer)
    found = [message async for message in direct.read(STREAM, EVERY, "all")]
    assert [len(message.payload) for message in found] == [900_000] * 12
    assert [m.payload async for m in direct.read(STREAM, EVERY, "all", headers_only=True)] == [b""] * 12


async def test_what_is_stored_anew_while_reading_is_not_missed(owner: JetStreamBus, observer: JetStreamBus) -> None:
    await store(owner, *range(2 * BATCH))
    _, direct = readers(owner, observer)
    found: set[str] = set()
    async with aclosing(direct.read(STREAM, EVERY, "all")) as reading:
        async for message in reading:
            if not found:
                await store(owner, *range(BATCH, 2 * BATCH))
            found.add(message.subject)
    assert len(found) == 2 * BATCH


async def test_following_shows_each_commit_and_a_watch_the_newest(owner: JetStreamBus, observer: JetStreamBus) -> None:
    _, direct = readers(owner, observer)
    await store(owner, 1, 2)
    first = await owner._api.last(STREAM, "plancast-store.checkpoints.p1")
    assert first is not None
    async with (
        asyncio.timeout(30),
        aclosing(direct.follow(STREAM, EVERY, after=first.sequence)) as following,
        aclosing(direct.watch(STREAM, "plancast-store.checkpoints.p1")) as watching,
    ):
        assert (await anext(following)).subject.endswith(".p2")
        assert (await anext(watching)).payload == b"x"
        await store(owner, 1, text=b"moved")
        assert (await anext(following)).subject.endswith(".p1")
        assert (await anext(watching)).payload == b"moved"


async def test_reading_what_is_not_exported_is_refused_at_once(owner: JetStreamBus, observer: JetStreamBus) -> None:
    _, direct = readers(owner, observer)
    for reading in (
        direct.read("PLANCAST_REQUESTS", ">", "all"),
        direct.read_back("PLANCAST_META", ">"),
        direct.follow("PLANCAST_META", ">"),
        direct.watch("PLANCAST_META", "plancast-store.registry.answers.x"),
    ):
        with pytest.raises(AccessDenied):
            await anext(reading)
    with pytest.raises(AccessDenied):
        await direct.subjects("PLANCAST_TIMERS", ">")


async def test_without_a_deployment_reads_raise_and_is_deployed_is_false(server: RoleServer) -> None:
    async with bus_of(server, "observer") as bus:
        assert bus.restricted
        assert not await bus.is_deployed()
        with pytest.raises(BusUnavailable, match="its stream does not exist"):
            await anext(bus.checkpoints.newest())
        with pytest.raises(AccessDenied, match="has no JetStream"):
            await bus.ensure_streams()
        with pytest.raises(AccessDenied, match="has no JetStream"):
            await bus.health()
        assert (await bus.login()).account == "observer"
        async with bus_of(server, "runtime") as owner:
            await owner.ensure_streams()
        assert await bus.is_deployed()


async def test_a_worker_waits_for_its_consumer_and_logs_it(
    server: RoleServer, owner: JetStreamBus, caplog: pytest.LogCaptureFixture
) -> None:
    async with bus_of(server, "worker") as worker:
        spec = task_consumer("work.requested", worker.subjects, 5.0)
        consumer = worker.consume(spec)
        fetching = asyncio.create_task(consumer.fetch(4))
        async with asyncio.timeout(20):
            while "no consumer task-work-requested" not in caplog.text:
                await asyncio.sleep(0.02)
            await owner.ensure_consumer(spec)
            event = EventEnvelope(source="s", type="work.requested", topic=EventTopic.ACTION_REQUESTS)
            await owner.publish(event)
            (delivery,) = await fetching
        assert delivery.message_id == event.id
        await consumer.ack([delivery])
        await consumer.close()
        assert caplog.text.count("no consumer") == 1
        other = worker.consume(task_consumer("image.render", worker.subjects, 5.0))
        for _ in range(2):
            with pytest.raises(AccessDenied, match=r"MSG\.NEXT"):
                await other.fetch(1)
        await other.close()
        async with asyncio.timeout(20):
            while (await owner.stored_events("action-requests", event.correlation_id)) != []:
                await asyncio.sleep(0.02)


async def test_a_worker_takes_itself_off_the_registry(server: RoleServer, owner: JetStreamBus) -> None:
    async with bus_of(server, "worker") as worker:
        await worker.registry.put("agent", "w@1", {"n": 1}, ttl=60.0)
        assert await owner.registry.list("agent") == {"w@1": {"n": 1}} == await worker.registry.list("agent")
        await worker.registry.delete("agent", "w@1")
        assert await owner.registry.list("agent") == {} == await worker.registry.list("agent")
        with pytest.raises(BusError):
            await worker.registry.delete("app", "a")
