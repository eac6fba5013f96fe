"""A state machine that a model designs runs like one that was written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import (
    App,
    CompleteAction,
    DelegateAction,
    GoalContext,
    PlanFailed,
    Planner,
    PlannerDecision,
    PlatformContext,
    Worker,
)
from plancast.testing import Answer, ModelServer, PlancastTest

GOOD = {
    "start": {"state_name": "start", "default_next": "adding"},
    "adding": {
        "state_name": "adding",
        "action": {"event_type": "add.requested", "response_event": "add.completed", "data": {"n": "{goal_data.n}"}},
        "transitions": [{"on_event": "add.completed", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
}
BAD = GOOD | {"adding": GOOD["adding"] | {"transitions": [{"on_event": "add.completed", "to_state": "nowhere"}]}}


def an_app(url: str) -> App:
    planner = Planner("designer", reasoning_model="openai/any", api_base=url, api_key="sk-x", max_repairs=1)
    worker = Worker("adder")

    @planner.on_goal("design.goal")
    async def on_goal(goal: GoalContext, context: PlatformContext) -> None:
        plan = await planner.create_plan(goal, await context.registry.agents(), context)
        await plan.execute_next()

    @worker.on_task("add.requested", "add.completed", description="Adds one")
    async def add(task: Any, context: Any) -> dict[str, int]:
        return {"n": task.data["n"] + 1}

    return App("designing", planners=[planner], workers=[worker])


async def test_a_designed_machine_is_repaired_and_runs() -> None:
    async with (
        ModelServer([Answer.json(BAD), Answer.json(GOOD)]) as model,
        PlancastTest(an_app(model.url)) as env,
    ):
        handle = await env.submit("design.goal", {"n": 1})
        assert await handle.result(timeout=30) == {"adding": {"n": 2}}
        assert set((await handle.state())["state_machine"]) == {"start", "adding", "done"}
        assert model.count == 2
        assert "nowhere" in str(model.requests[1].messages)
        spent = (await handle.state())["spent"]
        assert (spent["calls"], spent["tokens"] > 500) == (2, True), (
            "calls for a design count as those for decisions do"
        )


async def test_a_hopeless_design_fails_the_plan_and_says_why() -> None:
    async with ModelServer([Answer.json(BAD), Answer.json(BAD)]) as model, PlancastTest(an_app(model.url)) as env:
        handle = await env.submit("design.goal", {"n": 1})
        with pytest.raises(PlanFailed, match="nowhere"):
            await handle.result(timeout=30)


@pytest.mark.parametrize(("budget", "calls"), [(500, 0), (100_000, 2)])
async def test_a_design_draws_on_the_share_of_its_plan(budget: int, calls: int) -> None:
    class Parent:
        name, goals, wake_mode, version, token_budget = "parent", ("parent.goal",), "push", "1", budget

        async def next(self, run: Any) -> PlannerDecision:
            answer = run.results.get("design.goal.completed") or run.results.get("design.goal.failed")
            design = DelegateAction(target_planner="designer", goal_event="design.goal", goal_data={"n": 1})
            return PlannerDecision(next_action=CompleteAction(result=answer) if answer else design, reasoning="x")

    async with ModelServer([Answer.json(BAD), Answer.json(GOOD)]) as model:
        app = an_app(model.url)
        async with PlancastTest(App("app", planners=[*app.planners, Parent()], workers=app.workers)) as env:
            handle = await env.submit("parent.goal", {})
            answer = await handle.result(timeout=30)
            state = await handle.state()
        assert model.count == calls
    assert state.get("spent", {}).get("calls", 0) == calls
    if not calls:
        assert "max_tokens: a call takes about" in answer["error"]
