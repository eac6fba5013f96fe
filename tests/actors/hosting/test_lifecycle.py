"""Lifecycle events of plans on the topic of system events, and the log records of their moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from plancast import (
    App,
    DeterministicPlanner,
    FinishStep,
    PauseStep,
    PlanCancelled,
    PlanContext,
    PlanFailed,
    Planner,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.testing import PlancastTest
from plancast_bus import fault_injection
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.fault_injection import CrashPoint

PATIENCE = 30.0
PURCHASE = {
    "start": StateConfig(state_name="start", default_next="checking"),
    "checking": StateConfig(
        state_name="checking",
        action=StateAction(event_type="check.requested", response_event="check.completed"),
        transitions=[
            StateTransition(on_event="check.completed", to_state="approval"),
            StateTransition(on_event="check.failed", to_state="failed"),
        ],
    ),
    "approval": StateConfig(
        state_name="approval",
        description="A manager approves the purchase",
        transitions=[
            StateTransition(on_event="purchase.approved", to_state="done"),
            StateTransition(on_event="purchase.rejected", to_state="failed"),
        ],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
    "failed": StateConfig(state_name="failed", is_terminal=True),
}


def an_app() -> App:
    planner, worker = Planner("buyer"), Worker("checker")
    planner.add_goal("purchase", PURCHASE)

    @worker.on_task("check.requested", "check.completed")
    async def check(task: Any, context: Any) -> dict[str, Any]:
        return {"ok": True}

    return App("app", planners=[planner], workers=[worker])


ON = Settings.model_validate({"plans": {"lifecycle_events": True}})


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    async with PlancastTest(an_app(), settings=ON) as env:
        yield env


def system_events(env: PlancastTest) -> list[EventEnvelope]:
    stored = env.world.streams["facts"].messages.values()
    events = [codec.decode(each.payload, each.content_type) for each in stored]
    return [each for each in events if each.topic == "system-events"]


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


def told(env: PlancastTest) -> list[tuple[str, dict[str, Any]]]:
    return [(each.type, each.data) for each in system_events(env)]


async def test_each_step_of_a_plan_is_announced_once(env: PlancastTest) -> None:
    plan = await env.submit("purchase", session_id="s", tenant_id="t", user_id="u")
    await eventually(lambda: [each for each in told(env) if each[0] == "plan.waiting_for_input"])
    await plan.signal("purchase.approved")
    await plan.result(PATIENCE)
    await eventually(lambda: [each for each in told(env) if each[0] == "plan.completed"])
    own = {"plan_id": plan.plan_id}
    moves = [
        ("start", "checking", "purchase"),
        ("checking", "approval", "check.completed"),
        ("approval", "done", "purchase.approved"),
    ]
    changed = [
        ("plan.state_changed", own | {"from_state": before, "to_state": after, "event_type": event})
        for before, after, event in moves
    ]
    waiting = {
        "correlation_id": plan.plan_id,
        "reason": "A manager approves the purchase",
        "expected_event": "purchase.approved",
        "expected_events": ["purchase.approved", "purchase.rejected"],
        "timeout_seconds": None,
    }
    assert told(env) == [
        ("plan.started", own | {"goal_event": "purchase"}),
        changed[0],
        changed[1],
        ("plan.waiting_for_input", own | waiting),
        changed[2],
        ("plan.completed", own),
    ]
    for event in system_events(env):
        assert (event.plan_id, event.correlation_id, event.source) == (plan.plan_id, plan.plan_id, "buyer")
        assert (event.session_id, event.tenant_id, event.user_id) == ("s", "t", "u")


async def test_a_failed_and_a_cancelled_plan_say_why(env: PlancastTest) -> None:
    failed, cancelled = await env.submit("purchase"), await env.submit("purchase")
    await eventually(lambda: len([each for each in told(env) if each[0] == "plan.waiting_for_input"]) == 2)
    await failed.signal("purchase.rejected", {"error": "too dear"})
    await cancelled.cancel("no longer needed")
    with pytest.raises(PlanFailed):
        await failed.result(PATIENCE)
    with pytest.raises(PlanCancelled):
        await cancelled.result(PATIENCE)
    await eventually(lambda: {"plan.failed", "plan.cancelled"} <= {each for each, _ in told(env)})
    assert ("plan.failed", {"plan_id": failed.plan_id, "error": "too dear"}) in told(env)
    assert ("plan.cancelled", {"plan_id": cancelled.plan_id, "error": "no longer needed"}) in told(env)


async def test_a_pause_is_announced_and_a_wait_of_a_planner_once() -> None:
    asking = PauseStep("approval_required", expected_event="go", when=lambda run: "go" not in run.results)
    planner = Planner("p")
    planner.add_goal("decided", decided_by=DeterministicPlanner([asking, FinishStep("goal", lambda run: {})]))
    planner.expects("go", "a go")

    @planner.on_goal("handled")
    async def hold(goal: Any, context: Any) -> None:
        await (await PlanContext.create_from_goal(goal, {})).pause("the desk is closed")

    async with PlancastTest(App("app", planners=[planner]), settings=ON) as env:
        await env.submit("decided")
        handled = await env.submit("handled")
        await eventually(lambda: len(system_events(env)) == 4)
        (said,) = (data for kind, data in told(env) if kind == "plan.waiting_for_input" and "payload" not in data)
        assert (said["plan_id"], said["reason"]) == (handled.plan_id, "the desk is closed")
        assert sorted(kind for kind, _ in told(env)) == ["plan.started"] * 2 + ["plan.waiting_for_input"] * 2


async def test_what_is_announced_survives_crashes_and_lost_acknowledgements_and_comes_once() -> None:
    """The host ends after three commits with nothing sent; of what it sends, each first acknowledgement is lost."""
    async with PlancastTest(an_app(), settings=ON) as env:
        ended: list[asyncio.Future[None]] = []
        lost: set[str] = set()

        async def strike(point: CrashPoint, about: str) -> fault_injection.Passage:
            if point is CrashPoint.TURN_COMMIT_AFTER and len(ended) < 3:
                ended.append(asyncio.ensure_future(env.crash_host()))
                await asyncio.Event().wait()  # until it is cancelled with its host
            if point is CrashPoint.EFFECT_AFTER and "system-events" in about and about not in lost:
                lost.add(about)
                return "drop"
            return "pass"

        async with fault_injection.installed(strike):
            plan = await env.submit("purchase")
            await plan.signal("purchase.approved")
            await plan.result(PATIENCE)
            await eventually(lambda: "plan.completed" in [each for each, _ in told(env)])
        assert len(ended) == 3
        assert len(lost) >= 3
        kinds = [each for each, _ in told(env)]
        changes = [each["to_state"] for kind, each in told(env) if kind == "plan.state_changed"]
        assert (kinds.count("plan.started"), kinds.count("plan.completed")) == (1, 1)
        assert (len(changes), changes[-1]) == (len(set(changes)), "done")


async def test_nothing_is_announced_unless_it_is_asked_for() -> None:
    async with PlancastTest(an_app()) as env:
        plan = await env.submit("purchase")
        await plan.signal("purchase.approved")
        await plan.result(PATIENCE)
        assert told(env) == []


async def test_each_move_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with PlancastTest(an_app()) as env:
        with caplog.at_level(logging.INFO, logger="plancast.turn_record.lifecycle"):
            plan = await env.submit("purchase")
            await plan.signal("purchase.approved")
            await plan.result(PATIENCE)
        moves = [each for each in caplog.records if each.name == "plancast.turn_record.lifecycle"]
        found = [(each.plan_id, each.from_state, each.to_state, each.event_type) for each in moves]  # type: ignore[attr-defined]
        assert found[0] == (plan.plan_id, "start", "checking", "purchase")
        assert found[-1][1:] in (("approval", "done", "purchase.approved"), ("checking", "done", "check.completed"))
        assert moves[0].getMessage() == "plan moved from start to checking on purchase"
