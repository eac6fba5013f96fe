"""Small values are read many at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from plancast_bus.errors import UnreadableValue
from plancast_bus.events.folding import Folder
from plancast_bus.events.value_parts import Reference, digest_of
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.api import JetStreamApi, StoredMessage
from plancast_bus.jetstream.messaging.stream_reader import StreamReader
from plancast_bus.jetstream.stores.values import BATCH
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.values import FRAME_BYTES, unfold
from plancast_bus.settings import BusSettings, NatsSettings

pytestmark = pytest.mark.asyncio
Got = tuple[list[StoredMessage], int]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The numbers of requests for many messages, and for one."""
    counts = {"many": 0, "one": 0}
    get, last = StreamReader.get, JetStreamApi.last

    async def counted_get(reader: StreamReader, stream: str, request: Mapping[str, Any]) -> Got:
        counts["many"] += 1
        return await get(reader, stream, request)

    async def counted_last(api: JetStreamApi, stream: str, subject: str) -> StoredMessage | None:
        counts["one"] += "values" in subject
        return await last(api, stream, subject)

    monkeypatch.setattr(StreamReader, "get", counted_get)
    monkeypatch.setattr(JetStreamApi, "last", counted_last)
    return counts


@pytest.fixture
async def buses(nats_server: NatsServer, requests: dict[str, int]) -> AsyncIterator[tuple[JetStreamBus, JetStreamBus]]:
    """One that stores, and another that has nothing in memory."""
    settings = BusSettings(prefix=f"t{uuid4().hex[:12]}", shards=4)
    writer, reader = [await connect(NatsSettings(url=nats_server.url), settings) for _ in range(2)]
    await writer.ensure_streams()
    yield writer, reader
    await reader.close()
    await writer.close()


def contents_of(*sizes: int) -> dict[bytes, bytes]:
    contents = (random.Random(n).randbytes(size) for n, size in enumerate(sizes))
    return {digest_of(each): each for each in contents}


def references_to(contents: Mapping[bytes, bytes]) -> list[Reference]:
    return [Reference(digest, len(each)) for digest, each in contents.items()]


async def test_a_plan_of_small_rows_is_read_in_few_requests(
    buses: tuple[JetStreamBus, JetStreamBus], requests: dict[str, int]
) -> None:
    writer, reader = buses
    state = {"rows": [{"n": n, "text": f"row {n} of some words"} for n in range(40_000)]}
    folded = Folder(1 << 20).fold(state)
    assert len(folded.contents) > 1_000
    await writer.values.put("acme", "p", folded.contents)
    (value,), _ = await unfold(reader.values, "acme", "p", [folded.packed])
    assert value == state
    assert requests["one"] < 4
    assert requests["many"] < 4 + 2 * len(folded.contents) / BATCH


@pytest.mark.parametrize(
    "sizes",
    [
        [10] * (BATCH + 1),
        [FRAME_BYTES // 2, FRAME_BYTES // 2, 1],
        [1, FRAME_BYTES, 2, FRAME_BYTES + 1, 3, 4, 3 * FRAME_BYTES],
        [FRAME_BYTES - 1, 2, 2 * FRAME_BYTES, FRAME_BYTES],
    ],
)
async def test_values_of_all_sizes_are_read_together(
    buses: tuple[JetStreamBus, JetStreamBus], sizes: list[int]
) -> None:
    writer, reader = buses
    contents = contents_of(*sizes)
    await writer.values.put("acme", "p", contents)
    for _ in range(2):  # the second time some are in memory
        times: dict[bytes, float] = {}
        assert await reader.values.get("acme", references_to(contents), stored_at=times) == contents
        assert times.keys() == contents.keys()
        assert max(times.values()) <= await writer.values.now()


async def test_what_a_replica_does_not_have_yet_is_read_by_itself(
    buses: tuple[JetStreamBus, JetStreamBus], requests: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = buses
    contents = contents_of(*range(20, 60))
    await writer.values.put("acme", "p", contents)
    get = StreamReader.get

    async def lagging(reader: StreamReader, stream: str, request: Mapping[str, Any]) -> Got:
        messages, pending = await get(reader, stream, request)
        return messages[::2], pending

    monkeypatch.setattr(StreamReader, "get", lagging)
    assert await reader.values.get("acme", references_to(contents)) == contents
    assert requests == {"many": 1, "one": 20}


async def test_references_with_a_wrong_size_make_no_response_larger(
    buses: tuple[JetStreamBus, JetStreamBus], requests: dict[str, int]
) -> None:
    writer, reader = buses
    contents = contents_of(*[FRAME_BYTES] * 20)
    await writer.values.put("acme", "p", contents)
    sent: list[int] = []
    get = StreamReader.get

    async def measured(reader: StreamReader, stream: str, request: Mapping[str, Any]) -> Got:
        messages, pending = await get(reader, stream, request)
        sent.append(sum(len(each.payload) for each in messages))
        return messages, pending

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamReader, "get", measured)
        found = await reader.values.get("acme", [Reference(digest, 1) for digest in contents])
    assert found == contents
    assert 0 < max(sent) <= 2 * FRAME_BYTES
    assert requests["one"] >= 18


@pytest.mark.parametrize(("size", "again"), [(FRAME_BYTES, 0), (FRAME_BYTES + 1, 2)])
async def test_what_was_read_stays_in_memory_unless_it_is_large(
    buses: tuple[JetStreamBus, JetStreamBus], requests: dict[str, int], size: int, again: int
) -> None:
    writer, reader = buses
    contents = contents_of(size)
    await writer.values.put("acme", "p", contents)
    assert await reader.values.get("acme", references_to(contents)) == contents
    before = requests["one"]
    assert await reader.values.get("acme", references_to(contents)) == contents
    assert requests["one"] - before == again


@pytest.mark.parametrize("there", [0, 40])
async def test_a_missing_value_among_many_is_named(buses: tuple[JetStreamBus, JetStreamBus], there: int) -> None:
    writer, reader = buses
    contents, lost = contents_of(*range(20, 20 + there)), Reference(b"d" * 32, 100)
    await writer.values.put("acme", "p", contents)
    with pytest.raises(UnreadableValue, match=f"the value {lost.digest.hex()} is missing"):
        await reader.values.get("acme", [*references_to(contents), lost])


async def test_many_small_values_are_read_by_a_loop_whose_time_is_coarse(
    buses: tuple[JetStreamBus, JetStreamBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = buses
    contents = contents_of(*[2_000] * BATCH)
    await writer.values.put("", "plan", contents)
    loop = asyncio.get_running_loop()
    exact = loop.time
    monkeypatch.setattr(loop, "time", lambda: float(int(exact())))  # that of uvloop has milliseconds

    assert await reader.values.get("", references_to(contents)) == contents
