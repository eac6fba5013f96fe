"""Timeouts of the requests that planners decide on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from plancast import (
    App,
    CallToolStep,
    ChoreographyPlanner,
    CompleteAction,
    DelegateAction,
    DeterministicPlanner,
    FinishStep,
    ParallelAction,
    PlannerDecision,
    PublishAction,
    RunContext,
    SpawnAndAwaitStep,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.planners.planner import Planner
from plancast.testing import ManualClock, PlancastTest

ASK = PublishAction(event_type="work.requested", response_event="work.completed", timeout_seconds=30)


class Scripted:
    """Decides by a function of the run."""

    goals = ("x.goal",)
    name = "scripted"

    def __init__(self, script: Callable[[RunContext], Any]) -> None:
        self._script = script
        self.runs: list[RunContext] = []

    async def next(self, run: RunContext) -> PlannerDecision:
        self.runs.append(run)
        return PlannerDecision(next_action=self._script(run), reasoning="because")


def then_completes(first: Any) -> Callable[[RunContext], Any]:
    def script(run: RunContext) -> Any:
        assert run.trigger is not None
        return first if run.trigger.type == "x.goal" else CompleteAction(result={"trigger": run.trigger.type})

    return script


async def result_after(app: App, seconds: float) -> Any:
    """The result of a plan that is not finished ``seconds`` after its begin, and soon after."""
    async with PlancastTest(app, clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {})
        async with asyncio.timeout(20):
            while await handle.status() != "running":
                await env.advance(0.001)
            await env.advance(seconds - 1)
            assert await handle.status() == "running"
            await env.advance(2)
            return await handle.result()


async def test_a_publish_is_answered_by_its_timeout() -> None:
    planner = Scripted(then_completes(ASK))
    assert await result_after(App("a", planners=[planner]), 30) == {"trigger": "work.timeout"}
    (*_, last) = planner.runs
    assert "work.timeout" in last.results
    assert last.tasks is not None
    assert [str(task.state) for task in last.tasks.tasks] == ["failed"]


async def test_branches_of_a_parallel_time_out_one_by_one() -> None:
    slow = ASK.model_copy(update={"event_type": "other.requested", "timeout_seconds": 60})
    planner = Scripted(then_completes(ParallelAction(branches=[ASK, slow])))
    assert await result_after(App("a", planners=[planner]), 60) == {"trigger": "work.timeout"}
    assert len(planner.runs) == 2


@pytest.mark.parametrize(
    "action",
    [
        DelegateAction(target_planner="child", goal_event="y.goal", goal_data={}, timeout_seconds=30),
        DelegateAction(spec=SpawnSpec(event_type="y.goal", timeout_seconds=30)),
    ],
)
async def test_a_child_that_takes_too_long_is_cancelled(action: DelegateAction) -> None:
    child = Planner("child")
    asks = StateAction(event_type="work.requested", response_event="work.completed")
    then = StateTransition(on_event="work.completed", to_state="done")
    states = [
        StateConfig(state_name="start", action=asks, transitions=[then]),
        StateConfig(state_name="done", is_terminal=True),
    ]
    child.add_goal("y.goal", {each.state_name: each for each in states})
    app = App("a", planners=[Scripted(then_completes(action)), child])
    async with PlancastTest(app, clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, session_id="s")
        async with asyncio.timeout(20):
            while len(plans := await env.client.plans(session_id="s")) < 2:
                await env.advance(0.001)
            await env.advance(31)
            assert await handle.result() == {"trigger": "y.goal.timeout"}
            (below,) = (each.plan_id for each in plans if each.plan_id != handle.plan_id)
            while await env.client.plan(below).status() != "cancelled":
                await env.advance(0.01)


@pytest.mark.parametrize(
    "step",
    [
        CallToolStep(
            "work.requested",
            lambda run: {},
            response_event="work.completed",
            timeout_seconds=30,
            when=lambda run: not run.results,
        ),
        SpawnAndAwaitStep(
            lambda run: SpawnSpec(event_type="work.requested", timeout_seconds=30),
            lambda run, completion: CompleteAction(result={"states": [str(m.status) for m in completion.members]}),
        ),
    ],
)
async def test_steps_of_a_tree_time_out(step: Any) -> None:
    finish = FinishStep("goal", payload=lambda run: {"seen": sorted(run.results)})
    app = App("a", planners=[DeterministicPlanner([step, finish], goals=["x.goal"])])
    result = await result_after(app, 30)
    assert result in ({"seen": ["work.timeout"]}, {"states": ["failed"]})


async def test_a_handler_gets_the_timeout_of_a_decision() -> None:
    planner = ChoreographyPlanner("p", "m")
    own = PlannerDecision(next_action=ASK, reasoning="by hand")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        await planner.execute_decision(own, context)

    @planner.on_transition()
    async def move(event: Any, context: Any) -> None:
        await event.plan.finalize({"trigger": event.event_type})

    worker = Worker("w")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> None:
        await asyncio.Event().wait()

    app = App("a", planners=[planner], workers=[worker])
    assert await result_after(app, 30) == {"trigger": "work.timeout"}


@pytest.mark.parametrize("seconds", [1e12, 1e300])
async def test_a_timeout_beyond_the_calendar_fails_no_plan(seconds: float) -> None:
    asks = StateAction(event_type="work.requested", response_event="work.completed", timeout_seconds=seconds)
    then = StateTransition(on_event="work.completed", to_state="done")
    planner = Planner("p")
    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", action=asks, transitions=[then]),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("x.goal", {})
        async with asyncio.timeout(20):
            while await handle.status() == "pending":
                await asyncio.sleep(0.001)
        await handle.signal("work.completed", {"n": 1})
        assert await handle.result(timeout=20) == {"start": {"n": 1}}
