"""Event handlers (``on_event``): what reaches them apart from running plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from plancast import (
    App,
    DeterministicPlanner,
    FinishStep,
    PauseStep,
    PlanContext,
    Planner,
    StateConfig,
    StateTransition,
    TerminalError,
)
from plancast.settings import Settings
from plancast.testing import PlancastTest
from plancast_actors.dispatcher_options import DispatcherOptions, consumer_specs
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.subjects import Subjects

PATIENCE = 30.0


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


def a_shop(*announced: tuple[str, str]) -> Planner:
    """A planner whose plans announce facts in their only turn."""
    planner = Planner("shop")

    @planner.on_goal("order.received")
    async def take(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        for event_type, topic in announced:
            await context.bus.announce(event_type, {"order": goal.data.get("order")}, topic=topic)
        await plan.finalize({"order": goal.data.get("order")})

    return planner


def a_listener(event_type: str, topic: str | None = None) -> tuple[Planner, list[EventEnvelope]]:
    planner, heard = Planner("listener"), list[EventEnvelope]()
    planner.on_event(event_type, topic=topic)(lambda event, context: heard.append(event))
    return planner, heard


async def test_a_service_that_hears_what_plans_wait_for_approves_them() -> None:
    """Seed 004, option B."""
    asking = PauseStep(
        "approval_required",
        expected_event="approval.granted",
        when=lambda run: "approval.granted" not in run.results,
    )
    decided = DeterministicPlanner([asking, FinishStep("goal", lambda run: run.results["approval.granted"])])
    buyer, service = Planner("buyer"), Planner("approvals")
    buyer.add_goal("purchase", decided_by=decided)
    buyer.expects("approval.granted", "an approval")

    @service.on_event("plan.waiting_for_input")
    async def auto_approve(event: Any, context: Any) -> None:
        await context.bus.publish(
            event_type=event.data["expected_event"],
            correlation_id=event.data["correlation_id"],
            data={"status": "approved", "auto": True},
        )

    async with PlancastTest(App("app", planners=[buyer, service])) as env:
        plan = await env.submit("purchase", {"amount": 12_000})
        assert await plan.result(PATIENCE) == {"status": "approved", "auto": True}
        events = [entry["event"]["type"] for entry in await plan.history()]
        assert events == ["purchase", "approval.granted"], "a notification is no turn of the plan"


async def test_facts_of_a_plans_last_turn_are_heard() -> None:
    listener, heard = a_listener("order.shipped")
    async with PlancastTest(App("app", planners=[a_shop(("order.shipped", "business-facts")), listener])) as env:
        plan = await env.submit("order.received", {"order": 7})
        await plan.result(PATIENCE)
        await eventually(lambda: heard)
        assert heard[0].data == {"order": 7}
        assert len(await plan.history()) == 1


async def test_what_a_listener_sends_after_the_end_of_a_plan_is_sent_apart_from_it() -> None:
    listener, heard = a_listener("parcel.booked")

    @listener.on_event("order.shipped")
    async def book(event: Any, context: Any) -> None:
        await context.bus.request("parcel.requested", {}, "parcel.booked")
        await context.bus.announce("parcel.booked")

    async with PlancastTest(App("app", planners=[a_shop(("order.shipped", "business-facts")), listener])) as env:
        plan = await env.submit("order.received")
        await eventually(lambda: heard)
        assert heard[0].plan_id is None
        assert (heard[0].correlation_id, heard[0].source) == (plan.plan_id, "app")
        assert len(await plan.history()) == 1


async def test_final_responses_are_heard_on_the_topic_that_a_listener_names() -> None:
    listener, heard = a_listener("order.received.completed", "action-results")
    everything, others = a_listener("*")
    everything.name = "other"
    apps = App("app", planners=[a_shop(("last", "business-facts")), listener, everything])
    async with PlancastTest(apps) as env:
        plan = await env.submit("order.received", {"order": 7})
        await plan.result(PATIENCE)
        await eventually(lambda: heard and others)
        assert heard[0].data == {"plan_id": plan.plan_id, "status": "completed", "result": {"order": 7}, "error": None}
        await (await env.submit("order.received")).result(PATIENCE)
        await eventually(lambda: len(heard) == 2 and len(others) == 2)
        assert [each.type for each in others] == ["last", "last"]


async def test_announce_goes_to_the_topic_that_is_given() -> None:
    listener, heard = a_listener("invoice.sent", "billing-events")
    silent, nothing = a_listener("invoice.sent", "business-facts")
    silent.name = "other"
    shop = a_shop(("invoice.sent", "billing-events"), ("invoice.sent", "system-events"))
    async with PlancastTest(App("app", planners=[shop, listener, silent])) as env:
        await (await env.submit("order.received")).result(PATIENCE)
        await eventually(lambda: heard)
        assert (heard[0].topic, nothing) == ("billing-events", [])


@pytest.mark.parametrize("topic", ["system-events", "business-facts"])
async def test_an_error_of_a_listener_fails_no_plan(topic: str) -> None:
    """Neither a finished one nor a running one that a notification is about."""
    planner = Planner("holder")

    @planner.on_goal("hold")
    async def hold(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        await context.bus.announce("note", topic=topic)
        await (plan.pause("later") if topic == "system-events" else plan.finalize({}))

    @planner.on_event("note")
    async def broken(event: Any, context: Any) -> None:
        raise TerminalError("a defect of the listener")

    async with PlancastTest(App("app", planners=[planner])) as env:
        plan = await env.submit("hold")
        async with asyncio.timeout(PATIENCE):
            while not [each async for each in env.bus.dead_letters.list()]:
                await asyncio.sleep(0.005)
        state = await plan.state()
        assert (state["status"], state["error"]) == ("paused" if topic == "system-events" else "completed", None)
        assert len(await plan.history()) == 1


async def test_a_listener_cannot_change_a_plan_that_it_hears_of() -> None:
    planner, refused = Planner("holder"), list[str]()

    @planner.on_goal("hold")
    async def hold(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        await context.bus.announce("note", topic="system-events")
        await plan.pause("later")

    @planner.on_event("note")
    async def meddle(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        assert plan is not None
        try:
            await plan.fail("meddled with")
        except Exception as error:
            refused.append(str(error))

    async with PlancastTest(App("app", planners=[planner])) as env:
        plan = await env.submit("hold")
        await eventually(lambda: refused)
        assert "in a turn of its own" in refused[0]
        assert (await plan.state())["status"] == "paused"


def test_only_system_events_that_are_listened_to_are_read() -> None:
    def filters(*listened: tuple[str, str | None]) -> dict[str, tuple[str, ...]]:
        planner = Planner("p")
        for event_type, topic in listened:
            planner.on_event(event_type, topic=topic)(lambda event, context: None)
        options = DispatcherOptions.of(App("app", planners=[planner]), Settings())
        return {each.name: each.filters for each in consumer_specs(Subjects(), options)}

    assert "plans-system" not in filters()
    assert "plans-system" not in filters(("a", "business-facts"))
    assert filters(("b", None), ("a", "system-events"))["plans-system"] == (
        "plancast.system-events.*.*.a",
        "plancast.system-events.*.*.b",
    )
    assert filters(("*", None), ("a", None))["plans-system"] == ("plancast.system-events.*.*.>",)
    assert not any(EventTopic.SYSTEM_EVENTS in each for each in filters(("*", None))["plans-facts"])


async def test_a_goal_that_a_listener_sends_apart_from_a_plan_begins_a_plan_of_its_own() -> None:
    service, shipped = Planner("service"), list[Any]()

    @service.on_event("order.placed")
    async def ship(event: Any, context: Any) -> None:
        await context.bus.publish("shipping.goal", event.data, topic="action-requests")

    @service.on_goal("shipping.goal")
    async def begin(goal: Any, context: Any) -> None:
        shipped.append((goal.data, goal.correlation_id))
        await PlanContext.create_from_goal(goal, {}).finalize({})

    app = App("app", planners=[a_shop(("order.placed", "business-facts")), service])
    async with PlancastTest(app) as env:
        plan = await env.submit("order.received", {"order": 7})
        await plan.result(timeout=PATIENCE)
        await eventually(lambda: shipped)
    assert [data for data, _ in shipped] == [{"order": 7}]
    assert shipped[0][1] != plan.plan_id


@pytest.mark.parametrize("sender", ["goal handler", "transition handler", "listener", "under the plan's own id"])
async def test_a_goal_that_a_plan_sends_without_asking_for_an_answer_begins_a_plan(sender: str) -> None:
    shop, shipping = Planner("shop"), Planner("shipping")
    machine = {
        "start": StateConfig(state_name="start", transitions=[StateTransition(on_event="paid", to_state="done")]),
        "done": StateConfig(state_name="done", is_terminal=True),
    }
    shipping.add_goal("shipping.goal", {"start": StateConfig(state_name="start", is_terminal=True)})

    async def ship(who: str, context: Any, **fields: Any) -> None:
        if who == sender:
            await context.bus.publish("shipping.goal", {}, topic="action-requests", **fields)

    @shop.on_goal("order.goal", machine)
    async def begin(goal: Any, context: Any) -> None:
        await ship("goal handler", context)

    @shop.on_transition()
    async def on_transition(transition: Any, context: Any) -> None:
        await ship("transition handler", context)
        await ship("under the plan's own id", context, correlation_id=transition.plan.correlation_id)
        await transition.plan.execute_next(transition.event)

    @shop.on_event("paid")
    async def heard(event: Any, context: Any) -> None:
        await ship("listener", context)

    async with PlancastTest(App("app", planners=[shop, shipping])) as env:
        plan = await env.submit("order.goal", {})
        await plan.state()
        assert await plan.signal("paid") == "moved"
        await plan.result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while len(plans := await env.client.plans()) < 2:
                await asyncio.sleep(0.01)
    (begun,) = [each for each in plans if each.plan_id != plan.plan_id]
    assert begun.goal_event == "shipping.goal"
