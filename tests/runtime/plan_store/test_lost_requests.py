"""Open requests that nothing will answer are found, and sent again after a restoration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import App, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.plan.context import PlanContext
from plancast.plan_store.lost_requests import lost_requests
from plancast.plan_store.store import plan_fields
from plancast.testing import PlancastTest
from plancast_actors.maintenance.stalled_plans import RESTORED_KEY, RESTORED_KIND
from plancast_bus.clock import ManualClock
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import Withdraw


def make_app() -> App:
    planner = Planner("asking")
    planner.add_goal(
        "ask.goal",
        {
            "start": StateConfig(state_name="start", default_next="asked"),
            "asked": StateConfig(
                state_name="asked",
                action=StateAction(event_type="work.requested", response_event="work.completed", data={}),
                transitions=[StateTransition(on_event="work.completed", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    worker = Worker("working")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, bool]:
        return {"done": True}

    return App("lost", planners=[planner], workers=[worker])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    settings = Settings()
    settings.hosts.idle_seconds = 1.0
    async with PlancastTest(make_app(), settings=settings, clock=ManualClock(), workers=False) as running:
        await running.submit("ask.goal", {}, correlation_id="p")
        async with asyncio.timeout(60):
            while not await requests_of(running):
                await asyncio.sleep(0)
        yield running


async def requests_of(env: PlancastTest) -> list[Any]:
    stored = await env.bus.stored_events(EventTopic.ACTION_REQUESTS, "p")
    return [each for each in stored if each.subject.endswith("work.requested")]


async def found_lost(env: PlancastTest) -> list[str]:
    checkpoint = await env.bus.checkpoints.load("p")
    assert checkpoint is not None
    return await lost_requests(env.bus, PlanContext.from_dict(await plan_fields(env.bus.checkpoints, checkpoint)))


async def lose_request(env: PlancastTest) -> str:
    (request,) = await requests_of(env)
    await env.bus.emit([Withdraw(request.sequence)])
    return str(request.message_id)


async def test_a_request_in_its_stream_is_not_lost(env: PlancastTest) -> None:
    assert await found_lost(env) == []


async def test_a_request_that_is_in_no_stream_is_lost(env: PlancastTest) -> None:
    request = await lose_request(env)
    assert await found_lost(env) == [request]


async def test_a_request_whose_answer_is_on_its_way_is_not_lost(env: PlancastTest) -> None:
    await env.stop_dispatcher()
    request = await lose_request(env)
    await env.bus.publish(
        EventEnvelope(
            source="worker",
            type="work.completed",
            topic=EventTopic.ACTION_RESULTS,
            correlation_id="p",
            parent_event_id=request,
            data={},
        )
    )
    assert await found_lost(env) == []


async def test_after_a_restoration_a_lost_request_of_the_last_turn_is_sent_again(env: PlancastTest) -> None:
    request = await lose_request(env)
    assert isinstance(env.clock, ManualClock)
    await env.bus.registry.put(RESTORED_KIND, RESTORED_KEY, {"at": env.clock.time() + 1.0})
    await env.crash_host()
    await env.advance(env.settings.bus.duplicate_window + env.settings.plans.stalled_seconds + 10.0)
    await env.sweeper.sweep()
    async with asyncio.timeout(60):
        while not (sent := await requests_of(env)):
            await asyncio.sleep(0)
    assert [each.message_id for each in sent] == [request]
    assert env.sweeper.found["lost"] == 1


async def test_without_a_restoration_no_request_is_looked_for(env: PlancastTest) -> None:
    await lose_request(env)
    await env.advance(env.settings.plans.stalled_seconds + 10.0)
    await env.sweeper.sweep()
    assert not env.sweeper.found
