"""Readers of one subject, which look into the stream when something is published to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

import pytest

from plancast_bus.errors import BusError, CommitConflict
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.messaging.hints import Hints
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 120.0


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[JetStreamBus]:
    found = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=f"hints{uuid4().hex}"))
    await found.ensure_streams()
    yield found
    await found.close()


def turn(revision: int, version: int) -> Checkpoint:
    summary = PlanSummary("p", "running", "goal", "s", revision)
    return replace(Checkpoint("p", revision, f"e{revision}", b"\x80", summary), version=version)


async def consumers(bus: JetStreamBus) -> int:
    names = bus._names
    states = [await bus._api.call(f"STREAM.INFO.{name}") for name in (names.checkpoints, names.progress)]
    return sum(each["state"]["consumer_count"] for each in states)


async def test_watches_need_no_consumers(bus: JetStreamBus) -> None:
    version = await bus.checkpoints.commit(turn(1, 0))
    await bus.progress.put("p", b"0")
    async with (
        asyncio.timeout(PATIENCE),
        aclosing(bus.checkpoints.watch("p")) as watching,
        aclosing(bus.progress.follow("p")) as notes,
    ):
        assert (await anext(watching)).revision == 1
        assert (await anext(notes)).payload == b"0"
        following = asyncio.ensure_future(anext(watching)), asyncio.ensure_future(anext(notes))
        assert await consumers(bus) == 0
        await bus.checkpoints.commit(turn(2, version))
        await bus.progress.put("p", b"1")
        checkpoint, note = await asyncio.gather(*following)
        assert (checkpoint.revision, note.payload) == (2, b"1")


async def test_a_commit_that_is_refused_shows_nothing_and_the_next_one_is_seen(bus: JetStreamBus) -> None:
    version = await bus.checkpoints.commit(turn(1, 0))
    async with asyncio.timeout(PATIENCE), aclosing(bus.checkpoints.watch("p")) as watching:
        assert (await anext(watching)).revision == 1
        following = asyncio.ensure_future(anext(watching))
        with pytest.raises(CommitConflict):
            await bus.checkpoints.commit(turn(9, version + 1_000_000))
        await bus.checkpoints.commit(turn(2, version))
        assert (await following).revision == 2


async def test_all_notes_of_a_burst_are_read_once_and_in_order(bus: JetStreamBus) -> None:
    sent = [b"%d" % number for number in range(200)]
    async with asyncio.timeout(PATIENCE), aclosing(bus.progress.follow("p")) as notes:
        first = asyncio.ensure_future(anext(notes))
        for each in sent:
            await bus.progress.put("p", each)
        found = [(await first).payload]
        found += [(await anext(notes)).payload for _ in sent[1:]]
        assert found == sent


async def test_a_hint_before_its_message_is_repeated_until_the_message_is_there(bus: JetStreamBus) -> None:
    subject = f"early.{uuid4().hex}"
    async with asyncio.timeout(PATIENCE), Hints(bus._connection, subject) as hints:
        assert hints.expected < 0
        headers = {"Nats-Expected-Last-Subject-Sequence": "7"}
        await bus._connection.client.publish(subject, b"", headers=headers)
        while hints.expected != 7:
            await hints.wait(found=True)
            hints.clear()
        for _ in range(3):  # without a further hint
            assert await hints.wait(found=False)


async def test_a_watch_goes_on_when_its_stream_was_deleted_and_is_made_again(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plancast_bus.jetstream.messaging.hints.UNHINTED", 0.1)
    await bus.checkpoints.commit(turn(1, 0))
    async with asyncio.timeout(PATIENCE), aclosing(bus.checkpoints.watch("p")) as watching:
        assert (await anext(watching)).revision == 1
        following, failed = asyncio.ensure_future(anext(watching)), asyncio.Event()
        last = bus._api.last

        async def noted(stream: str, subject: str) -> StoredMessage | None:
            try:
                return await last(stream, subject)
            except BusError:
                failed.set()
                raise

        monkeypatch.setattr(bus._api, "last", noted)
        await bus._api.call(f"STREAM.DELETE.{bus._names.checkpoints}")
        await failed.wait()
        await bus.restore()
        await bus.checkpoints.commit(turn(2, 0))
        assert (await following).revision == 2
