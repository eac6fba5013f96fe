"""Events that people send cannot be had as the answer of an agent."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast import App, ChoreographyPlanner, PlanContext, Planner, Worker
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
