"""Plans whose tasks wait for unknown outcomes of other tasks of the same key: paused, until those are known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.planner_turn.test_autonomous import Scripted, reached

from plancast import App, Effect, PlanHandle, RetryableError, Worker
from plancast.decisions.actions import CompleteAction, PlannerAction, PublishAction
from plancast.errors import NotAwaited
from plancast.planners.contract import RunContext
from plancast.testing import PlancastTest


def _bank(charges: list[str], scope: Any) -> Worker:
    worker = Worker("bank")

    @worker.on_task("card.charge", "card.charged", effect=Effect(key="{{data.invoice}}", repeat="never", scope=scope))
    async def charge(task: Any, context: Any) -> None:
        charges.append(task.data["invoice"])
        raise RetryableError("no answer")

    return worker


def _until_it_is_charged(run: RunContext) -> PlannerAction:
    if "card.charged" in run.results:
        return CompleteAction(result=run.results["card.charged"])
    # A note makes each call a different one, as those of models are.
    data = {"invoice": "i", "note": len(run.results)}
    return PublishAction(event_type="card.charge", data=data, response_event="card.charged")


async def _waits(plan: PlanHandle) -> Any:
    await reached(plan, "paused")
    [effect] = await plan.effects()
    assert effect.outcome == "unknown"
    return effect


async def test_a_planner_that_calls_an_act_again_waits_for_the_person_who_knows_its_outcome() -> None:
    charges: list[str] = []
    planner = Scripted("payer", "pay.goal", _until_it_is_charged)
    async with PlancastTest(App("bank", planners=[planner], workers=[_bank(charges, "plan")])) as env:
        plan = await env.submit("pay.goal")
        effect = await _waits(plan)
        assert "waits for" in effect.reason
        asked = len(planner.runs)
        await plan.resolve_effect(effect.task, done={"charge": 7}, user_id="ann")
        assert await plan.result(timeout=60) == {"charge": 7}
        assert (asked, charges) == (2, ["i"])


async def test_a_person_may_resolve_an_effect_that_was_listed_before_it_was_called_again() -> None:
    planner = Scripted("payer", "pay.goal", _until_it_is_charged)
    async with PlancastTest(App("bank", planners=[planner], workers=[_bank([], "plan")])) as env:
        plan = await env.submit("pay.goal")
        effect = await _waits(plan)
        seen = f"{plan.plan_id}:1-0"
        assert effect.task != seen
        assert await plan.resolve_effect(seen, done={"charge": 7}) == "moved"
        assert await plan.result(timeout=60) == {"charge": 7}


@pytest.mark.parametrize("found", [{"done": {"charge": 7}}, {"give_up": True}])
async def test_a_plan_that_waits_for_the_effect_of_another_plan_names_it_and_goes_on_with_it(found: Any) -> None:
    charges: list[str] = []

    def once(run: RunContext) -> PlannerAction:
        ended = [name for name in run.results if name in ("card.charged", "card.charge.failed", "card.failed")]
        return CompleteAction(result={"ended": ended}) if ended else _until_it_is_charged(run)

    planner = Scripted("payer", "pay.goal", once)
    async with PlancastTest(App("bank", planners=[planner], workers=[_bank(charges, "tenant")])) as env:
        first = await env.submit("pay.goal")
        own = await _waits(first)
        second = await env.submit("pay.goal")
        other = await _waits(second)
        assert f"of plan {first.plan_id}" in other.reason
        assert (own.undecided, other.undecided) == (True, False)
        with pytest.raises(NotAwaited, match=f"is one of plan {first.plan_id}: resolve it there"):
            await second.resolve_effect(other.task, done={"charge": 8})
        await first.resolve_effect(own.task, **found)
        results = await asyncio.gather(first.result(timeout=60), second.result(timeout=60))
        assert len({str(each) for each in results}) == 1
        assert charges == ["i"]


async def test_a_plan_that_is_cancelled_while_it_waits_for_another_one_leaves_nothing_to_a_person() -> None:
    charges: list[str] = []
    planner = Scripted("payer", "pay.goal", _until_it_is_charged)
    async with PlancastTest(App("bank", planners=[planner], workers=[_bank(charges, "tenant")])) as env:
        first = await env.submit("pay.goal")
        await _waits(first)
        second = await env.submit("pay.goal")
        await _waits(second)
        await second.cancel("changed my mind")
        await reached(second, "cancelled")
        async with asyncio.timeout(60):
            while [each.outcome for each in await second.effects()] != ["failed"]:
                await asyncio.sleep(0.01)
        assert [each.outcome for each in await first.effects()] == ["unknown"]
