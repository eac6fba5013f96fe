"""The bytes that a plan takes in the store, as its handle returns them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plancast import App, PlanContext, Planner, StateConfig, StateTransition
from plancast.plan_store.plan_size import PlanSize, size_of
from plancast.testing import PlancastTest
from plancast_bus.events.codec import pack

pytestmark = pytest.mark.asyncio


def an_app() -> App:
    """A plan that keeps what it is sent, twice."""
    planner = Planner("keeper")
    on = [StateTransition(on_event="keep", to_state="start")]

    @planner.on_goal("keep.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {"start": StateConfig(state_name="start", transitions=on)})
        plan.results["kept"] = []

    @planner.on_transition()
    async def keep(transition: Any, context: Any) -> None:
        transition.plan.results["kept"] += [transition.data["text"], transition.data["text"]]

    return App("keeping", planners=[planner])


def text(length: int, seed: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()


async def test_a_small_plan_is_in_its_checkpoint_alone() -> None:
    async with PlancastTest(an_app()) as env:
        handle = await env.submit("keep.goal", {})
        await handle.signal("keep", {"text": "short"})
        found, (stored, *_) = await handle.size(), reversed(env.world.plans.kept(handle.plan_id))
        entries = sum(len(pack(each)) for each in await handle.history())
        assert found == PlanSize(inline=len(stored.body), referenced=0, history=entries)


async def test_values_of_a_large_plan_count_once_and_apart_from_checkpoint_and_history() -> None:
    async with PlancastTest(an_app()) as env:
        handle = await env.submit("keep.goal", {})
        for n in range(20):
            await handle.signal("keep", {"text": text(20_000, n)})
        found = await handle.size()
        assert 20 * 20_000 < found.referenced < 20 * 20_000 + 20_000
        assert len(env.world.plans.kept(handle.plan_id)[-1].body) == found.inline < 10_000
        assert 20 * 300 < found.history < 20 * 1_500


async def test_a_plan_that_has_not_begun_takes_nothing() -> None:
    async with PlancastTest(an_app()) as env:
        assert await size_of(env.bus, "unknown") == PlanSize(0, 0, 0)
