"""One user of the console, against all others: streams, searches, counts, and readers that read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from tests.attack.running import PATIENCE

from plancast import AgentRegistry, Settings
from plancast.console.routes import event_streams
from plancast.console.server import ConsoleServer
from plancast.console.service import plan_index as console_index
from plancast.console.service.backend import MOST_LOOKS, Backend
from plancast.console.service.errors import Refused
from plancast.console.service.limits import Slots
from plancast.console.service.plan_index import PlanIndex, PlanQuery
from plancast.plan_store.listed_status import ListedStatuses
from plancast_bus.memory import MemoryBus, MemoryWorld
from plancast_bus.ports.checkpoints import Committed, PlanSummary
from plancast_bus.settings import BusSettings

MANY = 1_500
TOKENS = {"ada": uuid4().hex, "bob": uuid4().hex, "": uuid4().hex}
"""Of users, and the one that there is where the settings have none."""


@contextlib.asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[tuple[ConsoleServer, Backend]]:
    settings.console.port = 0
    async with ConsoleServer(MemoryBus(MemoryWorld(BusSettings())), settings, own_token=TOKENS[""]) as server:
        backend: Backend = server.app.state.backend
        await backend.plans()
        yield server, backend


def asking(server: ConsoleServer, **options: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, headers={"Authorization": f"Bearer {TOKENS['']}"}, **options)


def fill(index: PlanIndex, count: int, first: int = 1, key_of: Callable[[int], int] = int) -> None:
    """Have plans move, each in a commit of its own."""
    for number in range(first, first + count):
        key = f"p{key_of(number)}"
        plan = PlanSummary(key, "running", "x.goal", "start", 1, session_id=f"s{number % 7}", created_at=float(number))
        index.take(Committed(number, key, plan))


class Stream:
    """A stream over a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def opened(cls, url: str, path: str, user: str = "") -> Stream:
        where = urlsplit(url)
        stream = cls(*await asyncio.open_connection(where.hostname, where.port))
        token = f"Authorization: Bearer {TOKENS[user]}\r\n"
        stream.writer.write(f"GET /api/v1{path} HTTP/1.1\r\nHost: {where.netloc}\r\n{token}\r\n".encode())
        head = (await stream.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        stream.status = int(head[0].split()[1])
        stream.headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return stream


@pytest.mark.attack(
    who="client", what="1,500 streams of the console", expected="200, and refusals that say when to return"
)
async def test_streams_are_bounded() -> None:
    settings = Settings()
    async with served(settings) as (server, backend), asking(server) as http:
        fill(backend.index, 1_000)
        opened: list[Stream] = []
        try:
            for first in range(0, MANY, 100):
                paths = [f"/plans/stream?session_id=s{number}" for number in range(first, first + 100)]
                opened += await asyncio.gather(*(Stream.opened(server.url, path) for path in paths))
            assert Counter(each.status for each in opened) == {200: 200, 429: MANY - 200}
            assert {each.headers["retry-after"] for each in opened if each.status == 429} == {"5"}
            assert len((await http.get("/api/v1/plans")).json()["items"]) == 50
            assert (await http.get("/healthz")).status_code == 200
            polling = await http.get("/api/v1/plans/p1/result", params={"wait": 1})
            assert polling.status_code in (404, 429)
            for each in opened[:150]:
                if each.status == 200:
                    each.writer.transport.abort()
            async with asyncio.timeout(PATIENCE):
                while (again := await Stream.opened(server.url, "/plans/stream")).status != 200:
                    again.writer.transport.abort()
                    await asyncio.sleep(0.05)
            opened.append(again)
        finally:
            for each in opened:
                each.writer.transport.abort()


@pytest.mark.attack(who="client", what="one of two users takes all streams", expected="half, and 429")
async def test_a_user_has_half_of_the_streams() -> None:
    settings = Settings()
    settings.console.max_streams = 10
    settings.console.tokens = {name: TOKENS[name] for name in ("ada", "bob")}  # type: ignore[misc]
    settings.console = type(settings.console).model_validate(settings.console.model_dump())
    async with served(settings) as (server, _):
        of_ada = [await Stream.opened(server.url, "/plans/stream", "ada") for _ in range(12)]
        of_bob = [await Stream.opened(server.url, "/plans/stream", "bob") for _ in range(5)]
        nobody = await Stream.opened(server.url, "/plans/stream")
        assert [each.status for each in of_ada] == [200] * 5 + [429] * 7
        assert of_ada[-1].headers["retry-after"] == "5"
        assert [each.status for each in of_bob] == [200] * 5
        assert nobody.status == 401
        for each in (*of_ada, *of_bob, nobody):
            each.writer.transport.abort()


@pytest.mark.attack(who="client", what="searches over all plans at once", expected="some at a time, others are served")
async def test_searches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, may_go_on = 0, asyncio.Event()
    found = PlanIndex.found

    async def slow(self: PlanIndex, wanted: PlanQuery) -> list[console_index.Row]:
        nonlocal looking
        looking += 1
        await may_go_on.wait()
        return await found(self, wanted)

    monkeypatch.setattr(PlanIndex, "found", slow)
    async with served(Settings()) as (server, backend), asking(server, timeout=60) as http:
        fill(backend.index, 100)

        def search() -> asyncio.Future[httpx.Response]:
            return asyncio.ensure_future(http.get("/api/v1/plans", params={"text": "p1"}))

        first = [search() for _ in range(MOST_LOOKS)]
        async with asyncio.timeout(PATIENCE):
            while looking < MOST_LOOKS:
                await asyncio.sleep(0.01)
        refused = await search()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        assert refused.headers["content-type"] == "application/problem+json"
        assert (await http.get("/healthz")).status_code == 200
        may_go_on.set()
        assert {each.status_code for each in await asyncio.gather(*first)} == {200}
        assert (await search()).status_code == 200


@pytest.mark.attack(who="client", what="a search for 200 words", expected="refused")
async def test_a_search_has_few_words() -> None:
    async with served(Settings()) as (server, _), asking(server) as http:
        for path in ("/plans", "/plans/stream", "/approvals", "/effects"):
            assert (await http.get(f"/api/v1{path}", params={"text": "a " * 17})).status_code == 422
            assert (await http.get(f"/api/v1{path}", params={"text": "a" * 401})).status_code == 422
        assert (await http.get("/api/v1/plans", params={"text": "a " * 16})).status_code == 200


@pytest.mark.attack(who="client", what="a search among 100,000 plans", expected="others have their turn meanwhile")
async def test_a_search_holds_nobody_up() -> None:
    bus = MemoryBus(MemoryWorld(BusSettings()))
    index = PlanIndex(bus.checkpoints, ListedStatuses(bus.checkpoints, AgentRegistry(bus.registry).human_events))
    fill(index, 100_000)
    wanted = PlanQuery(text="p " * 15 + "p99999")
    began = time.monotonic()
    looking = asyncio.ensure_future(index.found(wanted))
    turns = 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert [row.key for row in looking.result()] == ["p99999"]
    assert turns >= 100_000 // console_index.SEARCH_BATCH, time.monotonic() - began
    assert index.page(wanted, found=looking.result()) == index.page(wanted)


async def test_counts_of_streams_are_counted_once_for_all_that_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(Settings()) as (_, backend):
        fill(backend.index, 1000)
        looked: list[PlanQuery] = []
        found = PlanIndex.found

        async def counted(self: PlanIndex, wanted: PlanQuery) -> list[console_index.Row]:
            looked.append(wanted)
            return await found(self, wanted)

        monkeypatch.setattr(PlanIndex, "found", counted)
        asked = [PlanQuery(session_id="s1"), PlanQuery(session_id="s1", status=frozenset({"failed"}))] * 50
        counts = await asyncio.gather(*map(backend.counts, asked))
        assert [dict(each) for each in counts] == [{"running": 143}] * 100
        assert len(looked) == 1
        fill(backend.index, 7, first=1001)
        assert await backend.counts(asked[0]) == {"running": 144}
        assert len(looked) == 2
        for number in range(1000):
            await backend.counts(PlanQuery(session_id=str(number)))
        assert len(backend._counts) <= 64


@pytest.mark.attack(who="client", what="a stream whose reader reads nothing", expected="nothing waits for it; it ends")
async def test_a_reader_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "SEND_SECONDS", 0.5)
    monkeypatch.setattr(event_streams, "TICK_SECONDS", 0.001)
    async with served(Settings()) as (server, backend):
        stream = await Stream.opened(server.url, "/plans/stream")
        stream.reader._transport.pause_reading()  # type: ignore[attr-defined]
        number = 1
        async with asyncio.timeout(PATIENCE):
            while backend.streams._held:
                fill(backend.index, 100, first=number)
                number += 100
                await asyncio.sleep(0.005)
        stream.writer.transport.abort()


async def test_a_stream_that_fell_behind_tells_each_plan_once_and_that_there_are_more() -> None:
    async with served(Settings()) as (server, backend):
        stream = await Stream.opened(server.url, "/plans/stream")
        assert b"counts" in await stream.reader.readuntil(b"\r\n\r\n")
        fill(backend.index, 200)
        fill(backend.index, 200, first=201, key_of=lambda number: number - 200)  # the same ones again
        said: list[tuple[str, dict[str, object]]] = []
        async with asyncio.timeout(PATIENCE):
            while len(said) < 101:
                lines = (await stream.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = dict(line.split(": ", 1) for line in lines if ": " in line)
                if fields.get("event") in ("more", "plan"):
                    said.append((fields["event"], json.loads(fields["data"])))
        stream.writer.transport.abort()
    assert said[0] == ("more", {"skipped": 100})
    assert [each["plan_id"] for _, each in said[1:]] == [f"p{number}" for number in range(101, 201)]


@pytest.mark.attack(who="client", what="more requests than can be answered", expected="503 that says when to return")
async def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plancast.console.api.MOST_REQUESTS", 3)
    may_go_on = asyncio.Event()

    async def slow(self: Backend) -> PlanIndex:
        await may_go_on.wait()
        return self.index

    settings = Settings()
    settings.console.max_streams = 1
    async with served(settings) as (server, backend), asking(server, timeout=60) as http:
        monkeypatch.setattr(Backend, "plans", slow)
        asked = [asyncio.ensure_future(http.get("/api/v1/plans")) for _ in range(4)]
        async with asyncio.timeout(PATIENCE):
            while backend.looks._held.total() < 4:
                await asyncio.sleep(0.01)
        refused = await http.get("/api/v1/session")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await http.get("/healthz")).status_code == 200
        may_go_on.set()
        assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
        assert (await http.get("/api/v1/session")).status_code == 200


def test_slots_are_given_back_whatever_happens() -> None:
    slots = Slots("things", 2, 1)
    for _ in range(3):
        with contextlib.suppress(ValueError), slots.held_by("ada"):
            raise ValueError
    with slots.held_by("ada"):
        with pytest.raises(Refused, match="ada has 1 things") as refused, slots.held_by("ada"):
            raise AssertionError
        assert refused.value.status == 429
        with slots.held_by("bob"), pytest.raises(Refused) as full, slots.held_by("eve"):
            raise AssertionError
        assert full.value.status == 503
    assert not slots._held
