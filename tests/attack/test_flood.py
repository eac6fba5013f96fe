"""100,000 messages that cannot be read: put aside in bulk, in bounded space, with what is behind them found soon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest
from tests.attack.running import GOAL, PATIENCE, TASK, Running

from plancast import Settings
from plancast_bus.jetstream import connect
from plancast_bus.jetstream.stores.dead_letters import BUNDLE_BYTES
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Delivery
from plancast_bus.settings import NatsSettings

POISON = (b"no event", b"{", b"[1]", b"\xc1")


@pytest.fixture
async def running(nats_server: NatsServer) -> AsyncIterator[Running]:
    async with Running(nats_server.url) as app:
        yield app


async def flood(running: Running, count: int, event_type: str = GOAL, correlation: str = "") -> None:
    client = running.bus._connection.client
    for number in range(count):
        name = correlation or f"poison-{number}"
        await running.publish(POISON[number % len(POISON)], correlation=name, event_type=event_type)
        if number % 1000 == 0:
            await client.flush()
    await client.flush()


async def stored_letters(running: Running) -> int:
    streams = (await running.bus.health())["streams"]
    count: int = streams[f"{running.settings.bus.prefix.upper()}_DEADLETTERS"]["messages"]
    return count


@pytest.mark.attack(
    who="stranger", what="3,000 undecodable messages", expected="put aside in bulk, one log line a bulk"
)
@pytest.mark.parametrize("event_type", [GOAL, TASK])
@pytest.mark.parametrize("correlation", ["", "the-same"], ids=["many plans", "one plan"])
async def test_a_flood_is_put_aside_in_bulk(
    running: Running, event_type: str, correlation: str, caplog: pytest.LogCaptureFixture
) -> None:
    await running.serves()
    await running.dispatcher.drain()
    await flood(running, 3000, event_type, correlation)
    with caplog.at_level(logging.WARNING):
        await running.dispatch()
        await running.serves()
        letters = await running.letters(3000)
    assert sum(1 + each.more for each in letters) == await running.bus.dead_letters.count() == 3000
    assert await stored_letters(running) == len(letters)
    if event_type == GOAL:  # a worker takes as many at a time as it does at once
        assert len(letters) <= 300
        assert len([each for each in caplog.records if "dead-lettered" in each.getMessage()]) <= 300
    assert {each.reason for each in letters} == {"undecodable"}
    assert all(each.detail and each.subject.endswith(event_type) for each in letters)
    assert not running.broken


async def test_few_messages_are_letters_of_their_own(running: Running) -> None:
    for payload in POISON:
        await running.publish(payload)
    letters = await running.letters(len(POISON))
    assert sorted(each.payload for each in letters) == sorted(POISON)
    assert {each.more for each in letters} == {0}


async def test_a_letter_of_many_is_replayed_as_they_came(running: Running) -> None:
    await running.dispatcher.drain()
    payloads = [f"no event {number}".encode() for number in range(500)]
    subjects = [running.bus.subjects.event("action-requests", f"c {number}", "nobody.does") for number in range(500)]
    deliveries = [
        Delivery(_stored(subject), payload, "text/html", f"m{number}", "S", number, 1, "")
        for number, (subject, payload) in enumerate(zip(subjects, payloads, strict=True))
    ]
    many = [(delivery, f"why {delivery.sequence}") for delivery in deliveries]
    for _ in range(2):  # said again, it is kept once
        await running.bus.dead_letters.put_all("refused", many)
    (letter,) = [each async for each in running.bus.dead_letters.list()]
    assert await running.bus.dead_letters.count() == 500
    assert (letter.reason, letter.more, letter.detail) == ("refused", 499, "why 0")
    assert (letter.payload, letter.subject, letter.content_type, letter.message_id) == (
        payloads[0], subjects[0], "text/html", "m0",
    )  # fmt: skip
    assert (await running.bus.dead_letters.get(letter.number)).payload == payloads[0]
    assert [each async for each in running.bus.dead_letters.list(after=letter.number)] == []
    await running.bus.dead_letters.replay(letter.number)
    assert await running.bus.dead_letters.count() == 0
    for number in (0, 250, 499):
        (stored,) = await running.bus.stored_events("action-requests", f"c {number}")
        assert (stored.payload, stored.content_type) == (payloads[number], "text/html")


def _stored(subject: str) -> str:
    prefix, topic, rest = subject.split(".", 2)
    return f"{prefix}.{topic}.0.{rest}"


async def test_letters_of_many_have_a_size(fresh_nats: NatsServer) -> None:
    """Also on a server that takes smaller messages than a letter would like to be."""
    bus = await connect(NatsSettings(url=fresh_nats.url), Settings().bus)
    await bus.ensure_streams()
    sizes = [100, 50_000, BUNDLE_BYTES, 3_000_000, 10] * 10
    many = [
        (Delivery("plancast.action-requests.0.c.x.y", bytes(size), None, None, "S", n, 1, ""), "")
        for n, size in enumerate(sizes)
    ]
    bus._connection.client._max_payload = 100_000  # as the server would say
    await bus.dead_letters.put_all("undecodable", many)
    letters = [each async for each in bus.dead_letters.list()]
    assert sum(1 + each.more for each in letters) == await bus.dead_letters.count() == 50
    assert sum(each.cut_from is not None for each in letters) == 20
    assert sum(each.more for each in letters) >= 10
    await bus.close()


@pytest.mark.attack(who="stranger", what="fill the disk with dead letters", expected="the oldest go")
async def test_dead_letters_are_bounded(nats_server: NatsServer) -> None:
    settings = Settings()
    settings.nats.url = nats_server.url
    settings.bus.prefix = "bounded"
    settings.bus.max_dead_letters = 5
    settings.bus.max_dead_letter_bytes = 100_000
    bus = await connect(settings.nats, settings.bus)
    await bus.ensure_streams()
    for number in range(9):
        await bus.dead_letters.put(Delivery("bounded.plan-events.0.c.x", b"x", None, None, "S", number, 1, ""), "r", "")
    assert await bus.dead_letters.count() == 5
    for number in range(9, 18):
        payload = bytes(30_000)
        await bus.dead_letters.put(
            Delivery("bounded.plan-events.0.c.x", payload, None, None, "S", number, 1, ""), "r", ""
        )
    assert 1 <= await bus.dead_letters.count() <= 3
    await bus.close()


@pytest.mark.attack(who="stranger", what="headers that no letter can hold", expected="a dead letter all the same")
async def test_what_no_letter_can_hold_is_put_aside(running: Running) -> None:
    for headers in ({"Content-Type": "\u00fc" * 20_000}, {"Nats-Msg-Id": "\u00fc" * 20_000, "Content-Type": "x"}):
        await running.publish(b"", headers=headers)
    letters = await running.letters(2)
    assert {each.reason for each in letters} == {"undecodable"}
    await running.serves()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.attack(who="stranger", what="a goal behind 100,000 undecodable messages", expected="as fast as good ones")
async def test_a_goal_behind_a_flood_is_found_soon(running: Running) -> None:
    """Poison costs no more than what a dispatcher would have to read in any case: good goals, of the same number.

    The processor's time is compared: all of the deployment but the server is in this process.
    """
    await running.serves()
    await running.dispatcher.drain()
    count, took = 4_000, {}
    for what in ("goals", "poison"):
        if what == "poison":
            await flood(running, count)
        else:
            for number in range(count):
                await running.publish(b'{"data": {"n": 1}}', correlation=f"good-{number}")
        last = await running.client.submit(GOAL, {"n": 1})
        began = time.process_time()
        await running.dispatch()
        await last.result(timeout=6 * PATIENCE)
        took[what] = time.process_time() - began
        async with asyncio.timeout(6 * PATIENCE):
            while running.dispatcher.in_flight.out or running.dispatcher.in_flight.waiting:
                await asyncio.sleep(0.1)
        await running.dispatcher.drain(PATIENCE)
    assert took["poison"] < took["goals"] / 2, took
    await flood(running, 100_000)
    last = await running.client.submit(GOAL, {"n": 1})
    await running.dispatch()
    await last.result(timeout=6 * PATIENCE)
    print(f"processor time of {count:,}: {took}")
    await running.letters(104_000)
    assert await stored_letters(running) < 2_000
    assert not running.broken
