"""Effects that are sent again after the deduplication window: none is seen twice, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, EventEnvelope, PlanHandle, Planner
from plancast.settings import Settings
from plancast.testing import ManualClock, PlancastTest
from plancast_bus.errors import BusUnavailable
from plancast_bus.settings import BusSettings

ASKING = {
    "start": {"state_name": "start", "default_next": "work"},
    "work": {
        "state_name": "work",
        "action": {"event_type": "work.requested", "response_event": "work.completed"},
        "transitions": [{"on_event": "work.completed", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
}
LONG = 600.0
"""Seconds; five times the deduplication window."""


def an_app() -> App:
    planner = Planner("p")
    planner.add_goal("a.goal", ASKING)
    return App("a", planners=[planner])


def environment() -> PlancastTest:
    return PlancastTest(an_app(), clock=ManualClock(), settings=Settings(bus=BusSettings(duplicate_window=120)))


async def asked(env: PlancastTest) -> list[str]:
    """Ids of the requests in the stream."""
    return [
        str(each.message_id) for each in env.world.streams["requests"].messages.values() if ".work." in each.subject
    ]


async def begun(env: PlancastTest) -> tuple[PlanHandle, str]:
    handle = await env.submit("a.goal")
    async with asyncio.timeout(20):
        while not (sent := await asked(env)):
            await env.advance(0.01)
    return handle, sent[0]


async def come_back(env: PlancastTest, handle: PlanHandle) -> None:
    """Restart the plan's host, advance the clock far, and send the plan an event."""
    await env.crash_host()
    await env.advance(LONG)
    before = env.hosts[0].start().activations
    await handle.signal("nobody.waits.for.this", {})
    async with asyncio.timeout(20):
        while env.hosts[0].start().activations == before:
            await env.advance(0.01)
        for _ in range(50):
            await env.advance(0.01)


async def answer(env: PlancastTest, handle: PlanHandle, request: str) -> None:
    await env.bus.publish(
        EventEnvelope(
            source="w",
            type="work.completed",
            topic="action-results",
            correlation_id=handle.plan_id,
            parent_event_id=request,
            data={"n": 1},
        )
    )


async def finished(env: PlancastTest, handle: PlanHandle) -> Any:
    async with asyncio.timeout(20):
        while not (await handle.status()).finished:
            await env.advance(0.01)
    return (await handle.state())["results"]


async def test_a_request_in_flight_at_a_worker_is_not_sent_again() -> None:
    async with environment() as env:
        handle, request = await begun(env)
        await come_back(env, handle)
        assert await asked(env) == [request]
        await answer(env, handle, request)
        assert (await finished(env, handle))["work"] == {"n": 1}


async def test_a_request_whose_answer_is_on_its_way_is_not_sent_again() -> None:
    async with environment() as env:
        handle, request = await begun(env)
        await env.stop_dispatcher()
        await env.crash_host()
        await answer(env, handle, request)
        sequence = next(iter(env.world.streams["requests"].messages))
        env.world.streams["requests"].remove(sequence)  # the worker has acknowledged it
        await env.advance(LONG)
        await handle.signal("nobody.waits.for.this", {})
        await env.start_dispatcher()
        assert (await finished(env, handle))["work"] == {"n": 1}
        assert await asked(env) == []


async def test_a_request_that_never_went_out_is_sent_however_late() -> None:
    async with environment() as env:
        refused: list[str] = []

        async def away(point: str, subject: str) -> None:
            if point == "publish.before" and ".work.requested" in subject:
                refused.append(subject)
                raise BusUnavailable("away")

        env.hosts[0].start().bus.faults = away
        handle = await env.submit("a.goal")
        async with asyncio.timeout(20):
            while not refused:
                await env.advance(0.01)
        await come_back(env, handle)
        (request,) = await asked(env)
        await answer(env, handle, request)
        assert (await finished(env, handle))["work"] == {"n": 1}


async def test_a_long_absence_of_the_bus_in_the_midst_of_sending_repeats_nothing() -> None:
    async with environment() as env:
        lost: list[str] = []

        async def lose_the_acknowledgement(point: str, subject: str) -> None:
            if point == "publish.after" and ".work.requested" in subject and not lost:
                lost.append(subject)
                await env.clock.sleep(LONG)
                raise BusUnavailable("the acknowledgement was lost, and then ten minutes")

        env.hosts[0].start().bus.faults = lose_the_acknowledgement
        handle = await env.submit("a.goal")
        async with asyncio.timeout(20):
            while not lost:
                await env.advance(0.01)
            await env.advance(LONG + 1)
            for _ in range(100):
                await env.advance(0.1)
        (request,) = await asked(env)
        await answer(env, handle, request)
        assert (await finished(env, handle))["work"] == {"n": 1}
