"""Goals with schemas: data that break them are refused wherever they come from."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from plancast import (
    App,
    ChoreographyPlanner,
    CompleteAction,
    EventEnvelope,
    InvalidApp,
    InvalidGoal,
    PlanContext,
    PlanFailed,
    Planner,
    PlannerDecision,
)
from plancast.cli.errors import describe
from plancast.testing import ModelServer, PlancastTest
from plancast_bus.errors import InvalidSubject

PATIENCE = 20.0
GOAL = "order.goal"
SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
FAULT = 'goal_data.amount: got "much", allowed: number'
ENDS: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "done"},
    "done": {"state_name": "done", "is_terminal": True},
}


class Order(BaseModel):
    amount: float = Field(gt=0)


class Decider:
    name, wake_mode, version = "d", "push", "1"

    async def next(self, run: Any) -> PlannerDecision:
        return PlannerDecision(next_action=CompleteAction(result={}), reasoning="done")


def by_machine(schema: Any) -> Planner:
    planner = Planner("orders")
    planner.add_goal(GOAL, ENDS, schema=schema)
    return planner


def by_decider(schema: Any) -> Planner:
    planner = Planner("orders")
    planner.add_goal(GOAL, decided_by=Decider(), schema=schema)
    return planner


def by_handler(schema: Any) -> Planner:
    planner = Planner("orders")

    @planner.on_goal(GOAL, schema=schema)
    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, ENDS)
        await plan.execute_next()

    return planner


KINDS = pytest.mark.parametrize("kind", [by_machine, by_decider, by_handler])


def parent() -> Planner:
    planner = Planner("parent")
    states = {
        "start": {
            "state_name": "start",
            "action": {"event_type": GOAL, "response_event": "order.done", "data": {"amount": "{{goal_data.amount}}"}},
            "transitions": [{"on_event": "order.done", "to_state": "done"}],
        },
        "done": ENDS["done"],
    }
    planner.add_goal("parent.goal", states)
    return planner


@KINDS
@pytest.mark.parametrize("schema", [SCHEMA, Order])
async def test_submitting_other_data_raises(kind: Callable[[Any], Planner], schema: Any) -> None:
    async with PlancastTest(App("app", planners=[kind(schema)])) as env:
        with pytest.raises(InvalidGoal) as caught:
            await env.submit(GOAL, {"amount": "much"})
        assert caught.value.faults == [FAULT]
        assert str(caught.value) == f"the data of goal 'order.goal' break its schema: {FAULT}"
        assert not env.world.streams["requests"].messages
        await (await env.client.submit(GOAL, Order(amount=7))).result(timeout=PATIENCE)


@KINDS
async def test_other_data_from_the_wire_fail_the_plan_and_become_a_dead_letter(kind: Callable[[Any], Planner]) -> None:
    async with PlancastTest(App("app", planners=[kind(SCHEMA)])) as env:
        goal = EventEnvelope(
            source="stranger", type=GOAL, topic="action-requests", correlation_id="o-1", data={"amount": "much"}
        )
        await env.bus.publish(goal)
        plan = env.client.plan("o-1")
        with pytest.raises(PlanFailed, match=re.escape(FAULT)):
            await plan.result(timeout=PATIENCE)
        [letter] = [each async for each in env.bus.dead_letters.list()]
        assert (letter.reason, FAULT in letter.detail) == ("refused", True)
        assert [each["status"] for each in await plan.history()] == ["failed"]


@KINDS
async def test_a_parent_learns_that_its_childs_goal_was_refused(kind: Callable[[Any], Planner]) -> None:
    async with PlancastTest(App("app", planners=[kind(SCHEMA), parent()])) as env:
        plan = await env.submit("parent.goal", {"amount": "much"})
        with pytest.raises(PlanFailed, match=re.escape(FAULT)):
            await plan.result(timeout=PATIENCE)
        plan = await env.submit("parent.goal", {"amount": 7})
        await plan.result(timeout=PATIENCE)


WAITS: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": ENDS["done"],
}


async def test_a_plan_is_neither_redirected_nor_forked_to_other_data() -> None:
    planner = Planner("orders")
    planner.add_goal(GOAL, WAITS, schema=SCHEMA)
    async with PlancastTest(App("app", planners=[planner])) as env:
        plan = await env.submit(GOAL, {"amount": 7})
        async with asyncio.timeout(PATIENCE):
            while not await plan.history():
                await asyncio.sleep(0.01)
        fork = await env.client.fork(plan.plan_id, at=1, data={"amount": "much"})
        with pytest.raises(PlanFailed, match=re.escape(FAULT)):
            await fork.result(timeout=PATIENCE)
        await plan.redirect({"amount": "much"})
        async with asyncio.timeout(PATIENCE):
            while not (letters := [each async for each in env.bus.dead_letters.list()]):
                await asyncio.sleep(0.01)
        assert all(FAULT in each.detail for each in letters)
        assert (await plan.state())["goal_data"] == {"amount": 7}
        await plan.redirect({"amount": 8})
        await plan.signal("go")
        await plan.result(timeout=PATIENCE)
        assert (await plan.state())["goal_data"] == {"amount": 8}


async def test_a_model_learns_that_what_it_delegates_breaks_the_schema() -> None:
    def delegated(amount: Any) -> dict[str, Any]:
        action = {"action": "delegate", "target_planner": "orders", "goal_event": GOAL, "goal_data": {"amount": amount}}
        return {"next_action": action, "reasoning": "because"}

    async with ModelServer([delegated("much"), delegated(7)]) as server:
        server.add({"next_action": {"action": "complete", "result": {"ok": True}}, "reasoning": "done"})
        model = ChoreographyPlanner("model", "openai/test", api_key="sk-x", api_base=server.url, goals=["model.goal"])
        async with PlancastTest(App("app", planners=[model, by_machine(Order)])) as env:
            async with asyncio.timeout(PATIENCE):
                while not await env.bus.registry.list("event"):
                    await asyncio.sleep(0.01)
            plan = await env.submit("model.goal")
            assert await plan.result(timeout=PATIENCE) == {"ok": True}
        assert 'next_action.goal_data.amount: got "much", allowed: number' in server.requests[1].last
        assert "exclusiveMinimum 0" in server.requests[0].text


async def test_schemas_of_the_registry_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with PlancastTest(App("app", planners=[by_machine(None)])) as env:
        fields = {"goals": [GOAL], "schemas": {GOAL: {"$ref": "https://example.com/schema"}}}
        await env.bus.registry.put("app", "forged", fields)
        await (await env.submit(GOAL, {"amount": "much"})).result(timeout=PATIENCE)


def test_the_error_is_wrong_usage_of_the_command_line_and_crosses_process_borders() -> None:
    error = pickle.loads(pickle.dumps(InvalidGoal(GOAL, [FAULT])))
    assert (error.event_type, error.faults, isinstance(error, ValueError)) == (GOAL, [FAULT], True)
    assert describe(error)[::2] == (f"the data of goal 'order.goal' break its schema: {FAULT}", 2)


@pytest.mark.parametrize("schema", [{"type": "thing"}, 7, {"$ref": "https://example.com/schema"}])
def test_what_is_no_schema_is_refused_where_it_is_declared(schema: Any) -> None:
    with pytest.raises(InvalidApp, match=r"goal 'order\.goal': schema"):
        by_machine(schema)
    with pytest.raises(InvalidApp, match=r"goal 'order\.goal': schema"):
        by_handler(schema)


def test_a_goal_that_is_no_event_type_is_refused_before_its_schema() -> None:
    with pytest.raises(InvalidSubject):
        Planner("p").add_goal("no good", ENDS, schema=SCHEMA)
