"""Search attributes: handlers set them, they are stored with the plan, and lists filter by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plancast import App, PlanContext, PlanFailed, PlanHandle, Planner
from plancast.plan.attributes import check_attributes, read_attribute
from plancast.plan.serialization import to_state
from plancast.testing import PlancastTest

MACHINE: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


def make_app() -> App:
    planner = Planner("orders")

    @planner.on_goal("order.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, MACHINE)
        plan.attributes |= goal.data
        await plan.execute_next()

    @planner.on_transition()
    async def move(transition: Any, context: Any) -> None:
        transition.plan.attributes |= transition.data
        await transition.plan.execute_next(transition.event)

    return App("a", planners=[planner])


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    async with PlancastTest(make_app()) as env:
        yield env


async def reached(handle: PlanHandle, state: str) -> None:
    async with asyncio.timeout(20):
        while (await handle.state())["current_state"] != state:
            await asyncio.sleep(0.01)


async def ids(env: PlancastTest, **attributes: Any) -> list[str]:
    return [each.plan_id for each in await env.client.plans(attributes=attributes)]


async def test_what_handlers_set_is_stored_listed_and_filtered_by(env: PlancastTest) -> None:
    first = await env.submit("order.goal", {"customer": "acme", "amount": 40, "rush": True}, correlation_id="first")
    second = await env.submit("order.goal", {"customer": "acme"}, correlation_id="second")
    third = await env.submit("order.goal", {}, correlation_id="third")
    for handle in (first, second, third):
        await reached(handle, "hold")
    assert (await first.state())["attributes"] == {"customer": "acme", "amount": 40, "rush": True}
    assert "attributes" not in await third.state()
    assert sorted(await ids(env, customer="acme")) == ["first", "second"]
    assert await ids(env, customer="acme", amount=40, rush=True) == ["first"]
    assert await ids(env, customer="nobody") == []
    await env.crash_host()  # loaded anew, they are there
    await second.signal("go", {"amount": 7})
    await second.result(timeout=20)
    [listed] = await env.client.plans(attributes={"amount": 7})
    assert (listed.plan_id, listed.attributes) == ("second", {"customer": "acme", "amount": 7})
    assert [each.plan_id for each in await env.client.plans(text="ACME", limit=1)] == ["second"]


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({f"a{n}": n for n in range(17)}, "attributes: got 17, at most 16 are allowed"),
        ({"a b": 1}, "attributes: the name 'a b' is not allowed"),
        ({"a" * 65: 1}, "attributes: the name 'aaaa"),
        ({"customer": "x" * 201}, "attributes.customer: got 201 characters, at most 200 are allowed"),
        ({"items": [1]}, "attributes.items: got a list, allowed: a text, a number or a boolean"),
        ({"n": 2**53}, "attributes.n: got a number of 2\\*\\*53 or more, use a text"),
    ],
)
async def test_too_many_or_too_large_ones_fail_the_plan_and_say_which(
    env: PlancastTest, attributes: dict[str, Any], fault: str
) -> None:
    handle = await env.submit("order.goal", attributes)
    with pytest.raises(PlanFailed, match=fault):
        await handle.result(timeout=20)
    assert (await env.client.plans())[0].attributes is None


def test_numbers_are_finite() -> None:
    check_attributes({"a": 1.5, "b": -1, "c": False, "d": "", "e.f-g_h": "x"})
    for value in (float("nan"), float("inf"), None, b"x"):
        with pytest.raises(ValueError, match=r"attributes\.a"):
            check_attributes({"a": value})


def test_a_filter_names_a_value() -> None:
    assert read_attribute("customer=a=b c") == ("customer", "a=b c")
    assert read_attribute("customer=") == ("customer", "")
    for text in ("customer", "=acme", "a b=1", ""):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            read_attribute(text)


def test_a_plan_that_an_earlier_version_has_stored_has_none() -> None:
    plan = PlanContext(plan_id="p", state_machine=MACHINE)
    state = to_state(plan)
    assert "attributes" not in state
    assert PlanContext.from_dict(state | {"state_machine": MACHINE}).attributes == {}
