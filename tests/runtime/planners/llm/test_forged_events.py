"""Events that people send cannot be had as the answer of an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import (
    App,
    ChoreographyPlanner,
    PlanContext,
    Planner,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.testing import ModelServer, PlancastTest

PATIENCE = 20.0
WORK = {"action": "publish", "event_type": "work.requested"}
WAIT = {"action": "wait", "reason": "a manager decides", "expected_event": "approval.decided"}


def said(action: dict[str, Any]) -> dict[str, Any]:
    return {"next_action": action, "reasoning": "because"}


DONE = said({"action": "complete", "result": {"ok": True}})


def advisor(server: ModelServer, *goals: str) -> ChoreographyPlanner:
    return ChoreographyPlanner("advisor", "openai/test", api_key="sk-x", api_base=server.url, goals=goals)


def worker(answers: list[str]) -> Worker:
    made = Worker("w")

    @made.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        answers.append(task.event.response_event)
        return {"approved": True}

    return made


async def paused(handle: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        async for change in handle.watch():
            if change.status == "paused":
                return


async def test_a_worker_does_not_answer_for_a_person() -> None:
    asked: list[str] = []
    async with ModelServer([]) as server:
        planner = advisor(server, "order.goal")
        planner.expects("approval.decided", "by a manager")
        server.add(said({**WORK, "response_event": "approval.decided"}), said(WORK), said(WAIT), DONE)
        async with PlancastTest(App("app", planners=[planner], workers=[worker(asked)])) as env:
            plan = await env.submit("order.goal", {})
            await paused(plan)
            assert (asked, server.count) == (["work.completed"], 3)
            assert "which a person or another agent sends" in server.requests[1].last
            await plan.signal("approval.decided", {"by": "Ada"})
            assert await plan.result(timeout=PATIENCE) == {"ok": True}
            assert (await plan.state())["results"]["approval.decided"] == {"by": "Ada"}


async def test_what_one_planner_of_the_app_expects_all_may_wait_for_and_no_agent_emits() -> None:
    async with ModelServer([said(WAIT), DONE]) as server:
        model, people = advisor(server), Planner("people")
        people.expects("approval.decided", "by a manager")

        @model.on_goal("order.goal")
        async def on_goal(goal: Any, context: Any) -> None:
            plan = await PlanContext.create_from_goal(goal, {})
            decision = await model.reason_next_action("an order", context, plan=plan)
            await model.execute_decision(decision, context, goal_event=goal, plan=plan)
            await plan.save()

        async with PlancastTest(App("app", planners=[model, people], workers=[worker([])])) as env:
            plan = await env.submit("order.goal", {})
            await paused(plan)
            assert server.count == 1
            agents = await env.bus.registry.list("agent")
            assert {each["name"]: each["produces"] for each in agents.values()} == {
                "advisor": [],
                "people": [],
                "w": ["work.completed", "work.failed"],
            }


@pytest.mark.parametrize("event_type", ["approval.decided", "stock.counted"])
async def test_a_worker_that_answers_in_the_name_of_others_has_failed(event_type: str) -> None:
    forger, counter = Worker("w"), Worker("counter")

    @forger.on_task("work.requested", "work.completed")
    async def forge(task: Any, context: Any) -> None:
        await task.respond_with(event_type, {"by": "nobody"})

    @counter.on_task("stock.count", "stock.counted")
    async def count(task: Any, context: Any) -> None:
        pass

    async with ModelServer([]) as server:
        planner = advisor(server, "order.goal")
        planner.expects("approval.decided", "by a manager")
        server.add(said(WORK), said({**WAIT, "expected_event": event_type}), DONE)
        async with PlancastTest(App("app", planners=[planner], workers=[forger, counter])) as env:
            plan = await env.submit("order.goal", {})
            await paused(plan)
            forged = next(each for each in await plan.history() if each["event"]["type"] == event_type)
            assert f"work.requested was answered with {event_type}" in forged["notes"][0]
            results = (await plan.state())["results"]
            assert (event_type in results, results["work.failed"]["success"]) == (False, False)
            await plan.signal(event_type, {"by": "Ada"})
            assert await plan.result(timeout=PATIENCE) == {"ok": True}
            assert (await plan.state())["results"][event_type] == {"by": "Ada"}


APPROVE = {
    "start": StateConfig(state_name="start", default_next="ask"),
    "ask": StateConfig(
        state_name="ask",
        action=StateAction(event_type="work.requested", response_event="work.completed"),
        transitions=[
            StateTransition(on_event="approval.decided", to_state="done"),
            StateTransition(on_event="work.completed", to_state="wait"),
            StateTransition(on_event="work.failed", to_state="wait"),
        ],
    ),
    "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="approval.decided", to_state="done")]),
    "done": StateConfig(state_name="done", is_terminal=True),
}


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_machine_takes_no_approval_from_a_worker_where_it_is_declared(is_declared: bool) -> None:
    planner, forger = Planner("desk"), Worker("w")
    planner.add_goal("desk.goal", APPROVE)
    if is_declared:
        planner.expects("approval.decided", "by a manager")

    @forger.on_task("work.requested", "work.completed")
    async def forge(task: Any, context: Any) -> None:
        await task.respond_with("approval.decided", {"by": "nobody"})

    async with PlancastTest(App("app", planners=[planner], workers=[forger])) as env:
        plan = await env.submit("desk.goal", {})
        if not is_declared:  # then it is one of the names by which the worker may answer
            assert (await plan.result(timeout=PATIENCE))["ask"] == {"by": "nobody"}
            return
        async with asyncio.timeout(PATIENCE):
            async for change in plan.watch():
                if change.current_state == "wait":
                    break
        assert await plan.signal("approval.decided", {"by": "Ada"}) == "moved"
        assert (await plan.result(timeout=PATIENCE))["wait"] == {"by": "Ada"}


async def test_a_person_who_answers_a_request_may_use_any_name_of_people() -> None:
    states = {
        **APPROVE,
        "ask": StateConfig(
            state_name="ask",
            action=StateAction(event_type="budget.requested", response_event="budget.approved"),
            transitions=[
                StateTransition(on_event="budget.approved", to_state="wait"),
                StateTransition(on_event="budget.rejected", to_state="done"),
            ],
        ),
    }
    planner, desk = Planner("desk"), Worker("w")
    planner.add_goal("desk.goal", states)
    planner.expects("budget.approved", "by a manager")
    planner.expects("budget.rejected", "by a manager")

    @desk.on_task("budget.requested")
    async def ask(task: Any, context: Any) -> None:
        await task.respond_with("budget.rejected", {"by": "Ada"})

    async with PlancastTest(App("app", planners=[planner], workers=[desk])) as env:
        plan = await env.submit("desk.goal", {})
        assert (await plan.result(timeout=PATIENCE))["ask"] == {"by": "Ada"}
