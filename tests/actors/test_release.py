"""Releases: which code can continue which plans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import App, CompleteAction, Planner, PlannerDecision, RunContext, StateConfig, WaitAction
from plancast.testing import MemoryWorld, PlancastTest
from plancast_actors.deployment.plan_requirements import plans_underway
from plancast_actors.release import Abilities, Need, gaps
from plancast_bus.clock import SystemClock
from plancast_bus.settings import BusSettings

HOLDING = {
    "start": StateConfig(state_name="start", default_next="hold"),
    "hold": StateConfig.model_validate(
        {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "child"}]}
    ),
    "child": StateConfig.model_validate(
        {
            "state_name": "child",
            "action": {"event_type": "child.goal", "response_event": "child.done", "data": {}},
            "transitions": [{"on_event": "child.done", "to_state": "done"}],
        }
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}


class Waits:
    """Waits for ``go``, and completes."""

    goals = ("decided.goal",)

    def __init__(self, version: str) -> None:
        self.name, self.version = "waits", version

    async def next(self, run: RunContext) -> PlannerDecision:
        if "go" not in run.results:
            return PlannerDecision(next_action=WaitAction(reason="w", expected_event="go"), reasoning="because")
        return PlannerDecision(next_action=CompleteAction(result={}), reasoning="b")


def handled(version: str, *goals: str) -> Planner:
    planner = Planner("handled", version=version)
    for goal in goals:
        planner.add_goal(goal, HOLDING)

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        await transition.plan.execute_next(transition.event)

    return planner


def able(*planners: Any, retiring: tuple[Any, ...] = ()) -> Abilities:
    return Abilities.of(App("a", planners=planners, retiring=retiring))


@pytest.mark.parametrize(
    ("new", "beside"),
    [
        (able(handled("1", "h.goal"), Waits("1")), True),
        (able(handled("2", "h.goal"), Waits("1")), False),
        (able(handled("1", "h.goal"), Waits("2"), retiring=(Waits("1"),)), False),
        (able(handled("1", "h.goal", "new.goal"), Waits("1")), False),
    ],
    ids=["the same planners", "a planner's new version", "a decider's new version", "a new goal"],
)
def test_old_and_new_hosts_run_beside_each_other_only_when_both_know_all_planners(new: Abilities, beside: bool) -> None:
    assert new.can_run_beside(able(handled("1", "h.goal"), Waits("1"))) is beside


def test_another_version_of_plancast_is_not_mixed() -> None:
    old = able(handled("1", "h.goal"))
    fields = {**old.__dict__, "plancast": "0.0.1"}
    assert not old.can_run_beside(Abilities(**fields))


def test_gaps_name_what_is_missing_and_who_needs_it() -> None:
    old = able(handled("1", "h.goal", "child.goal"), Waits("1"))
    needs = [
        Need("p1", planner=("handled", "1"), children=frozenset({"child.goal", "some.task"})),
        *(Need(f"d{number}", decider=("waits", "1")) for number in range(5)),
        Need("free"),
    ]
    assert gaps(needs, {"h.goal": 2}, old, old) == []
    assert gaps(needs, {"h.goal": 2, "child.goal": 0}, old, able(handled("2", "other.goal"))) == [
        "goal 'child.goal', needed by plan p1",
        "planner 'handled' version '1', needed by plan p1",
        "planner 'waits' version '1', needed by plans d0, d1, d2 and 2 more",
        "goal 'h.goal', for which 2 events wait",
    ]


def test_a_planner_that_retires_leaves_no_gap() -> None:
    old = able(Waits("1"))
    assert gaps([Need("p", decider=("waits", "1"))], {}, old, able(Waits("2"), retiring=(Waits("1"),))) == []


async def test_the_store_tells_what_plans_under_way_need() -> None:
    world = MemoryWorld(BusSettings(), clock=SystemClock())
    machine = Planner("machine")
    machine.add_goal("m.goal", HOLDING)
    app = App("a", planners=[handled("1", "h.goal"), Waits("3"), machine])
    async with PlancastTest(app, world=world) as env:
        plans = {goal: await env.submit(goal) for goal in ("h.goal", "decided.goal", "m.goal")}
        ended = await env.submit("h.goal")
        async with asyncio.timeout(20):
            for plan in (*plans.values(), ended):
                while str(await plan.status()) not in ("running", "paused"):
                    await asyncio.sleep(0.01)
            await ended.cancel("enough")
            while not (await ended.status()).finished:
                await asyncio.sleep(0.01)
        found = {need.plan_id: need for need in await plans_underway(env.bus)}
    asked = frozenset({"child.goal"})
    assert found == {
        plans["h.goal"].plan_id: Need(plans["h.goal"].plan_id, planner=("handled", "1"), children=asked),
        plans["decided.goal"].plan_id: Need(plans["decided.goal"].plan_id, decider=("waits", "3")),
        plans["m.goal"].plan_id: Need(plans["m.goal"].plan_id, children=asked),
    }
