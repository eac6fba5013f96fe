"""What listeners, sessions and orders of plans do on a real nats-server."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.actors.on_nats import OnNats

from plancast import App, DeterministicPlanner, FinishStep, PauseStep, PlanContext, Planner
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 60.0


def an_app(heard: list[Any]) -> App:
    asking = PauseStep(
        "approval_required", expected_event="approval.granted", when=lambda run: "approval.granted" not in run.results
    )
    decided = DeterministicPlanner([asking, FinishStep("goal", lambda run: run.results["approval.granted"])])
    buyer, service, chat = Planner("buyer"), Planner("approvals"), Planner("chat")
    buyer.add_goal("purchase", decided_by=decided)
    buyer.expects("approval.granted", "an approval")

    @service.on_event("plan.waiting_for_input")
    async def approve(event: Any, context: Any) -> None:
        await context.bus.publish(
            event_type=event.data["expected_event"], correlation_id=event.data["correlation_id"], data={"auto": True}
        )

    service.on_event("purchase.completed", topic="action-results")(lambda event, context: heard.append(event))
    service.on_event("said", topic="business-facts")(lambda event, context: heard.append(event))

    @chat.on_goal("say")
    async def say(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        before = await context.memory.session(goal.session_id)
        plan.share(f"n{goal.data['n']}", goal.data["n"])
        await context.bus.announce("said", goal.data)
        await plan.finalize(before)

    return App("app", planners=[buyer, service, chat])


async def test_listeners_sessions_and_orders_work_on_a_server(nats_server: NatsServer) -> None:
    heard: list[Any] = []
    async with OnNats(nats_server, an_app(heard), hosts=2, plans={"lifecycle_events": True}) as env:
        first = await env.client.submit("purchase", {}, session_id="s")
        orders = [first.plan_id]
        plans = []
        for number in range(3):
            plans.append(await env.client.submit("say", {"n": number}, session_id="s", after=orders))
            orders = [plans[-1].plan_id]
        assert await first.result(PATIENCE) == {"auto": True}
        assert [await each.result(PATIENCE) for each in plans] == [{}, {"n0": 0}, {"n0": 0, "n1": 1}]
        async with asyncio.timeout(PATIENCE):
            while len(heard) < 4:
                await asyncio.sleep(0.01)
        assert sorted(each.type for each in heard) == ["purchase.completed", *["said"] * 3]
        for each in (first, *plans):
            events = [each async for each in _system_events(env, each.plan_id)]
            assert events.count("plan.started") == events.count("plan.completed") == 1


async def _system_events(env: OnNats, plan_id: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            stored = await env.bus.stored_events("system-events", plan_id)
            types = [env.bus.subjects.parse_stored(each.subject).event_type for each in stored]
            if "plan.completed" in types:
                for each in types:
                    yield each
                return
            await asyncio.sleep(0.01)
