"""Growth: data left by finished and removed plans, and the cost of listing many plans."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Checkpoint, Committed, PlanFilter, PlanSummary
from plancast_bus.ports.effects import NoteAlias, SealHistory
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import PLACEHOLDERS

PLANS = int(os.environ.get("PLANCAST_GROWTH_PLANS", "1000000"))
"""Finished plans of the long run."""
RETENTION = float(os.environ.get("PLANCAST_GROWTH_RETENTION", "90"))
"""Seconds that they are kept there; writing them takes less."""
AT_ONCE = 2_000
STATE, ENTRY = os.urandom(700), os.urandom(500)
"""About what a plan of four steps holds."""


def a_plan(name: str, *, status: str = "completed", expires_after: float = 0.0, **fields: str) -> Checkpoint:
    now = time.time()
    return Checkpoint(
        correlation_id=name,
        revision=1,
        epoch=f"host-{name}",
        state=STATE,
        summary=PlanSummary(name, status, "order.placed", "done", 1, created_at=now, updated_at=now, **fields),
        processed=ENTRY[:40],
        timeline=(ENTRY,),
        expires_after=expires_after,
    )


async def commit_all(bus: Bus, plans: Sequence[Checkpoint]) -> None:
    for at in range(0, len(plans), AT_ONCE):
        await asyncio.gather(*(bus.checkpoints.commit(each) for each in plans[at : at + AT_ONCE]))


@pytest.fixture
async def jetstream(fresh_nats: NatsServer) -> AsyncIterator[JetStreamBus]:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    await bus.ensure_streams()
    yield bus
    await bus.close()


async def page(bus: Bus, wanted: PlanFilter | None = None, *, before: int = 0, size: int = 50) -> list[Committed]:
    found: list[Committed] = []
    async with aclosing(bus.checkpoints.newest(wanted, before=before)) as newest:
        async for each in newest:
            found.append(each)
            if len(found) == size:
                break
    return found


async def test_the_first_page_costs_the_same_among_few_plans_and_many(jetstream: JetStreamBus) -> None:
    async def received() -> int:
        before = jetstream._connection.client.stats["in_msgs"]
        assert len(await page(jetstream)) == 50
        return jetstream._connection.client.stats["in_msgs"] - before

    await commit_all(jetstream, [a_plan(f"few-{number}") for number in range(500)])
    few = await received()
    await commit_all(jetstream, [a_plan(f"many-{number}") for number in range(6_000)])
    assert await received() <= few + 5 < 500


async def test_all_pages_together_are_all_plans_once_wherever_the_stream_has_gaps(jetstream: JetStreamBus) -> None:
    """Dense and sparse pieces of a stream: the reading backwards widens its pieces, and narrows them again."""
    await commit_all(jetstream, [a_plan(f"dense-{number}") for number in range(9_000)])
    moving = a_plan("moving")
    for revision in range(1, 3_000):
        version = await jetstream.checkpoints.commit(moving)
        moving = replace(moving, revision=revision + 1, version=version)
    await commit_all(jetstream, [a_plan(f"late-{number}") for number in range(10)])
    names, before = [], 0
    while found := await page(jetstream, before=before, size=997):
        versions = [each.version for each in found]
        assert versions == sorted(versions, reverse=True)
        assert not before or versions[0] < before
        names += [each.correlation_id for each in found]
        before = versions[-1]
    assert set(names[:10]) == {f"late-{number}" for number in range(10)}
    assert names[10] == "moving"
    assert len(names) == len(set(names)) == 9_011


async def test_what_is_committed_while_all_plans_are_read_is_not_missed(jetstream: JetStreamBus) -> None:
    plans = [a_plan(f"p{number}") for number in range(1_000)]
    versions = await asyncio.gather(*(jetstream.checkpoints.commit(each) for each in plans))
    found: list[str] = []
    async with aclosing(jetstream.checkpoints.newest()) as newest:
        async for each in newest:
            found.append(each.correlation_id)
            if len(found) == 1:
                await jetstream.checkpoints.commit(replace(plans[0], revision=2, version=versions[0]))
    assert set(found) == {f"p{number}" for number in range(1_000)}


async def test_an_interrupted_listing_of_plans_raises(jetstream: JetStreamBus) -> None:
    """Plans that an interrupted listing has not shown must not count as removed."""
    await commit_all(jetstream, [a_plan(f"p{number}") for number in range(6_000)])
    api, stream = jetstream.checkpoints._api, "PLANCAST_CHECKPOINTS"
    async with aclosing(jetstream.checkpoints.committed_after(0)) as plans:
        await anext(plans)
        for name in (await api.call(f"CONSUMER.NAMES.{stream}"))["consumers"]:
            await api.call(f"CONSUMER.DELETE.{stream}.{name}")
        with pytest.raises(BusUnavailable, match="interrupted"):
            _ = [each async for each in plans]


async def test_finished_plans_are_gone_after_their_retention_and_live_ones_stay(
    fresh_nats: NatsServer, jetstream: JetStreamBus
) -> None:
    await commit_all(jetstream, [a_plan(f"live-{number}", status="running") for number in range(5)])
    await commit_all(jetstream, [a_plan(f"done-{number}", expires_after=1.0) for number in range(2_000)])
    async with asyncio.timeout(30):
        while stored(fresh_nats)["CHECKPOINTS"] > 5:
            await asyncio.sleep(0.1)
    assert stored(fresh_nats) == {**dict.fromkeys(STREAMS, 0), "CHECKPOINTS": 5}
    assert {each.summary.status for each in await page(jetstream)} == {"running"}


async def test_forgetting_a_plan_leaves_nothing_of_it(fresh_nats: NatsServer, jetstream: JetStreamBus) -> None:
    await jetstream.checkpoints.commit(a_plan("p"))
    await jetstream.emit([SealHistory("p", first, ENTRY) for first in range(1, 20)])
    await jetstream.emit([NoteAlias(f"alias {number}", "p") for number in range(5)])
    assert stored(fresh_nats)["HISTORY"] == 19
    await jetstream.checkpoints.forget("p", [f"alias {number}" for number in range(5)])
    assert stored(fresh_nats) == dict.fromkeys(STREAMS, 0)


STREAMS = ("RESULTS", "REQUESTS", "FACTS", "TIMERS", "RESPONSES", "CHECKPOINTS", "HISTORY", "META", "DEADLETTERS")


def stored(server: NatsServer) -> dict[str, int]:
    """The number of messages in each stream, except placeholders."""
    infos = {
        name: server.ask(f"STREAM.INFO.PLANCAST_{name}", {"subjects_filter": PLACEHOLDERS}) or {} for name in STREAMS
    }
    states = {name: info["state"] for name, info in infos.items()}
    return {name: state["messages"] - len(state.get("subjects") or ()) for name, state in states.items()}


class Figures:
    """The content of the server at one moment."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        assert server.pid is not None
        status = Path(f"/proc/{server.pid}/status").read_text()
        self.resident = int(status.split("VmRSS:")[1].split()[0]) // 1024
        self.disk = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) // 2**20
        self.state = (server.ask("STREAM.INFO.PLANCAST_CHECKPOINTS") or {})["state"]

    def __str__(self) -> str:
        state = {key: self.state.get(key, 0) for key in ("messages", "bytes", "num_deleted")}
        return f"server {self.resident} MiB resident, {self.disk} MiB on disk, checkpoints {state}"


@pytest.mark.growth
@pytest.mark.timeout(3600)
async def test_a_million_finished_plans_leave_nothing_behind_and_listing_them_stays_fast(tmp_path: Path) -> None:
    """Twice: what a second million needs beyond the first one would be growth."""
    folder, peaks = tmp_path / "nats", []
    with NatsServer(folder) as server:
        bus = await connect(NatsSettings(url=server.url), BusSettings())
        await bus.ensure_streams()
        live = [a_plan(f"live-{number}", status="running") for number in range(100)]
        await commit_all(bus, live)
        print(f"\nbefore: {Figures(server, folder)}", flush=True)
        for turn in ("first", "second"):
            began = time.perf_counter()
            for first in range(0, PLANS, 10 * AT_ONCE):
                numbers = range(first, min(PLANS, first + 10 * AT_ONCE))
                await commit_all(bus, [a_plan(f"{turn}-{each}", expires_after=RETENTION) for each in numbers])
            spent = time.perf_counter() - began
            full = Figures(server, folder)
            print(f"{turn} {PLANS:,} finished plans, written in {spent:.0f} s ({PLANS / spent:,.0f}/s): {full}")
            began = time.perf_counter()
            found = await page(bus)
            print(f"  first page of 50: {(time.perf_counter() - began) * 1e3:.0f} ms", flush=True)
            assert len(found) == 50
            async with asyncio.timeout(RETENTION + 600):
                while Figures(server, folder).state["messages"] > len(live):
                    await asyncio.sleep(5)
            await asyncio.sleep(20)
            after = Figures(server, folder)
            print(f"  after their retention: {after}", flush=True)
            assert stored(server) == {**dict.fromkeys(STREAMS, 0), "CHECKPOINTS": len(live)}
            assert after.disk < max(64, full.disk // 10)
            peaks.append(full.resident)
        assert peaks[1] < 1.5 * peaks[0]
        await bus.close()
