"""Values that an event has brought: the plan's checkpoint refers to them, and they are not stored a second time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.actors.maintenance.test_value_gc import DAY, leap, time_passes
from tests.actors.on_nats import OnNats
from tests.actors.plan_actors import test_large_events as large

from plancast import App, PlanHandle, Settings
from plancast.testing import ManualClock, PlancastTest
from plancast_actors.plan_actors.plan_values import RENEWAL
from plancast_bus import fault_injection
from plancast_bus.events.codec import pack
from plancast_bus.events.value_parts import digest_of
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.jetstream.stores.values import JetStreamValues
from plancast_bus.memory.values import MemoryValues
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.asyncio
MOST = 64 * 1024
"""Largest event with its data."""
ANSWER, SAID = large.text(200_000, "answer"), large.text(200_000, "signal")
GOAL = {"rows": large.rows(400_000, "goal")}


def an_app() -> App:
    return large.an_app(len(ANSWER), 1_000)


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, list[int]]:
    """The sizes of the contents that were stored, by digest, as often as they were."""
    found: dict[bytes, list[int]] = {}

    def counted(store: Any) -> None:
        put = store.put

        async def counting(self: Any, tenant: str, plan: str | None, contents: dict[bytes, bytes]) -> None:
            for digest, content in contents.items():
                found.setdefault(digest, []).append(len(content))
            await put(self, tenant, plan, contents)

        monkeypatch.setattr(store, "put", counting)

    counted(MemoryValues)
    counted(JetStreamValues)
    return found


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings()
    settings.plans.sweep_seconds = 0  # only when the test says so
    settings.bus.max_event_bytes = MOST
    async with PlancastTest(an_app(), settings=settings, clock=ManualClock()) as env:
        yield env


async def state_is(handle: PlanHandle, name: str) -> None:
    async with asyncio.timeout(120):
        while (await handle.state())["current_state"] != name:
            await asyncio.sleep(0.05)


async def begun(env: PlancastTest) -> PlanHandle:
    handle = await env.submit("large.goal", {"rows": ["small"]}, tenant_id="one")
    await state_is(handle, "wait")
    return handle


async def ended(handle: PlanHandle) -> None:
    assert (await handle.result(timeout=60))["said"] == SAID
    assert {"said": SAID} in [entry["event"]["data"] for entry in await handle.history()]


def of(words: str) -> bytes:
    return digest_of(pack(words))


async def stored_at(env: PlancastTest, digest: bytes) -> float:
    return next(each.stored_at for each in env.world.values.values() if each.digest == digest)


def check_stored_once(puts: dict[bytes, list[int]]) -> None:
    assert len(puts[of(ANSWER)]) == 1
    written, different = sum(map(sum, puts.values())), sum(sizes[0] for sizes in puts.values())
    sent_back = len(pack(GOAL["rows"]))  # the worker stores what it sends, too
    assert different > len(ANSWER) + sent_back
    assert written < 1.02 * (different + sent_back)


async def test_goals_and_answers_are_stored_by_who_sends_them_alone(
    env: PlancastTest, puts: dict[bytes, list[int]]
) -> None:
    handle = await env.submit("large.goal", GOAL)
    await state_is(handle, "wait")
    check_stored_once(puts)
    await env.crash_host()
    await time_passes(env, 10 * DAY, DAY / 4)
    answer = (await handle.state())["results"]["answer"]
    assert answer == {"got": GOAL["rows"], "text": ANSWER}


async def test_the_same_on_a_server(nats_server: NatsServer, puts: dict[bytes, list[int]]) -> None:
    answer = large.text(1_500_000, "answer")
    async with OnNats(nats_server, large.an_app(len(answer), 1_000)) as env:
        handle = await env.client.submit("large.goal", {"rows": ["small"]})
        await state_is(handle, "wait")
        assert len(puts[of(answer)]) == 1
        assert (await handle.state())["results"]["answer"]["text"] == answer


async def test_what_a_delayed_event_has_brought_is_stored_again(
    env: PlancastTest, puts: dict[bytes, list[int]]
) -> None:
    """A scan that has read the plan before the commit, and looks at the stream after it, may take it for unused."""
    handle = await begun(env)
    await env.stop_dispatcher()
    await handle.signal("go", {"said": SAID})
    await leap(env, RENEWAL + 60)
    assert len(puts[of(SAID)]) == 1
    await env.start_dispatcher()
    await ended(handle)
    assert len(puts[of(SAID)]) > 1
    assert await stored_at(env, of(SAID)) >= env.clock.time() - 60


@pytest.mark.parametrize("leaps", [RENEWAL / 2, RENEWAL + 60])
async def test_what_was_adopted_is_stored_again_before_a_late_commit(
    env: PlancastTest, puts: dict[bytes, list[int]], leaps: float
) -> None:
    handle = await begun(env)
    times: Counter[int] = Counter()

    async def late(point: CrashPoint, about: str) -> None:
        if point is CrashPoint.TURN_COMMIT_BEFORE and not times:
            times[len(puts[of(SAID)])] += 1
            await leap(env, leaps)

    async with fault_injection.installed(late):
        await handle.signal("go", {"said": SAID})
        await ended(handle)
    assert times == {1: 1}, "staged without being stored"
    is_late = leaps > RENEWAL
    assert len(puts[of(SAID)]) > 1 if is_late else len(puts[of(SAID)]) <= 2
    assert (await stored_at(env, of(SAID)) >= env.clock.time() - 60) or not is_late


async def test_a_crash_after_the_adoption_loses_nothing(env: PlancastTest) -> None:
    handle = await begun(env)
    crashed = asyncio.Event()

    async def crash(point: CrashPoint, about: str) -> None:
        if point is CrashPoint.TURN_COMMIT_BEFORE and not crashed.is_set():
            crashed.set()
            await asyncio.Event().wait()  # until the host is gone

    async with fault_injection.installed(crash):
        await handle.signal("go", {"said": SAID})
        await asyncio.wait_for(crashed.wait(), 60)
        await env.crash_host()
        await time_passes(env, 2 * DAY, DAY / 4)
        await ended(handle)
    await time_passes(env, DAY, DAY / 4)
    await ended(handle)
