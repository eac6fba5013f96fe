"""Group commit: batches tell each message its own fate, are given up where they are slower, and lose nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plancast_bus.errors import BusError, PayloadTooLarge
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.acks import PubAck, SubjectTaken, WrongLastSequence
from plancast_bus.jetstream.messaging import group_commit
from plancast_bus.jetstream.messaging.publisher import unchanged
from plancast_bus.nats_server.process import NatsServer, ServerOptions
from plancast_bus.settings import BusSettings, NatsSettings

REQUEST = "plancast.action-requests.{}.echo.requested"
CHECKPOINT = "plancast-store.checkpoints.{}"
RESPONSE = "plancast-store.responses.action-results.{}.echo.completed"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


@pytest.fixture(params=["", "always"], ids=["default-sync", "every-write-synced"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JetStreamBus]:
    async with NatsServer(tmp_path / "nats", ServerOptions(sync_interval=request.param or None)) as server:
        connected = await connect(
            NatsSettings(url=server.url),
            BusSettings(group_commit="always" if "always" in request.fixturenames else "auto"),
        )
        await connected.ensure_streams()
        yield connected
        await connected.close()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends concurrent messages as a batch."""
    monkeypatch.setattr(group_commit, "ROUNDS_FROM_ALWAYS", 0)
    monkeypatch.setattr(group_commit, "MIN_BATCH_ALWAYS", 2)


async def publish(
    bus: JetStreamBus, subject: str, names: list[str], headers: dict[str, str] | None = None
) -> list[PubAck | BaseException]:
    sent = (
        bus._publisher.publish_acked(subject.format(name), name.encode(), headers or {"Nats-Msg-Id": name})
        for name in names
    )
    return await asyncio.gather(*sent, return_exceptions=True)


def begin(bus: JetStreamBus, name: str) -> asyncio.Future[PubAck]:
    return bus._publisher.begin(REQUEST.format(name), name.encode(), {}, unchanged)


async def stored(bus: JetStreamBus, stream: str) -> dict[int, bytes]:
    """The messages of a stream except its placeholder, by sequence."""
    after, found = 0, {}
    while (message := await bus._api.next_from_leader(stream, ">", after)) is not None:
        after = message.sequence
        if message.subject != bus.subjects.placeholder("requests"):
            found[after] = message.payload
    return found


@pytest.mark.usefixtures("always")
async def test_each_message_of_a_batch_learns_its_own_place(bus: JetStreamBus) -> None:
    names = [f"p{number}" for number in range(100)]
    acks = await publish(bus, REQUEST, names)
    held = await stored(bus, "PLANCAST_REQUESTS")
    assert [held[ack.sequence].decode() for ack in acks if isinstance(ack, PubAck)] == names


@pytest.mark.usefixtures("always")
async def test_one_stale_checkpoint_does_not_keep_the_others_of_its_batch_from_being_stored(bus: JetStreamBus) -> None:
    await publish(bus, CHECKPOINT, ["p3"], {EXPECTED: "0"})
    names = [f"p{number}" for number in range(8)]
    acks = await publish(bus, CHECKPOINT, names, {EXPECTED: "0"})
    assert isinstance(acks[3], WrongLastSequence)
    assert sum(isinstance(ack, PubAck) for ack in acks) == 7
    assert len(await stored(bus, "PLANCAST_CHECKPOINTS")) == 8


@pytest.mark.usefixtures("always")
async def test_records_of_effects_are_stored_together_each_by_its_own_version(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, names = "plancast-store.registry.effect.charge.{}", [f"e{number}" for number in range(8)]
    batched: list[str] = []
    send = bus._publisher._requester.send_one_way

    def note(subject: str, payload: bytes, headers: dict[str, str]) -> None:
        batched.append(payload.decode())
        send(subject, payload, headers)

    monkeypatch.setattr(bus._publisher._requester, "send_one_way", note)
    first = await publish(bus, record, names, {EXPECTED: "0", "Nats-TTL": "60"})
    assert batched == names[:-1]
    versions = [str(ack.sequence) for ack in first if isinstance(ack, PubAck)]
    versions[3] = "0"
    acks = await asyncio.gather(
        *(
            bus.registry.replace("effect.charge", name, b"2", int(version), 60.0)
            for name, version in zip(names, versions, strict=True)
        ),
        return_exceptions=True,
    )
    assert [type(ack) for ack in acks] == [int] * 3 + [WrongLastSequence] + [int] * 4
    assert [(await bus.registry.read("effect.charge", name))[0] for name in names] == [b"2"] * 3 + [b"e3"] + [b"2"] * 4


@pytest.mark.usefixtures("always")
async def test_repetitions_among_a_batch_are_stored_once(bus: JetStreamBus) -> None:
    first = await publish(bus, REQUEST, ["a", "b"])
    again = await publish(bus, REQUEST, ["b", "c", "a", "d"])
    assert again[0] == PubAck(first[1].sequence, True)
    assert again[2] == PubAck(first[0].sequence, True)
    assert sorted((await stored(bus, "PLANCAST_REQUESTS")).values()) == [b"a", b"b", b"c", b"d"]


@pytest.mark.usefixtures("always")
async def test_a_response_that_was_given_is_refused_alone(bus: JetStreamBus) -> None:
    await publish(bus, RESPONSE, ["a"])
    acks = await publish(bus, RESPONSE, ["b", "a", "c"], {"Content-Type": "text/plain"})
    assert [type(ack) for ack in acks] == [PubAck, SubjectTaken, PubAck]


@pytest.mark.usefixtures("always")
async def test_a_stream_that_takes_no_batches_takes_the_messages(bus: JetStreamBus) -> None:
    config = (await bus._api.call("STREAM.INFO.PLANCAST_REQUESTS"))["config"]
    await bus._api.call("STREAM.UPDATE.PLANCAST_REQUESTS", config | {"allow_atomic": False})
    acks = await publish(bus, REQUEST, ["a", "b", "c"])
    assert all(isinstance(ack, PubAck) for ack in acks)


async def test_where_batches_do_not_pay_rounds_end_and_everything_is_stored(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "GAIN", 1e9)
    names = [f"p{number}" for number in range(3000)]
    halves = [publish(bus, REQUEST, names[at : at + 300]) for at in range(0, 3000, 300)]
    acks = [ack for half in await asyncio.gather(*halves) for ack in half]
    assert all(isinstance(ack, PubAck) for ack in acks)
    assert len({ack.sequence for ack in acks if isinstance(ack, PubAck)}) == 3000
    group = bus._publisher._groups["plancast.action-requests"]
    await publish(bus, REQUEST, ["later"])
    assert not group._waiting
    assert not group._round


@pytest.mark.usefixtures("always")
async def test_a_server_that_dies_during_a_batch_fails_all_waiting_messages(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", ServerOptions())
    server.start()
    bus = await connect(NatsSettings(url=server.url, publish_timeout=2.0), BusSettings(group_commit="always"))
    await bus.ensure_streams()
    names = [f"p{number}" for number in range(500)]
    sending = asyncio.ensure_future(publish(bus, REQUEST, names))
    await asyncio.sleep(0)
    server.kill()
    acks = await asyncio.wait_for(sending, 30)
    assert all(isinstance(ack, PubAck | BusError) for ack in acks)
    await bus.close()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("filling", ["messages", "bytes"])
async def test_a_batch_waits_to_be_filled_after_the_one_before_and_goes_once_it_is(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch, filling: str
) -> None:
    monkeypatch.setattr(group_commit, "PAUSE", 1e9)
    monkeypatch.setattr(group_commit, "LONGEST_PAUSE", 3600.0)
    if filling == "messages":
        monkeypatch.setattr(group_commit, "MAX_BATCH", 60)
    else:
        monkeypatch.setattr(group_commit, "MAX_BYTES", len("".join(f"p{number}" for number in range(100, 160))))
    names = [f"p{number}" for number in range(100, 200)]
    assert all(isinstance(ack, PubAck) for ack in await publish(bus, REQUEST, names[:40]))
    waiting = asyncio.ensure_future(publish(bus, REQUEST, names[40:80]))
    await bus._connection.client.flush()
    await publish(bus, CHECKPOINT, ["another stream's is not held up"])
    assert not waiting.done()
    assert len(await stored(bus, "PLANCAST_REQUESTS")) == 40
    filled = await publish(bus, REQUEST, names[80:])
    assert all(isinstance(ack, PubAck) for ack in [*await waiting, *filled])
    assert [held.decode() for held in (await stored(bus, "PLANCAST_REQUESTS")).values()] == names


@asynccontextmanager
async def batching(tmp_path: Path) -> AsyncIterator[JetStreamBus]:
    """A bus within a loop of the test's own."""
    async with NatsServer(tmp_path / "nats", ServerOptions()) as server:
        bus = await connect(NatsSettings(url=server.url, publish_timeout=3.0), BusSettings(group_commit="always"))
        await bus.ensure_streams()
        yield bus
        await bus.close()


both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
"""They differ in what comes first, a timer that is due or what was called for soon."""
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.usefixtures("always")
@both_loops
def test_a_round_that_is_filled_just_when_its_pause_ends_begins_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(group_commit, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(group_commit, "PAUSE", 1e9)
    monkeypatch.setattr(group_commit, "MAX_BATCH", 40)
    names = [f"p{number}" for number in range(130)]

    async def fill() -> None:
        async with batching(tmp_path) as bus:
            await publish(bus, REQUEST, names[:20])  # from now on there are pauses
            sent = [begin(bus, name) for name in names[20:]]
            time.sleep(0.1)  # noqa: ASYNC251 - so that the pause has ended before the full round can begin
            assert all(isinstance(ack, PubAck) for ack in await asyncio.gather(*sent))
            held = await stored(bus, "PLANCAST_REQUESTS")
            assert sorted(text.decode() for text in held.values()) == sorted(names)

    run(fill())


@pytest.mark.usefixtures("always")
@both_loops
def test_each_message_gets_its_sequence_in_any_order_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(group_commit, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(group_commit, "PAUSE", 1e9)
    monkeypatch.setattr(group_commit, "MAX_BATCH", 60)
    monkeypatch.setattr(group_commit, "MAX_BYTES", 1000)
    choose = random.Random(7)

    async def send() -> None:
        async with batching(tmp_path) as bus:
            sent: dict[str, asyncio.Future[PubAck]] = {}
            while len(sent) < 2000:
                for _ in range(choose.choice([1, 3, 10, 25])):
                    name = f"p{len(sent)}" + choose.choice(["", "-" * 30])
                    sent[name] = begin(bus, name)
                if choose.random() < 0.2:
                    time.sleep(0.02)  # noqa: ASYNC251 - as when the event loop is busy with something else
                await asyncio.sleep(choose.choice([0.001, 0.004]))
            acks = await asyncio.wait_for(asyncio.gather(*sent.values()), 60)
            held = await stored(bus, "PLANCAST_REQUESTS")
            assert {name: held[ack.sequence].decode() for name, ack in zip(sent, acks, strict=True)} == {
                name: name for name in sent
            }
            assert len(held) == len(sent)

    run(send())


@pytest.mark.usefixtures("always")
async def test_who_no_longer_waits_does_not_hold_up_the_round(bus: JetStreamBus) -> None:
    patient = asyncio.ensure_future(publish(bus, REQUEST, ["a", "b"]))
    hasty = asyncio.ensure_future(publish(bus, REQUEST, ["c"]))
    await asyncio.sleep(0)
    hasty.cancel()
    assert all(isinstance(ack, PubAck) for ack in await patient)
    assert isinstance((await publish(bus, REQUEST, ["d"]))[0], PubAck)


@pytest.mark.usefixtures("always")
async def test_a_message_too_large_for_the_server_fails_alone_and_the_connection_stands(bus: JetStreamBus) -> None:
    publisher, client = bus._publisher, bus._connection.client
    cut: list[None] = []
    bus.on_reconnect(lambda: cut.append(None))
    payloads = [b"a", b"x" * (client.max_payload + 1), b"c"]
    sent = (
        publisher.publish_acked(REQUEST.format(number), payload, {"Nats-Msg-Id": str(number)})
        for number, payload in enumerate(payloads)
    )
    acks = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(ack) for ack in acks] == [PubAck, PayloadTooLarge, PubAck]
    assert not cut
