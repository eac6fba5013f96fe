"""Undos that have failed for good are among the effects that a person has to decide about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.turn.test_turn import DONE, machine, state

from plancast import App, Effect, NotAwaited, PlanHandle, Planner, SignalOutcome, TerminalError, Worker
from plancast.plan_store.effects import list_effects
from plancast.testing import PlancastTest


def an_app(refuses: list[str]) -> App:
    worker = Worker("bank")
    worker.on_task("card.requested", "card.completed", effect=Effect())(lambda task, context: {"charge": 1})

    @worker.compensate("card.requested")
    async def refund(task: Any, result: Any, context: Any) -> None:
        if refuses:
            raise TerminalError(refuses.pop())

    planner = Planner("shop")
    planner.add_goal("buy.goal", machine(state("start", asks="card", to="done"), DONE))
    return App("shop", planners=[planner], workers=[worker])


async def blocked(env: PlancastTest) -> tuple[PlanHandle, str]:
    """A plan whose undo has failed, and the task of the effect."""
    plan = await env.submit("buy.goal")
    await plan.result(timeout=60)
    assert await plan.rollback("withdrawn", timeout=60) is SignalOutcome.MOVED
    async with asyncio.timeout(60):
        while await plan.status() != "paused":
            await asyncio.sleep(0.01)
    (effect,) = await plan.effects()
    assert (effect.outcome, effect.undecided, "too late" in effect.reason) == ("done", True, True)
    return plan, effect.task


async def listed(env: PlancastTest) -> list[str]:
    return [each.effect.task async for each in list_effects(env.bus.checkpoints)]


@pytest.mark.parametrize(
    ("said", "outcome"), [({"done": None}, "undone"), ({"not_done": True}, "undone"), ({"give_up": True}, "done")]
)
async def test_a_person_decides_about_an_undo_that_has_failed(said: dict[str, Any], outcome: str) -> None:
    async with PlancastTest(an_app(["too late"])) as env:
        plan, task = await blocked(env)
        assert await listed(env) == [task]
        assert [each.status for each in await env.client.plans()] == ["waiting"]
        assert await plan.approval() is None
        assert await plan.resolve_effect(task, timeout=60, **said) is SignalOutcome.MOVED
        async with asyncio.timeout(60):
            while await plan.status() != "failed":
                await asyncio.sleep(0.01)
        (effect,) = await plan.effects()
        assert (effect.outcome, effect.undecided, await listed(env)) == (outcome, False, [])
        with pytest.raises(NotAwaited, match=f"is {outcome}"):
            await plan.resolve_effect(task, done=None)
