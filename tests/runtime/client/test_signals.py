"""Signals: what became of them, as real turns in memory leave it in plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from plancast import (
    App,
    PlanHandle,
    Planner,
    PlanStatus,
    PlatformContext,
    Settings,
    SignalOutcome,
    StateConfig,
    TransitionContext,
)
from plancast.testing import PlancastTest
from plancast.turn_record.record import MAX_UNWANTED

MOVED, KEPT, IGNORED = SignalOutcome
MACHINE = {
    "start": StateConfig(state_name="start", description="", default_next="first"),
    "first": StateConfig.model_validate(
        {"state_name": "first", "description": "", "transitions": [{"on_event": "one.came", "to_state": "second"}]}
    ),
    "second": StateConfig.model_validate(
        {"state_name": "second", "description": "", "transitions": [{"on_event": "two.came", "to_state": "done"}]}
    ),
    "done": StateConfig(state_name="done", description="", is_terminal=True),
}


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    planner = Planner("desk")
    planner.add_goal("desk.goal", MACHINE)
    settings = Settings.model_validate({"plans": {"check_user": True}})
    async with PlancastTest(App("desk", planners=[planner], settings=settings)) as env:
        yield env


@pytest.fixture
async def plan(env: PlancastTest) -> PlanHandle:
    handle = await env.client.submit("desk.goal", {}, user_id="ann")
    await handle.state()
    return handle


async def test_a_signal_moves_a_plan_or_is_kept_or_ignored(plan: PlanHandle) -> None:
    assert await plan.signal("two.came") is KEPT
    assert await plan.signal("three.came") is IGNORED
    assert (await plan.history())[-1]["ignored"] == "no state waits for three.came"
    assert await plan.signal("one.came") is MOVED
    assert await plan.status() is PlanStatus.COMPLETED
    assert [bool(each.get("kept")) for each in await plan.history()] == [False, True, False, False]


async def test_signals_that_leave_no_trace_were_ignored(plan: PlanHandle) -> None:
    for _ in range(MAX_UNWANTED + 1):
        assert await plan.signal("noise") is IGNORED
    assert await plan.signal("one.came", user_id="bob") is IGNORED
    assert len(await plan.history()) == 1 + MAX_UNWANTED


async def test_a_repeated_signal_has_the_outcome_of_the_first(plan: PlanHandle) -> None:
    for _ in range(2):
        assert await plan.signal("one.came", event_id="payment-1") is MOVED


async def test_a_signal_whose_turn_is_not_over_is_kept() -> None:
    planner, gate = Planner("desk"), asyncio.Event()
    planner.add_goal("desk.goal", MACHINE)

    @planner.on_transition()
    async def decide(transition: TransitionContext, context: PlatformContext) -> None:
        await gate.wait()
        await transition.plan.execute_next(transition.event)

    async with PlancastTest(App("desk", planners=[planner])) as env:
        handle = await env.client.submit("desk.goal", {})
        await handle.state()
        assert await handle.signal("one.came", timeout=0.1) is KEPT
        gate.set()
        assert await handle.signal("two.came") is MOVED
        await handle.result(timeout=30)
