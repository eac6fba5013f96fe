"""Switching a goal from one planner to another, while plans of the first are under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import (
    App,
    ChoreographyPlanner,
    CompleteAction,
    InvalidApp,
    PlanCancelled,
    PlanFailed,
    PlanHandle,
    Planner,
    PlannerDecision,
    RunContext,
    WaitAction,
)
from plancast.testing import MemoryWorld, PlancastTest
from plancast_bus.clock import SystemClock
from plancast_bus.settings import BusSettings

HOLDING = {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


class Waits:
    """Waits for ``go``, and then completes with its name and version."""

    def __init__(self, name: str, version: str = "1", goals: tuple[str, ...] = ("a.goal",)) -> None:
        self.name, self.version, self.goals = name, version, goals

    async def next(self, run: RunContext) -> PlannerDecision:
        if "go" not in run.results:
            return PlannerDecision(next_action=WaitAction(reason="w", expected_event="go"), reasoning="because")
        return PlannerDecision(next_action=CompleteAction(result={"by": f"{self.name} {self.version}"}), reasoning="b")


def handled(version: str) -> Planner:
    """A planner whose handler ends its plans with its version."""
    planner = Planner("handled", version=version)
    planner.add_goal("h.goal", HOLDING)

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        await transition.plan.finalize({"by": version})

    return planner


def machine(name: str) -> Planner:
    planner = Planner(name)
    planner.add_goal("a.goal", HOLDING)
    return planner


def world() -> MemoryWorld:
    return MemoryWorld(BusSettings(), clock=SystemClock())


async def standing(handle: PlanHandle) -> None:
    async with asyncio.timeout(20):
        while (await handle.status()) not in ("paused", "running"):
            await asyncio.sleep(0.01)


async def begun(app: App, shared: MemoryWorld, goal: str = "a.goal") -> str:
    async with PlancastTest(app, world=shared) as env:
        handle = await env.submit(goal)
        await standing(handle)
        return handle.plan_id


async def test_a_goal_is_switched_in_a_line_and_running_plans_finish_with_who_began_them() -> None:
    shared = world()
    old = await begun(App("a", planners=[Waits("llm")]), shared)
    async with PlancastTest(App("a", planners=[Waits("tree")], retiring=[Waits("llm")]), world=shared) as env:
        new = await env.submit("a.goal")
        await standing(new)
        for handle in (env.client.plan(old), new):
            await handle.signal("go", {})
        assert await env.client.plan(old).result(timeout=20) == {"by": "llm 1"}
        assert await new.result(timeout=20) == {"by": "tree 1"}


async def test_two_versions_of_one_planner_run_beside_each_other() -> None:
    shared = world()
    old = await begun(App("a", planners=[Waits("tree", "1")]), shared)
    app = App("a", planners=[Waits("tree", "2")], retiring=[Waits("tree", "1")])
    async with PlancastTest(app, world=shared) as env:
        new = await env.submit("a.goal")
        await standing(new)
        for handle in (env.client.plan(old), new):
            await handle.signal("go", {})
        assert await env.client.plan(old).result(timeout=20) == {"by": "tree 1"}
        assert await new.result(timeout=20) == {"by": "tree 2"}


@pytest.mark.parametrize("event", ["go", "resume"])
@pytest.mark.parametrize(
    "left",
    [
        App("a", planners=[Waits("tree", "2")]),
        App("a", planners=[Waits("other")]),
        App("a", planners=[machine("tree")]),
    ],
    ids=["another version", "another planner", "a machine"],
)
async def test_a_plan_whose_planner_is_gone_fails_and_says_which(left: App, event: str) -> None:
    shared = world()
    old = await begun(App("a", planners=[Waits("tree", "1")]), shared)
    async with PlancastTest(left, world=shared) as env:
        handle = env.client.plan(old)
        await (handle.resume() if event == "resume" else handle.signal("go", {}))
        with pytest.raises(PlanFailed, match=r"planner 'tree' version '1', which began this plan, is gone.*retiring"):
            await handle.result(timeout=20)


async def test_a_plan_whose_planner_is_gone_can_still_be_cancelled() -> None:
    shared = world()
    old = await begun(App("a", planners=[Waits("tree")]), shared)
    async with PlancastTest(App("a", planners=[Waits("other")]), world=shared) as env:
        await env.client.plan(old).cancel("no")
        with pytest.raises(PlanCancelled, match="no"):
            await env.client.plan(old).result(timeout=20)


async def test_a_machine_needs_nobodys_code_and_outlives_its_planner() -> None:
    shared = world()
    old = await begun(App("a", planners=[machine("m")]), shared)
    async with PlancastTest(App("a", planners=[Waits("tree")]), world=shared) as env:
        await env.client.plan(old).signal("go", {"n": 1})
        assert (await env.client.plan(old).result(timeout=20))["hold"] == {"n": 1}


async def test_handlers_have_versions_too() -> None:
    for retiring, expected in (([handled("1")], {"by": "1"}), ([], None)):
        shared = world()
        old = await begun(App("a", planners=[handled("1")]), shared, "h.goal")
        async with PlancastTest(App("a", planners=[handled("2")], retiring=retiring), world=shared) as env:
            await env.client.plan(old).signal("go", {})
            if expected is not None:
                assert await env.client.plan(old).result(timeout=20) == expected
            else:
                with pytest.raises(PlanFailed, match="version '1'"):
                    await env.client.plan(old).result(timeout=20)


def test_an_app_refuses_planners_that_it_could_not_tell_apart() -> None:
    with pytest.raises(InvalidApp, match="version '1' is there twice"):
        App("a", planners=[Waits("tree")], retiring=[Waits("tree")])
    desk, other = Planner("desk"), Planner("other")
    desk.add_goal("x.goal", decided_by=Waits("tree"))
    other.add_goal("y.goal", decided_by=Waits("tree"))
    with pytest.raises(InvalidApp, match="two planners that decide are named 'tree', both version '1'"):
        App("a", planners=[desk, other])


def test_an_app_refuses_what_is_no_planner_and_a_planner_without_goals() -> None:
    with pytest.raises(InvalidApp, match="got a int"):
        App("a", planners=[3])  # type: ignore[list-item]
    with pytest.raises(InvalidApp, match=r"has no goals: give it goals=\[\.\.\.\]"):
        App("a", planners=[Waits("tree", goals=())])


def test_a_goal_is_taken_once_by_a_machine_a_handler_or_a_planner() -> None:
    desk = Planner("desk")
    desk.add_goal("x.goal", decided_by=Waits("tree"))
    with pytest.raises(InvalidApp, match="twice"):
        desk.add_goal("x.goal", HOLDING)
    with pytest.raises(InvalidApp, match="twice"):
        desk.on_goal("x.goal")
    with pytest.raises(InvalidApp, match="either"):
        desk.add_goal("y.goal")
    with pytest.raises(InvalidApp, match="either"):
        desk.add_goal("y.goal", HOLDING, decided_by=Waits("tree"))


def test_an_llm_planner_may_decide_the_goals_of_another() -> None:
    desk = Planner("desk")
    assert not desk.needs_reasoner
    llm = ChoreographyPlanner("llm", "openai/none")
    llm.expects("approved", "by a manager")
    desk.add_goal("x.goal", decided_by=llm)
    app = App("a", planners=[desk])
    assert app.needs_reasoner
    assert app.deciders() == [llm]
