"""Decision trees take a bounded number of steps in each plan."""

from __future__ import annotations

from typing import Any

import pytest

from plancast import (
    App,
    AwaitAction,
    CallToolStep,
    CompleteAction,
    DelegateAction,
    DeterministicPlanner,
    FinishStep,
    PlanFailed,
    RunContext,
    Settings,
    SpawnSpec,
    Worker,
)
from plancast.testing import PlancastTest


def a_worker() -> Worker:
    worker = Worker("adder")

    @worker.on_task("add.requested", "add.completed")
    async def add(task: Any, context: Any) -> dict[str, Any]:
        return {"n": task.data.get("n", 0) + 1}

    return worker


def at_most(steps: int) -> Settings:
    settings = Settings()
    settings.plans.max_tree_steps = steps
    return settings


def counted(run: RunContext) -> int:
    n: int = run.results.get("add.completed", {"n": 0})["n"]
    return n


def counting_to(n: int) -> App:
    """A tree that waits for a worker between its steps."""
    steps = [
        FinishStep("goal", payload=lambda run: {"n": counted(run)}, when=lambda run: counted(run) >= n),
        CallToolStep("add.requested", lambda run: {"n": counted(run)}),
    ]
    return App("a", planners=[DeterministicPlanner(steps, goals=["x.goal"])], workers=[a_worker()])


async def test_steps_are_bounded_over_the_turns_of_a_plan() -> None:
    async with PlancastTest(counting_to(1_000)) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match=r"took 64 steps .*plans\.max_tree_steps"):
            await handle.result(timeout=20)
        assert (await handle.state())["spent"]["steps"] == 64


@pytest.mark.parametrize(("goal", "ends"), [(5, True), (6, False)])
async def test_the_bound_is_a_setting_and_the_final_step_does_not_count(goal: int, ends: bool) -> None:
    async with PlancastTest(counting_to(goal), settings=at_most(5)) as env:
        handle = await env.submit("x.goal", {})
        if ends:
            assert await handle.result(timeout=20) == {"n": goal}
        else:
            with pytest.raises(PlanFailed, match="took 5 steps"):
                await handle.result(timeout=20)


async def test_waiting_on_for_a_group_is_no_step() -> None:
    class SpawnTen:
        group_aware, step_id = True, "ten"

        async def decide(self, run: RunContext) -> Any:
            assert run.tasks is not None
            if not run.tasks.is_group("all"):
                run.tasks.open_group("all")
            members = run.tasks.group("all").members
            if len(members) < 10:
                spec = SpawnSpec(event_type="add.requested", data={"n": len(members)})
                return DelegateAction(spec=spec, group_id="all", target_planner="adder")
            done = run.tasks.watch_group("all")
            return CompleteAction(result={"n": len(done.members)}) if done else AwaitAction(group_id="all")

    app = App("a", planners=[DeterministicPlanner([SpawnTen()], goals=["x.goal"])], workers=[a_worker()])
    async with PlancastTest(app, settings=at_most(11)) as env:
        handle = await env.submit("x.goal", {})
        assert await handle.result(timeout=20) == {"n": 10}
        assert (await handle.state())["spent"]["steps"] == 11


async def test_a_tree_that_never_waits_is_bounded_too() -> None:
    class Spawns:
        async def decide(self, run: RunContext) -> Any:
            spec = SpawnSpec(event_type="add.requested", data={})
            return DelegateAction(spec=spec, group_id="all", target_planner="adder")

    app = App("a", planners=[DeterministicPlanner([Spawns()], goals=["x.goal"])], workers=[a_worker()])
    async with PlancastTest(app, settings=at_most(100)) as env:
        handle = await env.submit("x.goal", {})
        with pytest.raises(PlanFailed, match="took 100 steps"):
            await handle.result(timeout=20)
