"""One tenant tries to move, read or stand in for another tenant's plan, by every way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from plancast import App, Client, PlanContext, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.errors import ForeignPlan, PlanNotFound
from plancast.plan.status import PlanStatus
from plancast.settings import Settings
from plancast.testing import PlancastTest
from plancast_bus.clock import ManualClock
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.bus import DeadLetter
from plancast_bus.ports.effects import NoteAlias

MINE, THEIRS = "acme", "mallory"
PLAN = "plan-of-acme"
SECRET = "the-secret-of-acme"


def _machine() -> dict[str, StateConfig]:
    return {
        "start": StateConfig(state_name="start", default_next="ask"),
        "ask": StateConfig(
            state_name="ask",
            action=StateAction(event_type="work.requested", response_event="work.completed", data={}),
            transitions=[
                StateTransition(on_event="work.completed", to_state="wait"),
                StateTransition(on_event="prices.changed", to_state="failed"),
            ],
        ),
        "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="done")]),
        "done": StateConfig(state_name="done", is_terminal=True),
        "failed": StateConfig(state_name="failed", is_terminal=True),
    }


def _app() -> App:
    planner = Planner("p")
    planner.add_goal("x.goal", _machine())
    planner.add_goal("quick.goal", {"start": StateConfig(state_name="start", is_terminal=True)})
    return App("app", planners=[planner])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    """An app in memory, in which the tenant acme has a plan that waits for an answer."""
    async with PlancastTest(_app()) as env:
        handle = await env.submit("x.goal", {"key": SECRET}, correlation_id=PLAN, tenant_id=MINE, session_id="s")
        await handle.state()
        await _until(env, lambda plan: plan["current_state"] == "ask")
        yield env


async def _plan(env: PlancastTest) -> dict[str, Any]:
    return await env.client.plan(PLAN).state()


async def _until(env: PlancastTest, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not holds(plan := await _plan(env)):
        await asyncio.sleep(0.005)
    return plan


async def _letters(env: PlancastTest, count: int = 1) -> list[DeadLetter]:
    while await env.bus.dead_letters.count() < count:
        await asyncio.sleep(0.005)
    return [each async for each in env.bus.dead_letters.list()]


def _event(event_type: str, topic: EventTopic, **fields: Any) -> EventEnvelope:
    return EventEnvelope(**{"source": "mallory", "type": event_type, "topic": topic, "correlation_id": PLAN} | fields)


CONTROLS = {
    "plan.cancel": {"reason": "x"}, "plan.pause": {"reason": "x"}, "plan.resume": {"input": 1},
    "plan.reject": {"reason": "x"}, "plan.redirect": {"goal_data": {"key": "changed"}}, "plan.inject": {"context": "x"},
}  # fmt: skip
WAYS = [
    *((name, EventTopic.PLAN_EVENTS, data) for name, data in CONTROLS.items()),
    ("go", EventTopic.PLAN_EVENTS, {}),
    ("work.completed", EventTopic.ACTION_RESULTS, {"forged": True}),
    ("work.failed", EventTopic.ACTION_RESULTS, {"success": False}),
    ("work.completed", EventTopic.PLAN_EVENTS, {"forged": True}),
    ("work.timeout", EventTopic.PLAN_EVENTS, {}),
    ("plan.expired", EventTopic.PLAN_EVENTS, {}),
    ("prices.changed", EventTopic.BUSINESS_FACTS, {}),
    ("prices.changed", EventTopic.TASK_EVENTS, {}),
    ("x.goal", EventTopic.ACTION_REQUESTS, {"key": "changed"}),
    ("quick.goal", EventTopic.ACTION_REQUESTS, {}),
]


@pytest.mark.parametrize(
    ("event_type", "topic", "data", "tenant"),
    [
        *((*way, tenant) for way in WAYS for tenant in (THEIRS, None)),
        *((*WAYS[0], tenant) for tenant in ("", "ACME", "acme ", "acme\x00", "*", ">")),
    ],
)
async def test_no_event_of_another_tenant_moves_a_plan(
    env: PlancastTest, event_type: str, topic: EventTopic, data: dict[str, Any], tenant: str | None
) -> None:
    before = await _plan(env)
    asked = next(iter(before["requests"]))

    await env.bus.publish(_event(event_type, topic, data=data, tenant_id=tenant, parent_event_id=asked))

    letter = (await _letters(env))[0]
    assert letter.reason == "refused"
    assert MINE in letter.detail
    assert SECRET not in letter.detail
    assert await _plan(env) == before


async def test_the_tenants_own_event_moves_it_after_all_that(env: PlancastTest) -> None:
    for event_type, topic, data in WAYS:
        await env.bus.publish(_event(event_type, topic, data=data, tenant_id=THEIRS))
    await _letters(env, len(WAYS))

    asked = next(iter((await _plan(env))["requests"]))
    await env.bus.publish(
        _event("work.completed", EventTopic.ACTION_RESULTS, tenant_id=MINE, parent_event_id=asked, data={"n": 1})
    )

    assert (await _until(env, lambda plan: plan["current_state"] == "wait"))["results"]["ask"] == {"n": 1}


async def test_a_tenant_named_in_metadata_alone_does_not_count(env: PlancastTest) -> None:
    await env.bus.publish(_event("plan.cancel", EventTopic.PLAN_EVENTS, metadata={"tenant_id": MINE}))

    assert (await _letters(env))[0].reason == "refused"
    assert (await _plan(env))["status"] == "running"


@pytest.mark.parametrize("parent", [PLAN, None])
async def test_the_response_of_a_false_child_neither_moves_nor_stands_in_for_the_plan(
    env: PlancastTest, parent: str | None
) -> None:
    asked = next(iter((await _plan(env))["requests"]))
    metadata = {"reply_to": PLAN} | ({"parent_plan_id": parent} if parent else {})
    published: list[str] = []

    async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
        published.append(subject)

    await env.bus.subscribe(env.bus.subjects.event("action-results", PLAN, "work.completed"), notice)
    await env.bus.publish(
        _event(
            "quick.goal", EventTopic.ACTION_REQUESTS, id=asked + "x", correlation_id="plan-of-mallory",
            tenant_id=THEIRS, response_event="work.completed", metadata=metadata,
        )
    )  # fmt: skip

    if parent:  # it goes to the plan as an answer does, and is refused there
        assert (await _letters(env))[0].reason == "refused"
    else:  # without a parent it is the false child's own response, under its own id
        assert await env.client.plan("plan-of-mallory", tenant_id=THEIRS).result(timeout=30) == {}
        assert published == []
    assert (await _plan(env))["current_state"] == "ask"


async def test_an_event_by_a_false_alias_keeps_its_tenant(env: PlancastTest) -> None:
    await env.bus.emit([NoteAlias("order-7", PLAN)])
    await env.bus.publish(_event("plan.cancel", EventTopic.PLAN_EVENTS, tenant_id=THEIRS, correlation_id="order-7"))

    assert (await _letters(env))[0].reason == "refused"
    assert (await _plan(env))["status"] == "running"


async def test_what_is_published_raw_is_held_to_the_same(env: PlancastTest) -> None:
    forged = _event("plan.cancel", EventTopic.PLAN_EVENTS, correlation_id="plan-of-mallory", tenant_id=MINE)
    payload, content_type = env.bus.encode(forged)
    subject = env.bus.subjects.event("plan-events", PLAN, "plan.cancel")
    env.world.publish(subject, payload, content_type, "raw")

    letter = (await _letters(env))[0]
    assert letter.reason == "undecodable"
    assert "correlation_id" in letter.detail
    assert (await _plan(env))["status"] == "running"


# Submitting under an id that is taken.


@pytest.mark.parametrize("tenant", [THEIRS, ""])
@pytest.mark.parametrize("finished", [False, True])
async def test_who_submits_under_a_foreign_id_learns_nothing_and_does_not_hang(
    env: PlancastTest, tenant: str, finished: bool
) -> None:
    if finished:
        await env.client.plan(PLAN).cancel(SECRET)
        await _until(env, lambda plan: plan["status"] == "cancelled")
    before = await _plan(env)

    handle = await env.submit("x.goal", {"key": "theirs"}, correlation_id=PLAN, tenant_id=tenant)

    for attempt in (
        handle.result(timeout=30), handle.state(), handle.history(), handle.status(), handle.cancel("x"),
        anext(handle.watch()),
    ):  # fmt: skip
        with pytest.raises(PlanNotFound) as caught:
            await attempt
        assert SECRET not in str(caught.value)
    assert (await _letters(env))[0].reason == "refused"
    assert await _plan(env) == before


async def test_both_tenants_hear_of_their_own_response_alone(env: PlancastTest) -> None:
    mine = await env.submit("quick.goal", {}, correlation_id="taken", tenant_id=MINE)
    theirs = await env.submit("quick.goal", {}, correlation_id="taken", tenant_id=THEIRS)
    letter = (await _letters(env))[0]
    refused = THEIRS if THEIRS in letter.detail.split("may not")[0] else MINE

    outcomes = await asyncio.gather(mine.result(timeout=30), theirs.result(timeout=30), return_exceptions=True)

    assert [isinstance(each, PlanNotFound) for each in outcomes] == [refused == MINE, refused == THEIRS]


async def test_what_is_told_to_the_inbox_ends_no_other_tenants_waiting(env: PlancastTest) -> None:
    waiting = asyncio.create_task(env.client.plan(PLAN, tenant_id=MINE).result())
    await asyncio.sleep(0)
    forged = _event("x.goal.completed", EventTopic.ACTION_RESULTS, tenant_id=THEIRS, data={"status": "completed"})
    payload, content_type = env.bus.encode(forged)
    await env.client.results._on_response("_INBOX.x", payload, content_type)
    await asyncio.sleep(0.05)

    assert not waiting.done()
    waiting.cancel()


# Looking.


async def test_a_scoped_look_at_another_tenants_plan_finds_none(env: PlancastTest) -> None:
    handle = env.client.plan(PLAN, tenant_id=THEIRS)
    await env.bus.emit([NoteAlias("order-7", PLAN)])
    for each in (handle, env.client.plan("order-7", tenant_id=THEIRS)):
        for attempt in (
            each.result(timeout=30), each.state(), each.history(), each.status(), anext(each.watch()),
            each.signal("go"), each.cancel("x"), each.resume(1), each.pause(), each.reject(), each.redirect({}),
            each.inject(1),
        ):  # fmt: skip
            with pytest.raises(PlanNotFound) as caught:
                await attempt
            assert SECRET not in str(caught.value)
    assert await env.client.plan("order-7", tenant_id=MINE).status() is PlanStatus.RUNNING
    assert await env.bus.dead_letters.count() == 0


async def test_listings_are_scoped(env: PlancastTest) -> None:
    await (await env.submit("x.goal", {}, correlation_id="other", tenant_id=THEIRS, session_id="s")).state()

    assert [each.plan_id for each in await env.client.plans(tenant_id=MINE)] == [PLAN]
    assert [each.plan_id for each in await env.client.plans(tenant_id=THEIRS, session_id="s")] == ["other"]
    assert await env.client.plans(tenant_id="") == []
    assert {each.plan_id for each in await env.client.plans()} == {PLAN, "other"}


async def test_a_client_bound_to_a_tenant_acts_for_it_alone(env: PlancastTest) -> None:
    async with Client(MemoryBus(env.world), tenant_id=THEIRS) as bound:
        assert await bound.plans() == []
        with pytest.raises(PlanNotFound):
            await bound.plan(PLAN).state()
        with pytest.raises(ForeignPlan):
            await bound.plans(tenant_id=MINE)
        with pytest.raises(ForeignPlan):
            bound.plan(PLAN, tenant_id=MINE)
        with pytest.raises(ForeignPlan):
            await bound.submit("quick.goal", {}, tenant_id=MINE)
        with pytest.raises(ForeignPlan):
            await bound.submit("quick.goal", {}, tenant_id="")
        handle = await bound.submit(
            "quick.goal", {}, metadata={"tenant_id": MINE, "parent_plan_id": PLAN, "hue": "red"}
        )
        assert await handle.result(timeout=30) == {}
        assert [each.tenant_id for each in await bound.plans()] == [THEIRS]
        assert (await handle.state())["parent_plan_id"] is None
    assert [each.plan_id for each in await env.client.plans(tenant_id=MINE)] == [PLAN]


async def test_a_handler_finds_plans_of_its_own_tenant_alone() -> None:
    planner, found = Planner("p"), {}
    planner.add_goal("x.goal", _machine())

    @planner.on_goal("look.goal", {"start": StateConfig(state_name="start", is_terminal=True)})
    async def look(goal: Any, context: Any) -> None:
        plan = await PlanContext.restore(goal.data["plan"], context)
        by_correlation = await PlanContext.restore_by_correlation(goal.data["plan"], context)
        found[goal.tenant_id] = (plan and plan.tenant_id, by_correlation and by_correlation.tenant_id)

    worker = Worker("w")

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        plan = await PlanContext.restore(task.data.get("plan", task.plan_id), context)
        return {"found": plan and plan.tenant_id}

    async with PlancastTest(App("app", planners=[planner], workers=[worker])) as env:
        handle = await env.submit("x.goal", {}, correlation_id=PLAN, tenant_id=MINE)
        while "ask" not in (await handle.state())["results"]:
            await asyncio.sleep(0.005)
        assert (await handle.state())["results"]["ask"] == {"found": MINE}
        for tenant in (MINE, THEIRS, ""):
            await (await env.submit("look.goal", {"plan": PLAN}, tenant_id=tenant)).result(timeout=30)
        request = _event(
            "work.requested", EventTopic.ACTION_REQUESTS, tenant_id=THEIRS, data={"plan": PLAN},
            response_event="work.completed", correlation_id="plan-of-mallory",
        )  # fmt: skip
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
            answers.put_nowait(payload)

        await env.bus.subscribe(env.bus.subjects.event("action-results", "plan-of-mallory", "work.completed"), notice)
        await env.bus.publish(request)
        answer = await answers.get()

    assert found == {MINE: (MINE, MINE), THEIRS: (None, None), "": (None, None)}
    assert MINE.encode() not in answer


# What every event of a plan carries.


async def test_every_event_that_a_plan_sends_carries_its_tenant() -> None:
    planner = Planner("p")
    planner.add_goal(
        "parent.goal",
        {
            "start": StateConfig(
                state_name="start",
                action=StateAction(event_type="quick.goal", response_event="child.done", data={}, timeout_seconds=60),
                transitions=[StateTransition(on_event="child.done", to_state="ask")],
            ),
            "ask": StateConfig(
                state_name="ask",
                action=StateAction(event_type="work.requested", response_event="work.completed", timeout_seconds=5),
                transitions=[StateTransition(on_event="work.timeout", to_state="done")],
            ),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )
    planner.add_goal("quick.goal", {"start": StateConfig(state_name="start", is_terminal=True)})
    clock = ManualClock()
    async with PlancastTest(App("app", planners=[planner]), clock=clock, settings=Settings()) as env:
        seen: list[EventEnvelope] = []

        async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
            from plancast_bus.events.codec import decode

            seen.append(decode(payload, content_type))

        await env.bus.subscribe(f"{env.bus.subjects.prefix}.>", notice)
        handle = await env.submit("parent.goal", {}, tenant_id=MINE, user_id="u", session_id="s")
        while (await handle.state())["current_state"] != "ask":
            await asyncio.sleep(0.005)
        await env.advance(6)
        await handle.result(timeout=30)

    assert {"parent.goal", "quick.goal", "child.done", "work.requested"} <= {each.type for each in seen}
    assert {each.tenant_id for each in seen} == {MINE}
