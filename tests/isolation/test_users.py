"""With ``plans.check_user``, a user's events do not move another user's plan; without it they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.isolation.test_tenants import WAYS

from plancast import App, PlanCancelled, PlanHandle, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.settings import Settings
from plancast.testing import PlancastTest
from plancast_bus.events.envelope import EventEnvelope, EventTopic

MINE, THEIRS = "ada", "mallory"
PATIENCE = 20.0
CHECKED = Settings.model_validate({"plans": {"check_user": True}})


def app() -> App:
    planner, worker = Planner("p"), Worker("w")
    action = StateAction(event_type="work.requested", response_event="work.completed")
    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(
                state_name="start",
                action=action,
                transitions=[StateTransition(on_event="work.completed", to_state="wait")],
            ),
            "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="done")]),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    worker.on_task("work.requested", "work.completed")(lambda task, context: {})
    return App("app", planners=[planner], workers=[worker])


async def waiting(env: PlancastTest, user: str) -> PlanHandle:
    """A plan of a user that a worker has answered, and that waits for a signal."""
    plan = await env.submit("x.goal", user_id=user)
    await until(plan, lambda state: state["current_state"] == "wait")
    return plan


async def until(plan: PlanHandle, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds(await plan.state()):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("event_type", "topic", "data"), [way for way in WAYS if way[0] != "quick.goal"])
async def test_no_event_of_another_user_moves_a_plan(event_type: str, topic: EventTopic, data: dict[str, Any]) -> None:
    async with PlancastTest(app(), settings=CHECKED) as env:
        plan = await waiting(env, MINE)
        before = await plan.state()
        fields = {"source": "mallory", "correlation_id": plan.plan_id, "user_id": THEIRS, "data": data}
        await env.bus.publish(EventEnvelope(type=event_type, topic=topic, **fields))
        async with asyncio.timeout(PATIENCE):
            while not await env.bus.dead_letters.count():
                await asyncio.sleep(0.005)
        [letter] = [each async for each in env.bus.dead_letters.list()]
        assert letter.reason == "refused"
        assert letter.detail == "user 'mallory' may not move a plan of user 'ada'"
        assert await plan.state() == before
        await plan.signal("go", user_id=MINE)
        await plan.result(timeout=PATIENCE)


@pytest.mark.parametrize(("owner", "sender"), [(MINE, ""), (MINE, MINE), ("", THEIRS)])
async def test_its_user_nobody_in_particular_and_those_of_a_plan_without_one_move_it(owner: str, sender: str) -> None:
    async with PlancastTest(app(), settings=CHECKED) as env:
        plan = await waiting(env, owner)
        await plan.signal("go", user_id=sender)
        await plan.result(timeout=PATIENCE)
        assert await env.bus.dead_letters.count() == 0


async def test_unless_it_is_asked_for_users_are_not_checked() -> None:
    async with PlancastTest(app()) as env:
        plan = await waiting(env, MINE)
        await plan.signal("go", user_id=THEIRS)
        await plan.result(timeout=PATIENCE)


async def test_a_cancellation_by_another_user_does_not_interrupt_a_handler() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    planner = Planner("slow")

    @planner.on_goal("slow.goal", {"start": StateConfig(state_name="start", is_terminal=True)})
    async def on_goal(goal: Any, context: Any) -> None:
        begun.set()
        await go.wait()

    async with PlancastTest(App("slow", planners=[planner]), settings=CHECKED) as env:
        refused = await env.submit("slow.goal", user_id=MINE)
        await begun.wait()
        cancel = {"source": "x", "type": "plan.cancel", "topic": EventTopic.PLAN_EVENTS}
        await env.bus.publish(EventEnvelope(**cancel, correlation_id=refused.plan_id, user_id=THEIRS))
        go.set()
        await refused.result(timeout=PATIENCE)
        begun.clear()
        go.clear()
        taken = await env.submit("slow.goal", user_id=MINE)
        await begun.wait()
        await env.bus.publish(EventEnvelope(**cancel, correlation_id=taken.plan_id, user_id=MINE))
        with pytest.raises(PlanCancelled):
            await taken.result(timeout=PATIENCE)
