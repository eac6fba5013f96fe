"""Plans with a deadline: whatever moves them, they fail when it is reached."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from plancast import (
    App,
    CallToolStep,
    ChoreographyPlanner,
    Client,
    DeterministicPlanner,
    EventEnvelope,
    InvalidPlannerConfig,
    PlanContext,
    PlanFailed,
    PlanHandle,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
)
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.testing import ManualClock, PlancastTest
from plancast_bus.memory import MemoryBus

ASKS = StateAction(event_type="work.requested", response_event="work.completed")


def machine(action: StateAction = ASKS) -> dict[str, StateConfig]:
    then = StateTransition(on_event=action.response_event, to_state="done")
    return {
        "start": StateConfig(state_name="start", action=action, transitions=[then]),
        "done": StateConfig(state_name="done", is_terminal=True),
    }


def of_machine(**options: Any) -> Planner:
    planner = Planner("p", **options)
    planner.add_goal("x.goal", machine())
    return planner


def of_handlers(**options: Any) -> Planner:
    planner = Planner("p", **options)

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        await PlanContext.create_from_goal(goal, {})
        await context.bus.request("work.requested", {}, "work.completed")

    @planner.on_transition()
    async def move(event: Any, context: Any) -> None:
        await event.plan.finalize({"n": 1})

    return planner


def of_tree(**options: Any) -> Any:
    return DeterministicPlanner([CallToolStep("work.requested", lambda run: {})], goals=["x.goal"], **options)


DRIVERS = pytest.mark.parametrize("planner", [of_machine, of_handlers, of_tree])


async def ended(env: PlancastTest, handle: PlanHandle, *, within: float = 5.0) -> str:
    """The error of a plan that fails before the clock has moved by more than ``within`` seconds."""
    async with asyncio.timeout(20):
        for _ in range(int(within / 0.01)):
            if await handle.status() == "failed":
                break
            await env.advance(0.01)
    with pytest.raises(PlanFailed) as caught:
        await handle.result(timeout=20)
    return caught.value.error


async def begun(env: PlancastTest, handle: PlanHandle) -> None:
    async with asyncio.timeout(20):
        while await handle.status() != "running":
            await env.advance(0.001)


@DRIVERS
async def test_a_plan_fails_at_the_deadline_that_it_was_submitted_with(planner: Any) -> None:
    async with PlancastTest(App("a", planners=[planner()]), clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60)
        await begun(env, handle)
        await env.advance(58)
        assert await handle.status() == "running"
        error = await ended(env, handle)
        assert error.startswith("deadline_exceeded: the plan had not ended by 2026-01-01T00:01:00")


@DRIVERS
async def test_a_planner_can_give_its_plans_a_deadline(planner: Any) -> None:
    async with PlancastTest(App("a", planners=[planner(deadline=30)]), clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60)
        await begun(env, handle)
        await env.advance(28)
        assert await handle.status() == "running"
        assert (await ended(env, handle)).startswith("deadline_exceeded")


@DRIVERS
async def test_a_paused_plan_has_its_deadline_too(planner: Any) -> None:
    async with PlancastTest(App("a", planners=[planner()]), clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60)
        await begun(env, handle)
        await env.bus.publish(
            EventEnvelope(source="t", type="plan.pause", topic="plan-events", correlation_id=handle.plan_id)
        )
        async with asyncio.timeout(20):
            while await handle.status() != "paused":
                await env.advance(0.001)
        await env.advance(58)
        assert (await ended(env, handle)).startswith("deadline_exceeded")


async def test_a_plan_that_ends_in_time_leaves_no_timer() -> None:
    app = App("a", planners=[of_machine()])
    async with PlancastTest(app, clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60)
        await begun(env, handle)
        (request,) = (await handle.state())["requests"]
        await env.bus.publish(
            EventEnvelope(
                source="w",
                type="work.completed",
                topic="action-results",
                correlation_id=handle.plan_id,
                parent_event_id=request,
                data={"n": 2},
            )
        )
        assert await handle.result(timeout=20) == {"start": {"n": 2}}
        assert (await handle.history())[-1]["effects"] == ["cancel_timer"]


async def test_a_goal_that_is_read_after_its_deadline_runs_no_code() -> None:
    called: list[Any] = []
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def begin(goal: Any, context: Any) -> None:
        called.append(goal)

    clock = ManualClock()
    async with PlancastTest(App("a", planners=[planner]), clock=clock) as env:
        late = Client(MemoryBus(env.world), clock=ManualClock(clock.time() - 100))
        handle = await late.submit("x.goal", {}, deadline=60)
        with pytest.raises(PlanFailed, match="deadline_exceeded"):
            await handle.result(timeout=20)
        await late.close()
    assert not called


async def test_a_turn_that_waits_for_its_model_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs:
        asked = 0

        async def complete(self, request: ReasonRequest) -> ReasonReply:
            self.asked += 1
            await asyncio.Event().wait()
            raise AssertionError

    model = Hangs()
    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: model)
    planner = ChoreographyPlanner("p", "m", goals=["x.goal"])
    async with PlancastTest(App("a", planners=[planner]), clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60)
        async with asyncio.timeout(20):
            while not model.asked:
                await env.advance(0.001)
        await env.advance(58)
        assert (await ended(env, handle)).startswith("deadline_exceeded")


async def test_the_prompt_and_children_know_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    class Delegates:
        async def complete(self, request: ReasonRequest) -> ReasonReply:
            prompts.append(str(request.messages[-1]["content"]))
            action = {"action": "delegate", "target_planner": "child", "goal_event": "y.goal", "goal_data": {}}
            return ReasonReply(json.dumps({"next_action": action, "reasoning": "r"}), Usage(1, 1), "m")

    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", Delegates)
    child = Planner("child", deadline=3_600)
    child.add_goal("y.goal", machine())
    planner = ChoreographyPlanner("p", "m", goals=["x.goal"])
    async with PlancastTest(App("a", planners=[planner, child]), clock=ManualClock()) as env:
        handle = await env.submit("x.goal", {}, deadline=60, session_id="s")
        async with asyncio.timeout(20):
            while len(plans := await env.client.plans(session_id="s")) < 2:
                await env.advance(0.001)
        (below,) = (each.plan_id for each in plans if each.plan_id != handle.plan_id)
        assert (await env.client.plan(below).state())["deadline"] == (await handle.state())["deadline"]
        await env.advance(61)
        assert (await ended(env, handle)).startswith("deadline_exceeded")
        assert await env.client.plan(below).status() in ("failed", "cancelled")
    assert "deadline: 2026-01-01T00:01:00+00:00" in prompts[0]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12, 10**400, "60"])
async def test_a_deadline_is_a_positive_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidPlannerConfig, match="deadline"):
        Planner("p", deadline=seconds)
    async with PlancastTest(App("a", planners=[of_machine()])) as env:
        with pytest.raises(ValueError, match="deadline"):
            await env.submit("x.goal", {}, deadline=seconds)
