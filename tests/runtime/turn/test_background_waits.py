"""What a task in the background answers while its plan waits for a person reaches the planner after the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import App, CompleteAction, DeterministicPlanner, RunContext, SpawnAndAwaitStep, SpawnSpec, Worker
from plancast.decisions.actions import WaitAction
from plancast.tasks.model import GroupCompletion
from plancast.testing import ManualClock, PlancastTest

SECONDS = 20.0


class WaitsOnceSpawned:
    """Waits for a person while the task goes on."""

    async def decide(self, run: RunContext) -> WaitAction | None:
        begun = run.tasks is not None and run.tasks.groups
        if not begun or run.trigger is None or run.trigger.type != "wait.goal":
            return None
        return WaitAction(reason="a person", expected_event="go.on", timeout_seconds=60)


def resolved(run: RunContext, group: GroupCompletion) -> CompleteAction:
    return CompleteAction(result={"status": str(group.members[0].status)})


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ends", ["signal", "timeout", "resume"])
async def test_an_answer_that_comes_during_a_wait_is_told_after_it(fails: bool, ends: str) -> None:
    worker, waiting = Worker("w"), asyncio.Event()

    @worker.on_task("slow.requested", "slow.completed")
    async def slow(task: Any, context: Any) -> dict[str, Any]:
        await waiting.wait()
        if fails:
            raise ValueError("no")
        return {}

    spawn = SpawnAndAwaitStep(spec=lambda run: SpawnSpec(event_type="slow.requested"), on_resolved=resolved)
    tree = DeterministicPlanner([WaitsOnceSpawned(), spawn], goals=["wait.goal"])
    clock = ManualClock()
    async with PlancastTest(App("a", planners=[tree], workers=[worker]), clock=clock) as env:
        handle = await env.submit("wait.goal", {})
        async with asyncio.timeout(SECONDS):
            while await handle.status() != "paused":
                await asyncio.sleep(0.01)
            waiting.set()
            while len(await handle.history()) < 2:
                await asyncio.sleep(0.01)
        if ends == "timeout":
            await env.advance(61)
        else:
            await (handle.signal("go.on") if ends == "signal" else handle.resume())
        assert await handle.result(timeout=SECONDS) == {"status": "failed" if fails else "complete"}
