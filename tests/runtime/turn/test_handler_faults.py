"""What handlers get wrong fails their plan at once, with the cause: values that are no JSON, errors without a text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from plancast import (
    App,
    InvalidDecision,
    PlanCancelled,
    PlanContext,
    PlanFailed,
    Planner,
    RetryableError,
    StateAction,
    StateConfig,
    StateTransition,
    TerminalError,
    Worker,
)
from plancast.testing import PlancastTest

STATES = {
    "start": StateConfig(state_name="start", default_next="search"),
    "search": StateConfig(
        state_name="search",
        action=StateAction(event_type="search.requested", response_event="search.completed"),
        transitions=[StateTransition(on_event="search.completed", to_state="wait")],
    ),
    "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="done")]),
    "done": StateConfig(state_name="done", is_terminal=True),
}
Fault = Callable[[PlanContext], None]


def an_app(where: str, fault: Fault) -> App:
    """An app whose handler, of this kind, commits the fault once."""
    planner, worker = Planner("p"), Worker("w")
    worker.on_task("search.requested", "search.completed")(lambda task, context: {"n": 1})
    if where == "goal":

        @planner.on_goal("a.goal")
        async def begin(goal: Any, context: Any) -> None:
            fault(await PlanContext.create_from_goal(goal, STATES))

    else:
        planner.add_goal("a.goal", STATES)
    if where == "transition":

        @planner.on_transition()
        async def move(transition: Any, context: Any) -> None:
            await transition.plan.execute_next(transition.event)
            fault(transition.plan)

    if where == "listener":

        @planner.on_event("search.completed")
        async def listen(event: Any, context: Any) -> None:
            plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
            assert plan is not None
            fault(plan)

    return App("a", planners=[planner], workers=[worker])


async def failure_of(app: App) -> str:
    """The error of a plan that fails without a retry, and without a dead letter."""
    async with PlancastTest(app) as env:
        plan = await env.submit("a.goal", {"x": 1})
        with pytest.raises(PlanFailed) as failed:
            await plan.result(timeout=20)
        assert await env.bus.dead_letters.count() == 0
        return failed.value.error


@pytest.mark.parametrize("where", ["goal", "transition", "listener"])
@pytest.mark.parametrize("field", ["results", "goal_data"])
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"bytes", datetime(2026, 1, 1), 2**64, {1: "key"}], ids=repr
)
async def test_a_value_that_is_no_json_fails_the_plan_and_is_named(where: str, field: str, value: Any) -> None:
    def fault(plan: PlanContext) -> None:
        getattr(plan, field)["found"] = [value]

    assert f"{field}.found[0]" in await failure_of(an_app(where, fault))


@pytest.mark.parametrize("where", ["goal", "transition", "listener"])
@pytest.mark.parametrize("field", ["tenant_id", "correlation_id"])
async def test_a_plan_that_would_become_anothers_fails_and_says_so(where: str, field: str) -> None:
    error = await failure_of(an_app(where, lambda plan: setattr(plan, field, "another")))
    assert f"{field} was changed to 'another'; it stays '" in error


async def test_a_plan_keeps_its_id() -> None:
    error = await failure_of(an_app("transition", lambda plan: setattr(plan, "plan_id", "another")))
    assert "plan_id was changed to 'another'" in error


@pytest.mark.parametrize("where", ["goal", "transition", "listener"])
@pytest.mark.parametrize(("field", "value"), [("depth", 0), ("root", "another")])
async def test_a_plan_keeps_its_place_in_its_tree(where: str, field: str, value: Any) -> None:
    error = await failure_of(an_app(where, lambda plan: setattr(plan, field, value)))
    assert f"{field} was changed to {value!r}; it stays " in error


@pytest.mark.parametrize("where", ["goal", "transition", "listener"])
@pytest.mark.parametrize(("field", "value"), [("response_event", "no event type"), ("response_topic", "nowhere")])
async def test_a_plan_whose_response_could_not_be_sent_fails_at_once(where: str, field: str, value: str) -> None:
    assert repr(value) in await failure_of(an_app(where, lambda plan: setattr(plan, field, value)))


async def test_what_an_interrupted_handler_wrote_into_its_goal_is_gone() -> None:
    planner, entered = Planner("p"), asyncio.Event()

    @planner.on_goal("a.goal")
    async def begin(goal: Any, context: Any) -> None:
        goal.data["when"] = float("nan")
        entered.set()
        await asyncio.Event().wait()

    async with PlancastTest(App("a", planners=[planner])) as env:
        plan = await env.submit("a.goal", {"x": 1})
        await asyncio.wait_for(entered.wait(), 20)
        await plan.cancel("enough")
        with pytest.raises(PlanCancelled, match="enough"):
            await plan.result(timeout=20)
        assert (await plan.state())["goal_data"] == {"x": 1}
        assert [entry["event"]["data"] for entry in await plan.history()] == [{"x": 1}]


class _Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteError(_Mute, Exception):
    pass


class MuteTerminal(_Mute, TerminalError):
    pass


class MuteDecision(_Mute, InvalidDecision):
    pass


class MuteExit(_Mute, BaseException):
    pass


@pytest.mark.parametrize("where", ["goal", "transition", "listener"])
@pytest.mark.parametrize("error", [MuteError, MuteTerminal, MuteDecision, MuteExit])
async def test_an_error_without_a_text_fails_the_plan_like_any_other(where: str, error: type[BaseException]) -> None:
    def fault(plan: PlanContext) -> None:
        raise error("x")

    assert "its text cannot be read" in await failure_of(an_app(where, fault))


async def test_a_retryable_error_without_a_text_is_retried_like_any_other() -> None:
    class MuteRetry(_Mute, RetryableError):
        pass

    raised: list[PlanContext] = []

    def fault(plan: PlanContext) -> None:
        raised.append(plan)
        if len(raised) == 1:
            raise MuteRetry("x", retry_after=0.01)
        plan.results["attempts"] = len(raised)

    async with PlancastTest(an_app("transition", fault)) as env:
        plan = await env.submit("a.goal")
        async with asyncio.timeout(20):
            while (await plan.state())["results"].get("attempts") != 2:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["fail", "cancel"])
async def test_a_plan_may_end_with_an_error_without_a_text(way: str) -> None:
    planner = Planner("p")

    @planner.on_goal("a.goal")
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, STATES)
        await getattr(plan, way)(MuteError())

    async with PlancastTest(App("a", planners=[planner])) as env:
        plan = await env.submit("a.goal")
        with pytest.raises((PlanFailed, PlanCancelled), match="MuteError: its text cannot be read"):
            await plan.result(timeout=20)
