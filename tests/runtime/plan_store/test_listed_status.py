"""Plans in lists: what waits for people is neither running nor paused there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from plancast import App, DeterministicPlanner, PauseStep, PlanHandle, Planner, Worker
from plancast.plan.record import WAITING_FOR
from plancast.plan_store.listed_status import ListedStatuses
from plancast.testing import MemoryBus, PlancastTest
from plancast_bus.ports.checkpoints import Committed

MACHINE: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "check"},
    "check": {
        "state_name": "check",
        "action": {"event_type": "check.requested", "response_event": "check.completed"},
        "transitions": [{"on_event": "check.completed", "to_state": "ask"}],
    },
    "ask": {"state_name": "ask", "transitions": [{"on_event": "order.decided", "to_state": "ship"}]},
    "ship": {"state_name": "ship", "transitions": [{"on_event": "ship.done", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


def make_app() -> App:
    orders, held = Planner("orders"), Planner("held")
    orders.add_goal("order.goal", MACHINE)
    orders.expects("order.decided", "by a manager")

    @held.on_goal("held.goal", {"start": {"state_name": "start", "transitions": MACHINE["ask"]["transitions"]},
                                **{each: MACHINE[each] for each in ("ship", "done")}})  # fmt: skip
    async def begin(goal: Any, context: Any) -> None:
        from plancast import PlanContext

        plan = await PlanContext.create_from_goal(goal, {**MACHINE})
        if goal.data.get("trajectory"):
            plan.trajectory, plan.results[WAITING_FOR] = goal.data["trajectory"], "it"
        await plan.pause("a person has to look")

    asking = PauseStep("approval_required", None, "trip.decided", when=lambda run: "trip.decided" not in run.results)
    outside = PauseStep("external_event", None, "paid", when=lambda run: "paid" not in run.results)
    trips = DeterministicPlanner([asking], name="trips", goals=["trip.goal"])
    bills = DeterministicPlanner([outside], name="bills", goals=["bill.goal"])
    worker = Worker("checker")
    worker.on_task("check.requested", "check.completed")(lambda task, context: {})
    return App("a", planners=[orders, held, trips, bills], workers=[worker])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    async with PlancastTest(make_app(), workers=False) as env:
        async with asyncio.timeout(20):
            while "plan-events:order.decided" not in await env.bus.registry.list("event"):
                await asyncio.sleep(0.01)
        yield env


async def until(env: PlancastTest, handle: PlanHandle, status: str) -> None:
    async with asyncio.timeout(20):
        while [each.status for each in await env.client.plans() if each.plan_id == handle.plan_id] != [status]:
            await asyncio.sleep(0.01)


async def ids(env: PlancastTest, status: str | None = None, **options: Any) -> list[str]:
    return sorted(each.plan_id for each in await env.client.plans(status=status, **options))


async def nobody() -> tuple[str, ...]:
    """No events of people."""
    return ()


async def test_what_waits_for_people_is_listed_as_waiting(env: PlancastTest) -> None:
    handles = {
        goal: await env.submit(f"{goal}.goal", correlation_id=goal) for goal in ("order", "held", "trip", "bill")
    }
    await until(env, handles["order"], "running")
    await until(env, handles["held"], "waiting")
    await until(env, handles["trip"], "waiting")
    await until(env, handles["bill"], "paused")  # for an event, and of no person
    assert await handles["trip"].status() == "paused"
    assert await ids(env, "running") == ["order"]
    await handles["order"].signal("check.completed")
    await until(env, handles["order"], "waiting")
    assert await handles["order"].status() == "running"
    assert await ids(env, "waiting") == ["held", "order", "trip"]
    assert len(await ids(env, "waiting", limit=2)) == 2
    assert (await ids(env, "paused"), await ids(env, "running")) == (["bill"], [])
    await handles["order"].pause("lunch")
    await until(env, handles["order"], "paused")
    await handles["order"].resume()
    await until(env, handles["order"], "waiting")
    await handles["order"].approve()
    await until(env, handles["order"], "running")
    assert await ids(env, "waiting") == ["held", "trip"]
    with pytest.raises(ValueError, match="unheard"):
        await env.client.plans(status="unheard")


async def test_what_waits_is_listed_without_reading_a_plan(env: PlancastTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for goal, status in {"held": "waiting", "trip": "waiting", "bill": "paused"}.items():
        await until(env, await env.submit(f"{goal}.goal", correlation_id=goal), status)
    [bill] = [each async for each in env.bus.checkpoints.newest() if each.correlation_id == "bill"]
    old = bill._replace(summary=replace(bill.summary, asks_people=None))

    async def load(key: str, **_: Any) -> None:
        raise AssertionError(f"{key} is read")

    monkeypatch.setattr(env.bus.checkpoints, "load", load)
    assert (await ids(env, "waiting"), await ids(env, "paused")) == (["held", "trip"], ["bill"])
    with pytest.raises(AssertionError, match="bill is read"):
        await ListedStatuses(env.bus.checkpoints, nobody).read(old)


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (1, "waiting"),
        ({"decision": 1}, "waiting"),
        ({"decision": {"next_action": 1}}, "waiting"),
        ({"decision": {"next_action": {"action": "wait", "expected_event": "it", "pause_reason": []}}}, "paused"),
    ],
)
async def test_a_plan_into_whose_trajectory_its_handlers_write_is_listed(
    env: PlancastTest, step: Any, status: str
) -> None:
    await until(env, await env.submit("held.goal", {"trajectory": [step]}, correlation_id="odd"), status)


async def test_pages_of_what_waits_follow_each_other(env: PlancastTest) -> None:
    for number in range(5):
        await until(env, await env.submit("trip.goal", correlation_id=f"t{number}"), "waiting")
        await until(env, await env.submit("bill.goal", correlation_id=f"b{number}"), "paused")
    found: list[str] = []
    after = None
    while True:
        page = await env.client.plans(status="waiting", limit=2, after=after)
        found += [each.plan_id for each in page]
        if (after := page.next) is None:
            break
    assert found == ["t4", "t3", "t2", "t1", "t0"]


async def test_plans_that_earlier_versions_have_stored_are_listed_alike(env: PlancastTest) -> None:
    handle = await env.submit("order.goal", correlation_id="old")
    await handle.signal("check.completed")
    await until(env, handle, "waiting")

    async def people() -> tuple[str, ...]:
        return ("order.decided",)

    [stored] = [each async for each in env.bus.checkpoints.newest()]
    assert stored.summary.status == "running"
    old = Committed(stored.version, "old", replace(stored.summary, machine=None))  # without the hash of the machine
    assert (await ListedStatuses(env.bus.checkpoints, people).read(old)).summary.status == "waiting"
    assert (await ListedStatuses(env.bus.checkpoints, nobody).read(old)).summary.status == "running"
    await until(env, await env.submit("trip.goal", correlation_id="trip"), "waiting")
    [paused] = [each async for each in env.bus.checkpoints.newest() if each.correlation_id == "trip"]
    old = paused._replace(summary=replace(paused.summary, asks_people=None))
    assert (await ListedStatuses(env.bus.checkpoints, nobody).read(old)).summary.status == "waiting"
    lost = Committed(9, "lost", replace(stored.summary, status="paused"))
    assert (await ListedStatuses(MemoryBus().checkpoints, people).read(lost)).summary.status == "paused"
