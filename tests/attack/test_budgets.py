"""Budgets of trees of plans: however many plans share one, and whatever they do, it is passed by one call at most."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.actors.on_nats import OnNats

from plancast import App, ChoreographyPlanner, PlanFailed
from plancast.testing import Answer, ModelRequest, ModelServer
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 90.0


def publish(event_type: str, response_event: str) -> dict[str, Any]:
    topic = {"topic": "action-requests", "data": {}, "reasoning": "more of it"}
    return {"action": "publish", "event_type": event_type, "response_event": response_event, **topic}


def boss(rule_url: str, **limits: Any) -> App:
    """A planner that begins twenty plans of another planner at once, and completes when they have ended."""
    model = {"reasoning_model": "openai/test-model", "api_key": "k" * 20, "api_base": rule_url, "max_repairs": 0}
    root = ChoreographyPlanner("boss", goals=["boss.goal"], system_instructions="You are the boss.", **limits, **model)
    child = ChoreographyPlanner("child", goals=["child.goal"], system_instructions="You are a child.", **model)
    return App("app", planners=[root, child])


@pytest.mark.attack(
    who="model", what="begin 20 children at once, which each call models", expected="the budget passed by one call"
)
@pytest.mark.parametrize("budget", [4_000, 14_000, 60_000])
@pytest.mark.parametrize("usage", [None, 1_500])
async def test_twenty_children_together_pass_the_budget_of_their_root_by_one_call_at_most(
    nats_server: NatsServer, budget: int, usage: int | None
) -> None:
    used: list[int] = []

    def rule(request: ModelRequest) -> Answer:
        decision: dict[str, Any] = {"action": "complete", "result": {"ok": True}}
        if "You are the boss." in request.text and "child.done" not in request.text:
            decision = {"action": "parallel", "branches": [publish("child.goal", "child.done")] * 20}
        answer = Answer.json({"next_action": decision, "reasoning": "x"})
        used.append(usage or len(request.text) // 4 + 1 + len(answer.text or "") // 4 + 1)
        return answer if usage is None else Answer(answer.text, prompt_tokens=usage - 300, completion_tokens=300)

    async with (
        ModelServer([], rule=rule) as server,
        OnNats(nats_server, boss(server.url, token_budget=budget), hosts=2) as env,
    ):
        handle = await env.client.submit("boss.goal")
        with suppress(PlanFailed):
            await handle.result(timeout=PATIENCE)
        spent = (await handle.state())["spent"]
        assert server.count > 1
        assert sum(used) <= budget + max(used)
        assert (spent["calls"], spent["tokens"]) == (len(used), sum(used)), "the account is exact"
