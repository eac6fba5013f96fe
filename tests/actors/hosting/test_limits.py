"""Deadlines and the budget of a tree on a real nats-server, with hosts that die at any point of a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.bus.stored_plans import stored_plans

from plancast import (
    App,
    CompleteAction,
    ParallelAction,
    PlanFailed,
    Planner,
    PlannerDecision,
    PublishAction,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 60.0
GOAL = "x.goal"


async def test_a_deadline_ends_a_plan_that_waits_for_ever(nats_server: NatsServer) -> None:
    planner = Planner("p")
    asks = StateAction(event_type="work.requested", response_event="work.completed")
    then = StateTransition(on_event="work.completed", to_state="done")
    states = [
        StateConfig(state_name="start", action=asks, transitions=[then]),
        StateConfig(state_name="done", is_terminal=True),
    ]
    planner.add_goal(GOAL, {each.state_name: each for each in states})
    async with OnNats(nats_server, App("app", planners=[planner])) as env:
        handle = await env.client.submit(GOAL, deadline=1.0)
        with pytest.raises(PlanFailed, match="deadline_exceeded"):
            await handle.result(timeout=PATIENCE)
        assert [entry["event"]["type"] for entry in await handle.history()] == [GOAL, "plan.deadline"]


class Node:
    """Begins two plans of its own goal and a task at once, and completes; down to a depth."""

    name, goals, wake_mode, version, max_actions = "node", (GOAL,), "push", "1", 500

    async def next(self, run: Any) -> PlannerDecision:
        depth = run.goal.get("depth", 0)
        child = PublishAction(event_type=GOAL, response_event="x.done", data={"depth": depth + 1})
        work = PublishAction(event_type="work.requested", response_event="work.completed")
        done = sum(step.decision is not None for step in run.trajectory)
        action: Any = CompleteAction(result={})
        if done == 0:
            action = ParallelAction(branches=[child, child, work] if depth < 3 else [work])
        elif done == 1:
            action = work
        return PlannerDecision(plan_id=run.plan_id, next_action=action, reasoning="it has an end")


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.TURN_HANDLE_BEFORE,
        CrashPoint.TURN_COMMIT_BEFORE,
        CrashPoint.TURN_COMMIT_AFTER,
        CrashPoint.TURN_EMIT_AFTER,
        CrashPoint.EFFECT_AFTER,
        CrashPoint.TURN_ACK_BEFORE,
    ],
)
async def test_the_account_of_a_tree_is_exact_when_hosts_die(nats_server: NatsServer, point: CrashPoint) -> None:
    passed, ending = 0, set[asyncio.Task[None]]()

    async def die(at: CrashPoint, about: str) -> None:
        nonlocal passed
        if at is not point:
            return
        passed += 1
        if passed in (4, 13, 29):
            ending.update(asyncio.create_task(host.crash()) for host in env.hosts)
            await asyncio.Event().wait()

    worker = Worker("worker")
    worker.on_task("work.requested", "work.completed")(lambda task, context: {})
    app = App("app", planners=[Node()], workers=[worker])
    dispatchers = {"ack_wait": 2.0}
    async with OnNats(nats_server, app, hosts=2, dispatchers=dispatchers) as env, fault_injection.installed(die):
        handle = await env.client.submit(GOAL)
        await handle.result(timeout=PATIENCE)
        assert ending, "hosts have died"
        state = await handle.state()
        assert len(await stored_plans(env.bus)) == 15
        assert (state["spent"]["actions"], state.get("lent", {})) == (30, {})
