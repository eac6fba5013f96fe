"""Answers of people count for what was asked when they were given, and for nothing that is asked later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plancast import (
    App,
    CompleteAction,
    DeterministicPlanner,
    NotAwaited,
    Planner,
    RunContext,
    SignalOutcome,
    StateConfig,
    StateTransition,
)
from plancast.client.handle import PlanHandle
from plancast.decisions.actions import WaitAction
from plancast.testing import PlancastTest

SECONDS = 20.0


def signed_twice() -> Planner:
    """Two signatures, each in a state that sends no request; between them the plan waits for a payment."""
    planner = Planner("signatures")
    planner.expects("paper.signed", "A signature")

    def state(name: str, event: str, target: str) -> StateConfig:
        return StateConfig(state_name=name, transitions=[StateTransition(on_event=event, to_state=target)])

    states = [
        StateConfig(state_name="start", default_next="first"),
        state("first", "paper.signed", "paying"),
        state("paying", "paper.paid", "second"),
        state("second", "paper.signed", "done"),
        StateConfig(state_name="done", is_terminal=True),
    ]
    planner.add_goal("paper.goal", {each.state_name: each for each in states})
    return planner


class AsksTwice:
    """Waits twice for the same event, without a time limit."""

    async def decide(self, run: RunContext) -> WaitAction | CompleteAction:
        if run.results.get("paper.signed", {}).get("by") == "grace":
            return CompleteAction(result=run.results["paper.signed"])
        return WaitAction(reason="a signature", expected_event="paper.signed", timeout_seconds=None)


async def reached(handle: PlanHandle, state: str, turns: int) -> None:
    async with asyncio.timeout(SECONDS):
        while len(await handle.history()) < turns or (await handle.state())["current_state"] != state:
            await asyncio.sleep(0.01)


async def answer_of(handle: PlanHandle, by: str) -> Any:
    """Sends the answer to what is asked now, when it is called."""
    asked = await handle.approval()
    assert asked is not None
    given = asked.answer(True, by=by)
    return lambda: handle.signal(given.event_type, given.data, request_id=given.request_id)


async def test_the_second_of_two_answers_is_no_answer_to_what_a_later_state_asks() -> None:
    async with PlancastTest(App("a", planners=[signed_twice()])) as env:
        handle = await env.submit("paper.goal", {})
        await reached(handle, "first", 1)
        ada, bob = await answer_of(handle, "ada"), await answer_of(handle, "bob")
        assert await ada() is SignalOutcome.MOVED
        assert await bob() is SignalOutcome.IGNORED  # the plan does not keep it for the second signature
        await handle.signal("paper.paid")
        await reached(handle, "second", 3)
        assert await bob() is SignalOutcome.IGNORED
        assert await handle.approve(user_id="grace") is SignalOutcome.MOVED
        assert (await handle.result(timeout=SECONDS))["second"]["by"] == "grace"


async def test_the_second_of_two_answers_is_no_answer_to_a_planners_next_wait() -> None:
    tree = DeterministicPlanner([AsksTwice()], goals=["paper.goal"])
    async with PlancastTest(App("a", planners=[tree])) as env:
        handle = await env.submit("paper.goal", {})
        await reached(handle, "start", 1)
        ada, grace = await answer_of(handle, "ada"), await answer_of(handle, "grace")
        assert await ada() is SignalOutcome.MOVED
        assert await grace() is SignalOutcome.IGNORED
        assert await handle.status() == "paused"
        assert await handle.approve(user_id="grace") is SignalOutcome.MOVED
        assert (await handle.result(timeout=SECONDS))["by"] == "grace"


async def test_an_answer_to_what_was_shown_is_none_to_what_is_asked_by_now() -> None:
    async with PlancastTest(App("a", planners=[signed_twice()])) as env:
        handle = await env.submit("paper.goal", {})
        await reached(handle, "first", 1)
        shown = await handle.approval()
        assert shown is not None
        await handle.approve(user_id="ada", request_id=shown.request_id)
        await handle.signal("paper.paid")
        await reached(handle, "second", 3)
        for answer in (handle.approve, handle.reject):
            with pytest.raises(NotAwaited, match="something else by now"):
                await answer(user_id="bob", request_id=shown.request_id)
        assert (await handle.state())["current_state"] == "second"


@pytest.mark.parametrize("name", ["é state/of: work", "x" * 200])
async def test_states_of_any_name_are_answered(name: str) -> None:
    planner = Planner("p")
    planner.expects("paper.signed", "A signature")
    done = StateConfig(state_name="done", is_terminal=True)
    asks = StateConfig(state_name=name, transitions=[StateTransition(on_event="paper.signed", to_state="done")])
    planner.add_goal(
        "paper.goal", {"start": StateConfig(state_name="start", default_next=name), name: asks, "done": done}
    )
    async with PlancastTest(App("a", planners=[planner])) as env:
        handle = await env.submit("paper.goal", {}, correlation_id="ünïcode plan")
        await reached(handle, name, 1)
        assert await handle.approve(user_id="ada") is SignalOutcome.MOVED
